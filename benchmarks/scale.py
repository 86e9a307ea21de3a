"""Scale: time and memory of simulated runs by size, each size in a separate process.

- ``waves``: N jobs, 1,000 in the queue at a time;
- ``at once``: N jobs, all in the queue from the start;
- ``members``: M job groups of ten jobs, each for a different member, and two rules for each group.
  The simulator has one cluster and no network: this is what members cost the controller.

Prints CPU seconds to read and simulate the file, microseconds per event, and the process's peak
memory. ``--json FILE`` adds these figures to those in FILE. A size is left out if ten times the
figures of the previous size exceed ``--seconds`` or ``--megabytes``.

    python benchmarks/scale.py [--most 100000] [--members 1000] [--seconds 300]
        [--megabytes 4000] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ensemble_simulate.executor import Machine
from ensemble_simulate.forecast import Study, play
from ensemble_simulate.model_file import read

from ensemble_core.config import load_text
from ensemble_core.config.yaml_reader import read_document
from ensemble_core.plugin.discovery import discover

WAVE = 1_000
JOBS_OF_A_MEMBER = 10
ONCE = """
jobs: [{{name: g, command: x, count: {jobs}}}]
rules: [{{trigger: start, action: {{name: submit, label: g}}}}]
simulate: {{jobs: {{g: 'lognormal(10m, 0.5)'}}}}
"""
WAVES = """
jobs: [{{name: g, command: x, count: {each}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: g}}}}
  - {{trigger: idle, name: g, repetitions: {more}, action: {{name: submit, label: g}}}}
simulate: {{jobs: {{g: 'lognormal(10m, 0.5)'}}}}
"""


def waves(jobs: int) -> str:
    if jobs <= WAVE:
        return ONCE.format(jobs=jobs)
    return WAVES.format(each=WAVE, more=jobs // WAVE - 1)


def at_once(jobs: int) -> str:
    return ONCE.format(jobs=jobs)


def members(count: int) -> str:
    """Return groups that are submitted at the start and again after half of their jobs."""
    numbers, each, half = range(count), JOBS_OF_A_MEMBER // 2, JOBS_OF_A_MEMBER // 4
    lines = ["jobs:"]
    lines += [f"  - {{name: g{n}, command: x, count: {each}, executor: m{n}}}" for n in numbers]
    lines += ["rules:"]
    for n in numbers:
        submit = f"action: {{name: submit, label: g{n}}}"
        lines.append(f"  - {{trigger: start, {submit}}}")
        lines.append(
            f"  - {{trigger: metric, name: count.g{n}.success, when: '>= {half}', {submit}}}"
        )
    lines += ["simulate:", "  jobs:", *(f"    g{n}: 'lognormal(10m, 0.5)'" for n in numbers)]
    return "\n".join(lines)


#: Each curve: its file for a size, and the number of jobs of a size.
CURVES: dict[str, tuple[Callable[[int], str], int]] = {
    "members": (members, JOBS_OF_A_MEMBER),
    "at once": (at_once, 1),
    "waves": (waves, 1),
}


def point(curve: str, size: int) -> dict[str, Any]:
    """Simulate one size; return CPU seconds, events, and the peak of this process in MB."""
    registry = discover()
    gc.set_threshold(50_000, 20, 20)  # as in the command line
    gc.freeze()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    text = CURVES[curve][0](size)
    ensemble = load_text(text, registry)
    model = read(read_document(text, "scale.yaml"), ensemble, registry, ("simulate",))
    loaded = time.process_time()
    figures = play(Study(ensemble, registry, model, Machine(100, 16)), 0)
    assert figures.over, figures.reason
    played = time.process_time() - loaded
    return {
        "curve": curve,
        "size": size,
        "jobs": figures.jobs,
        "events": figures.events,
        "read_seconds": round(loaded - began, 3),
        "play_seconds": round(played, 3),
        "us_per_event": round(played / figures.events * 1e6, 1),
        "base_mb": round(before / 1024, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def measured(
    most: int, most_members: int, seconds: float, megabytes: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all points that fit, and those left out with the reason."""
    points, left_out = [], []
    context = multiprocessing.get_context("spawn")
    for curve in CURVES:
        size, limit = (10, most_members) if curve == "members" else (1_000, most)
        took = used = 0.0
        while size <= limit:
            if 10 * took > seconds or 10 * used > megabytes:
                left_out.append(
                    f"`{curve}` with size {size:,}, because size {size // 10:,} took {took:.0f} s, "
                    f"and its memory grew by {used:.0f} MB"
                )
                break
            with context.Pool(1) as pool:
                found = pool.apply(point, (curve, size))
            points.append(found)
            took = found["read_seconds"] + found["play_seconds"]
            used = found["peak_mb"] - found["base_mb"]
            print(
                f"{curve:8s} {size:>10,} {found['jobs']:>10,} jobs"
                f"  read {found['read_seconds']:7.2f} s"
                f"  play {found['play_seconds']:9.2f} s"
                f"  {found['us_per_event']:6.1f} us/event"
                f"  peak {found['peak_mb']:8.0f} MB",
                flush=True,
            )
            size *= 10
    return points, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--megabytes", type=float, default=4000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    points, left_out = measured(options.most, options.members, options.seconds, options.megabytes)
    for line in left_out:
        print(f"left out: {line}")
    if options.json:
        kept = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
        kept["scale"] = {
            "date": time.strftime("%Y-%m-%d"),
            "load": os.getloadavg()[0],
            "points": points,
            "left_out": left_out,
        }
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
