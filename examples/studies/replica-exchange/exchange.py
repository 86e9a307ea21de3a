"""Replica exchange: copies at neighbouring temperatures change places by Metropolis' rule.

Reads the files of the round's walks in the current folder, writes the starting points of the next
round, and prints a row for each of its walks: ``T``, ``iteration``, and ``exchanged``, the fraction
of the copies that changed places. Even rounds try the pairs (0, 1), (2, 3) …, odd ones the others.
"""

import argparse
import glob
import json
import os

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iteration", type=int, required=True, help="the round that is over")
given = parser.parse_args()

random = np.random.default_rng([given.iteration])
walks = [dict(np.load(name)) for name in glob.glob(f"{given.iteration}-*.npz")]
walks.sort(key=lambda walk: float(walk["T"]))
exchanged = [0.0] * len(walks)
for i in range(given.iteration % 2, len(walks) - 1, 2):
    cold, hot = walks[i], walks[i + 1]
    gain = (1 / cold["T"] - 1 / hot["T"]) * (cold["U"] - hot["U"])
    change = random.random(gain.size) < np.exp(np.minimum(0, gain))
    cold["x"], hot["x"] = (
        np.where(change, hot["x"], cold["x"]),
        np.where(change, cold["x"], hot["x"]),
    )
    exchanged[i] = exchanged[i + 1] = float(change.mean())
name = f"{given.iteration + 1}.npz"
with open(f"{name}.new", "wb") as file:
    np.savez(file, **{str(walk["T"]): walk["x"] for walk in walks})
os.replace(f"{name}.new", name)
for walk, part in zip(walks, exchanged, strict=True):
    row = {"T": float(walk["T"]), "iteration": given.iteration + 1, "exchanged": part}
    print(json.dumps(row))
