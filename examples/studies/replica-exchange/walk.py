"""Replicas of one temperature: Metropolis steps in the double well U = 8 (x^2 - 1)^2 + x.

A hundred independent copies run in parallel. Those of round 0 start in the right well, at x = 1;
later ones start from ``ITERATION.npz`` in the current folder, which the exchange wrote. Writes
their last positions to ``ITERATION-T.npz``. Prints ``U`` and ``left`` (the fraction in the deeper
well), each as the mean over copies and steps.
"""

import argparse
import json
import os

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iteration", type=int, required=True)
parser.add_argument("--T", type=float, required=True)
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--copies", type=int, default=100)
given = parser.parse_args()


def potential(x: np.ndarray) -> np.ndarray:
    return 8 * (x * x - 1) ** 2 + x


random = np.random.default_rng([given.iteration, round(given.T * 1e6)])
x = np.load(f"{given.iteration}.npz")[str(given.T)] if given.iteration else np.ones(given.copies)
U = potential(x)
total = left = 0.0
for _ in range(given.steps):
    there = x + random.uniform(-0.5, 0.5, x.size)
    U_there = potential(there)
    taken = random.random(x.size) < np.exp(np.minimum(0, (U - U_there) / given.T))
    x, U = np.where(taken, there, x), np.where(taken, U_there, U)
    total += U.mean()
    left += (x < 0).mean()
name = f"{given.iteration}-{given.T}.npz"
with open(f"{name}.new", "wb") as file:
    np.savez(file, T=given.T, x=x, U=U)
os.replace(f"{name}.new", name)
print(json.dumps({"U": float(total / given.steps), "left": float(left / given.steps)}))
