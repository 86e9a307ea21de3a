"""Solves a linear system by one of three methods that need very different numbers of iterations.

The system is -u'' = f on 24 points, with a random f chosen by ``--case``. Stops if the residual has
fallen to a millionth. Prints {"iterations": …, "residual": …, "omega": …}, and waits half a
millisecond for each iteration, like a larger system.
"""

import argparse
import json
import time
from math import pi, sin
from random import Random

METHODS = ("jacobi", "gauss-seidel", "sor")
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--method", choices=METHODS, required=True)
parser.add_argument("--case", type=int, required=True)
parser.add_argument(
    "--draw", type=int, help="an omega of sor at random, in place of the best known"
)
given = parser.parse_args()

N = 24
random = Random(given.case)
f = [random.gauss(0, 1) for _ in range(N)]
u = [0.0] * (N + 2)
omega = 2 / (1 + sin(pi / (N + 1))) if given.method == "sor" else 1.0
if given.draw is not None:
    omega = Random(given.draw).uniform(1.5, 1.95)


def residual() -> float:
    return max(abs(f[i] + u[i] - 2 * u[i + 1] + u[i + 2]) for i in range(N))


first, iterations = residual(), 0
while residual() > 1e-6 * first:
    old = list(u) if given.method == "jacobi" else u
    for i in range(1, N + 1):
        u[i] += omega * ((f[i - 1] + old[i - 1] + old[i + 1]) / 2 - u[i])
    iterations += 1
time.sleep(iterations * 0.0005)
row = {"iterations": iterations, "residual": residual() / first, "omega": omega}
print(json.dumps(row))
