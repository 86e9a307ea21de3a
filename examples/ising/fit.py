"""The critical temperature, from the susceptibility's peaks on lattices of two sizes.

Reads ``L-T-SEED.jsonl`` in the current folder. Where the susceptibility of a lattice is highest,
a parabola through the points says; these peaks approach the critical temperature as 1 / L (its
exponent nu is 1), so that two sizes are enough to go to the end.
"""

import glob
import json
from collections import defaultdict

import numpy as np

found: dict = defaultdict(list)
for name in sorted(glob.glob("*-*-*.jsonl")):
    L, T, _ = name.split("-")
    with open(name) as file:
        found[int(L), float(T)] += [json.loads(line)["chi"] for line in file]
sizes = sorted({L for L, _ in found})
peaks = []
for L in sizes:
    T, chi = np.array(
        sorted((T, np.mean(rows)) for (size, T), rows in found.items() if size == L)
    ).T
    near = np.abs(T - T[chi.argmax()]) < 0.11
    a, b, _ = np.polyfit(T[near] - 2.3, chi[near], 2)
    peaks.append(float(2.3 - b / (2 * a)))
(small, large), (first, second) = sizes, peaks
Tc = (large * second - small * first) / (large - small)
print(json.dumps({"Tc": Tc, **{f"peak_{L}": peak for L, peak in zip(sizes, peaks, strict=True)}}))
