"""The study of ``examples/ising`` as a script, to compare lines of code and core-hours.

With Parsl, libEnsemble or a plain script, a user would write this code. It has the same first
points and the same two decisions: four more seeds if the sign of the gap is unknown, and a
temperature in the middle of the bracket. It has no journal, no retries and no limit of core-hours.

    python benchmarks/peers/ising_by_hand.py [--slots 2] [PROGRAM OPTION ...]
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from math import nan, sqrt

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--slots", type=int, default=2)
parser.add_argument("program", nargs="*", default=["examples/ising/ising"])
given, options = parser.parse_known_args()
cumulants: dict[float, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
jobs = 0


def measure(task: tuple[float, int, int]) -> tuple[float, int, float]:
    """Run the program for a temperature, a lattice and a seed; return the Binder cumulant."""
    temperature, size, seed = task
    point = ["--L", str(size), "--T", str(temperature), "--seed", f"{size}{seed}"]
    command = [sys.executable, *given.program, *point, *options]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    m2, m4 = (statistics.fmean(row[name] for row in rows) for name in ("m2", "m4"))
    return temperature, size, 1 - m4 / (3 * m2**2)


def error(values: list[float]) -> float:
    return statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else nan


def gap(temperature: float) -> tuple[float, float]:
    """Return the gap between both lattices, and its error."""
    small, large = (cumulants[temperature][size] for size in (16, 32))
    found = statistics.fmean(large) - statistics.fmean(small)
    return found, sqrt(error(small) ** 2 + error(large) ** 2)


wanted = [round(2.0 + 0.1 * step, 10) for step in range(7)]
with ThreadPoolExecutor(given.slots) as pool:
    while wanted:
        tasks = [
            (temperature, size, len(cumulants[temperature][size]) + seed)
            for temperature in wanted
            for size in (16, 32)
            for seed in range(4)
        ]
        jobs += len(tasks)
        for temperature, size, value in pool.map(measure, tasks):
            cumulants[temperature][size].append(value)
        shown = [t for t in cumulants if statistics.fmean(cumulants[t][16]) < 0.66]
        gaps = {temperature: gap(temperature) for temperature in shown}
        wanted = [t for t, (value, err) in gaps.items() if abs(value) < 2 * err and err > 0.002]
        above = min(t for t, (value, _) in gaps.items() if value < 0)
        below = max(t for t, (value, _) in gaps.items() if value >= 0)
        if not wanted and above - below >= 0.02:
            wanted = [(above + below) / 2]
print(f"{below} to {above}, {jobs} jobs")
