"""Escape over a barrier: particles in the double well U = x^4 - 2 x^2.

The barrier has the height 1. Each particle follows overdamped Langevin dynamics (diffusion T),
starts at the bottom of the left well, x = -1, and has escaped when it first reaches x = 1. Prints
the mean escape time.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--T", type=float, required=True, help="temperature, in barriers' heights")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--particles", type=int, default=250)
parser.add_argument("--dt", type=float, default=0.005)
given = parser.parse_args()

random = np.random.default_rng([round(given.T * 1e6), given.seed])
x = np.full(given.particles, -1.0)
steps = escaped = total = 0
noise = np.sqrt(2 * given.T * given.dt)
while x.size:
    x -= given.dt * 4 * x * (x * x - 1)
    x += noise * random.standard_normal(x.size)
    steps += 1
    still = x < 1
    if not still.all():
        total += steps * (x.size - int(still.sum()))
        x = x[still]
print(json.dumps({"time": total * given.dt / given.particles, "particles": given.particles}))
