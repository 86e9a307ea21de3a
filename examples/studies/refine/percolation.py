"""Site percolation on a square lattice: how often a cluster spans it from side to side.

Prints a row for each batch of lattices; ``spans`` is the fraction that is spanned. The output
depends only on L, p and the seed.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--L", type=int, required=True, help="rows and columns")
parser.add_argument("--p", type=float, required=True, help="part of the sites that is occupied")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--batches", type=int, default=10)
parser.add_argument("--lattices", type=int, default=25, help="in each batch")


def spanned(open_sites: np.ndarray) -> np.ndarray:
    """Return which lattices (first axis) are spanned: water spreads from the first row."""
    wet = np.zeros_like(open_sites)
    wet[:, 0] = open_sites[:, 0]
    count = 0
    while True:
        for _ in range(8):
            wet[:, 1:] |= wet[:, :-1]
            wet &= open_sites
            wet[:, :-1] |= wet[:, 1:]
            wet &= open_sites
            wet[:, :, 1:] |= wet[:, :, :-1]
            wet &= open_sites
            wet[:, :, :-1] |= wet[:, :, 1:]
            wet &= open_sites
        before, count = count, int(wet.sum())
        if count == before:
            return wet[:, -1].any(axis=1)


if __name__ == "__main__":
    given = parser.parse_args()
    random = np.random.default_rng([given.L, round(given.p * 1e9), given.seed])
    for _ in range(given.batches):
        lattices = random.random((given.lattices, given.L, given.L)) < given.p
        print(json.dumps({"spans": float(spanned(lattices).mean())}), flush=True)
