"""The Ising model on a square lattice of L * L spins, by the cluster algorithm of Wolff.

Prints a row for each block of clusters. ``m`` is the mean absolute magnetisation per spin, ``chi``
the susceptibility, L^2 (<m^2> - <|m|>^2) / T. ``scaled`` is chi / L^(7/4), whose peak has the same
height on all large lattices. ``work`` counts the flipped spins; the time is proportional to it. The
output depends only on L, T and the seed.
"""

import argparse
import json
from math import exp
from random import Random

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--L", type=int, required=True, help="rows and columns")
parser.add_argument("--T", type=float, required=True, help="temperature, in units of J / k")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--blocks", type=int, default=4)
parser.add_argument("--clusters", type=int, default=1000, help="in each block")
given = parser.parse_args()

L, N = given.L, given.L**2
random = Random(f"{L} {given.T} {given.seed}").random
join = 1 - exp(-2 / given.T)
near = [
    (i - i % L + (i + 1) % L, i - i % L + (i - 1) % L, (i + L) % N, (i - L) % N) for i in range(N)
]
spins = [1] * N
total = N
work = 0


def flip() -> None:
    """Flip one cluster."""
    global total, work
    first = int(random() * N)
    spin = spins[first]
    spins[first] = -spin
    edge, size = [first], 1
    while edge:
        for other in near[edge.pop()]:
            if spins[other] == spin and random() < join:
                spins[other] = -spin
                edge.append(other)
                size += 1
    total -= 2 * spin * size
    work += size


for _ in range(given.clusters // 2):  # to equilibrium
    flip()
for _ in range(given.blocks):
    m = m2 = 0.0
    for _ in range(given.clusters):
        flip()
        m += abs(total) / N
        m2 += (total / N) ** 2
    m, m2 = m / given.clusters, m2 / given.clusters
    chi = N * (m2 - m * m) / given.T
    row = {"m": m, "chi": chi, "scaled": chi / L**1.75, "work": work}
    print(json.dumps(row), flush=True)
    work = 0
