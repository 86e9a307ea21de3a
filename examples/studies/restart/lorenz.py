"""The largest Lyapunov exponent of the Lorenz system, by the method of Benettin and others.

Integrates for ``--part`` units of time from the state in ``state.npz`` in the current folder, and
replaces that file at the end (by rename: a kill loses at most this part). Prints a row for each
``--every`` units: ``time``, and ``rate``, the growth rate of a small distance as a mean over
trajectories.
"""

import argparse
import json
import os

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--part", type=float, default=20.0)
parser.add_argument("--every", type=float, default=1.0)
parser.add_argument("--trajectories", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

DT, APART = 0.01, 1e-8


def slope(v: np.ndarray) -> np.ndarray:
    x, y, z = v
    return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def step(v: np.ndarray) -> np.ndarray:
    a = slope(v)
    b = slope(v + DT / 2 * a)
    c = slope(v + DT / 2 * b)
    return v + DT / 6 * (a + 2 * b + 2 * c + slope(v + DT * c))


if os.path.exists("state.npz"):
    kept = np.load("state.npz")
    time, v = float(kept["time"]), kept["v"]
else:  # 20 units of time, to forget the start
    random = np.random.default_rng(given.seed)
    time, first = 0.0, random.normal([1, 1, 20], 5, (given.trajectories, 3)).T
    for _ in range(2000):
        first = step(first)
    v = np.stack([first, first + APART * np.array([[1.0], [0.0], [0.0]])], axis=1)
    for _ in range(500):
        v = step(v)
        far = np.linalg.norm(v[:, 1] - v[:, 0], axis=0)
        v[:, 1] = v[:, 0] + (v[:, 1] - v[:, 0]) * APART / far

rows = []
for _ in range(round(given.part / given.every)):
    grown = 0.0
    for _ in range(round(given.every / DT / 10)):
        for _ in range(10):
            v = step(v)
        far = np.linalg.norm(v[:, 1] - v[:, 0], axis=0)
        grown += float(np.log(far / APART).mean())
        v[:, 1] = v[:, 0] + (v[:, 1] - v[:, 0]) * APART / far
    time += given.every
    rows.append({"time": round(time, 6), "rate": grown / given.every})
with open("state.new", "wb") as file:
    np.savez(file, time=time, v=v)
os.replace("state.new", "state.npz")
for row in rows:
    print(json.dumps(row), flush=True)
