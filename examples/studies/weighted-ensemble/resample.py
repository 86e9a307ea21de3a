"""Weighted ensemble: resamples each bin to a fixed number of walkers; the total weight stays.

Round 0 puts all walkers at x = -1. Later rounds read the walkers of the previous round's segments
and draw new ones in each bin in proportion to their weights, which splits and merges in one step.
The new walkers of a bin share its weight equally. Writes ``ITERATION.npz`` in the current folder,
and prints a row for each bin with walkers: ``iteration``, ``bin``, and ``rate``, the weight that
arrived per unit of time, as a mean over the rounds after ``--forget``.
"""

import argparse
import glob
import json
import os

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iteration", type=int, required=True)
parser.add_argument("--walkers", type=int, default=1000, help="in each bin")
parser.add_argument("--forget", type=int, default=10, help="rounds until it is steady")
given = parser.parse_args()

EDGES = np.linspace(-0.8, 0.8, 9)
random = np.random.default_rng([0, given.iteration])
rates = []
if given.iteration == 0:
    x, weights = np.array([-1.0]), np.array([1.0])
else:
    parts = [np.load(name) for name in sorted(glob.glob(f"{given.iteration - 1}-*.npz"))]
    x = np.concatenate([part["x"] for part in parts])
    weights = np.concatenate([part["weights"] for part in parts])
    rates = [*np.load(f"{given.iteration - 1}.npz")["rates"], sum(part["rate"] for part in parts)]
assert abs(weights.sum() - 1) < 1e-9, "weight is neither made nor lost"
bins = np.searchsorted(EDGES, x)
new_x, new_weights, new_bins = [], [], []
for number in np.unique(bins):
    mine = bins == number
    weight = weights[mine].sum()
    # Systematic: each walker is chosen in proportion to its weight, to within one.
    at = (np.arange(given.walkers) + random.random()) / given.walkers * weight
    chosen = np.minimum(np.searchsorted(np.cumsum(weights[mine]), at), mine.sum() - 1)
    new_x.append(x[mine][chosen])
    new_weights.append(np.full(given.walkers, weight / given.walkers))
    new_bins.append(np.full(given.walkers, number))
with open(f"{given.iteration}.new", "wb") as file:
    np.savez(
        file,
        x=np.concatenate(new_x),
        weights=np.concatenate(new_weights),
        bins=np.concatenate(new_bins),
        rates=rates,
    )
os.replace(f"{given.iteration}.new", f"{given.iteration}.npz")
rate = float(np.mean(rates[given.forget :] or [0]))
for number in np.unique(bins):
    print(json.dumps({"iteration": given.iteration, "bin": int(number), "rate": rate}))
