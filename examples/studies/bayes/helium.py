"""Variational Monte Carlo: the energy of the helium atom for a trial wave function.

The function is exp(-alpha (r1 + r2)) exp(r12 / (2 (1 + beta r12))): alpha says how strongly an
electron is bound, beta how the two avoid each other. Walkers move by the Metropolis method. The
random numbers depend only on the parameters. Prints ``E`` in Hartree and its standard ``error``.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--alpha", type=float, required=True)
parser.add_argument("--beta", type=float, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--walkers", type=int, default=400)
given = parser.parse_args()
alpha, beta, n = given.alpha, given.beta, given.walkers
draw = np.random.default_rng([int(alpha * 2**40), int(beta * 2**40), given.steps])


def lengths(r: np.ndarray) -> tuple:
    """Return the distances of both electrons from the nucleus, and between them."""
    return *np.linalg.norm(r, axis=2), np.linalg.norm(r[0] - r[1], axis=1)


def logarithm(r: np.ndarray) -> np.ndarray:
    r1, r2, r12 = lengths(r)
    return -alpha * (r1 + r2) + r12 / (2 * (1 + beta * r12))


def energy(r: np.ndarray) -> np.ndarray:
    r1, r2, r12 = lengths(r)
    apart = (r[0] / r1[:, None] - r[1] / r2[:, None]) * (r[0] - r[1]) / r12[:, None]
    d = 1 / (1 + beta * r12)
    jastrow = alpha * apart.sum(axis=1) - d * d / 2 - 2 / r12 + 2 * beta * d
    return (alpha - 2) * (1 / r1 + 1 / r2) + 1 / r12 - alpha**2 + d * d / 2 * jastrow


r = draw.normal(size=(2, n, 3)) / alpha
log, means = logarithm(r), []
for step in range(given.steps + 50):
    moved = r + draw.normal(size=r.shape) * 0.7 / alpha
    after = logarithm(moved)
    taken = np.log(draw.uniform(size=n)) < 2 * (after - log)
    r[:, taken], log = moved[:, taken], np.where(taken, after, log)
    if step >= 50:
        means.append(energy(r))
walkers = np.mean(means, axis=0)
error = float(walkers.std(ddof=1) / np.sqrt(n))
print(json.dumps({"E": float(walkers.mean()), "error": error}))
