"""A level of multi-level Monte Carlo for a European call: the change by a finer time step.

The price follows Black and Scholes (S = 1, K = 1, r = 0.05, sigma = 0.2, one year), in 4^l steps of
Euler and Maruyama. Level 0 computes the mean payoff, each other level the mean difference between
4^l and 4^(l-1) steps with the same random numbers. Prints one row: the mean ``Y``, the variance
``V`` of one path, and the cost ``C`` of one path in steps.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--l", type=int, required=True, help="the level")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--paths", type=int, default=4096)
given = parser.parse_args()

R, SIGMA, M = 0.05, 0.2, 4
random = np.random.default_rng([given.l, given.seed])
fine_steps = M**given.l
h = 1 / fine_steps
fine = np.ones(given.paths)
coarse = np.ones(given.paths)
for _ in range(max(1, fine_steps // M)):
    both = np.zeros(given.paths)
    for _ in range(min(M, fine_steps)):
        dw = np.sqrt(h) * random.standard_normal(given.paths)
        fine = fine * (1 + R * h + SIGMA * dw)
        both += dw
    coarse = coarse * (1 + R * M * h + SIGMA * both)
Y = np.exp(-R) * np.maximum(fine - 1, 0)
if given.l:
    Y -= np.exp(-R) * np.maximum(coarse - 1, 0)
C = fine_steps + (fine_steps // M if given.l else 0)
print(json.dumps({"Y": float(Y.mean()), "V": float(Y.var()), "C": C}))
