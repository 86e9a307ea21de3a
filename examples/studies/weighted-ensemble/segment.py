"""Moves the walkers of one bin by Langevin dynamics in the double well U = x^4 - 2 x^2.

The motion is overdamped, at the temperature T. Reads ``ITERATION.npz`` in the current folder, and
writes the new positions to ``ITERATION-BIN.npz``. A walker that reaches x = 1, beyond the barrier
(of height 1), has arrived: its weight is counted, and it restarts at x = -1. Prints the weight that
arrived.
"""

import argparse
import json
import os

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iteration", type=int, required=True)
parser.add_argument("--bin", type=int, required=True)
parser.add_argument("--T", type=float, default=0.15)
parser.add_argument("--time", type=float, default=0.5)
given = parser.parse_args()

DT = 0.005
random = np.random.default_rng([1, given.iteration, given.bin])
kept = np.load(f"{given.iteration}.npz")
mine = kept["bins"] == given.bin
x, weights = kept["x"][mine], kept["weights"][mine]
arrived = 0.0
for _ in range(round(given.time / DT)):
    x = x - DT * 4 * x * (x * x - 1) + np.sqrt(2 * given.T * DT) * random.standard_normal(x.size)
    there = x >= 1
    arrived += float(weights[there].sum())
    x[there] = -1
name = f"{given.iteration}-{given.bin}.npz"
with open(f"{name}.new", "wb") as file:
    np.savez(file, x=x, weights=weights, rate=arrived / given.time)
os.replace(f"{name}.new", name)
print(json.dumps({"arrived": arrived, "walkers": x.size}))
