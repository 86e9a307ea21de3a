"""The critical temperature from the susceptibility's peaks on lattices of two sizes, and its cost.

Reads ``L-T-SEED.jsonl`` in the current folder. The peak of a lattice is that of a parabola through
the points around the highest one. The peaks approach the critical temperature as 1 / L (the
exponent nu is 1), so two sizes suffice to extrapolate. ``error`` is the standard deviation of the
result when jobs are resampled (bootstrap). The jobs' variance is multiplied by n / (n - 1), because
a temperature may have only two jobs. ``work`` counts the flipped spins.

``fixed`` are the core-hours of a fixed sweep with the same error. The place of the peaks is not
known beforehand, so that sweep has all temperatures of the range at the smallest distance, each
with as many jobs as the peak has here. The cost at other temperatures is interpolated.
"""

import argparse
import glob
import json
from collections import defaultdict

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--core-hours", type=float, default=0.0, help="what the jobs took")
given = parser.parse_args()

#: (mean susceptibility, work) of each job, by lattice and temperature.
found: dict = defaultdict(list)
for name in sorted(glob.glob("*-*-*.jsonl")):
    L, T, _ = name.split("-")
    with open(name) as file:
        rows = [json.loads(line) for line in file]
    chi = np.mean([row["chi"] for row in rows])
    found[int(L), float(T)].append((chi, sum(row["work"] for row in rows)))
sizes = sorted({L for L, _ in found})


def temperature(draw) -> tuple:
    """Return the critical temperature and the peaks of the jobs that ``draw`` chooses."""
    peaks = []
    for size in sizes:
        points = [
            (at, np.mean(draw(jobs)[:, 0])) for (of, at), jobs in arrays.items() if of == size
        ]
        at, chi = np.array(sorted(points)).T
        near = np.abs(at - at[chi.argmax()]) < 0.11
        a, b, _ = np.polyfit(at[near] - 2.3, chi[near], 2)
        peaks.append(float(2.3 - b / (2 * a)))
    (small, large), (first, second) = sizes, peaks
    return (large * second - small * first) / (large - small), peaks


arrays = {key: np.array(jobs) for key, jobs in found.items()}
Tc, peaks = temperature(lambda jobs: jobs)
random = np.random.default_rng(0)


def anew(jobs):
    """Resample the jobs, with the standard deviation corrected for their small number."""
    mean, n = jobs.mean(axis=0), len(jobs)
    return mean + (random.choice(jobs, n) - mean) * np.sqrt(n / max(1, n - 1))


drawn = [temperature(anew)[0] for _ in range(1000)]

fixed = 0.0
for L in sizes:
    here = sorted((T, jobs) for (size, T), jobs in arrays.items() if size == L)
    T = np.array([T for T, _ in here])
    top = max(here, key=lambda one: one[1][:, 0].mean())[1]
    grid = np.arange(T[0], T[-1] + 1e-9, np.diff(T).min())
    work = np.interp(grid, T, [jobs[:, 1].mean() for _, jobs in here])
    fixed += len(top) * work.sum()
done = sum(jobs[:, 1].sum() for jobs in arrays.values())
told = {"Tc": Tc, "error": float(np.std(drawn)), "core_hours": given.core_hours, "work": done}
told["fixed"] = float(given.core_hours * fixed / done)
print(json.dumps({**told, **{f"peak_{L}": peak for L, peak in zip(sizes, peaks, strict=True)}}))
