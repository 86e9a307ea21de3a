"""Cost of jobspecs: checks, conversion, and runs compared with ``ensemble run`` and ``flux batch``.

    python benchmarks/jobspec_rate.py [--tasks N] [--rounds N] [--batch N] [--length SECONDS]

Checks and conversion are measured in one process each, including its start-up. A run is compared
with ``ensemble run`` of the same job, a batch with a handwritten ``flux batch``, in alternating
rounds; the result is the ratio of the medians. Batches have --batch tasks of --length each, on the
four nodes of a temporary test instance (``flux`` on the PATH or in ``ENSEMBLE_FLUX_PREFIX``). Their
time is from the submit to the end of the last task.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENSEMBLE = str(Path(sys.executable).with_name("ensemble"))


def processor(words: Sequence[str], folder: Path, environment: dict[str, str]) -> float:
    """Return the CPU seconds of a command."""
    before = os.times()
    timed(words, folder, environment)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def timed(words: Sequence[str], folder: Path, environment: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    took = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return took


def many(count: int) -> str:
    """Return a jobspec with a number of tasks, nine in ten of which depend on another."""
    lines = ["version: 1", "resources:", "  one: {type: slot, count: 1, with: [{type: core}]}"]
    lines.append("tasks:")
    for n in range(count):
        after = f", depends_on: [t{n - 1}]" if n % 10 else ""
        lines.append(f"- {{name: t{n}, command: echo hello {n}, resources: one{after}}}")
    return "\n".join(lines) + "\n"


def compared(
    name: str, rounds: int, ours: Callable[[], float], other: Callable[[], float], bound: str
) -> None:
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(ours())
        theirs.append(other())
    ratio = statistics.median(mine) / statistics.median(theirs)
    print(
        f"{name}: {statistics.median(mine):.3f} s beside {statistics.median(theirs):.3f} s: "
        f"{ratio:.2f} ({bound})"
    )


def one_task(rounds: int, folder: Path) -> None:
    (folder / "one.yaml").write_text("version: 1\ntasks: [{name: one, command: 'true'}]\n")
    (folder / "ensemble.yaml").write_text(
        "jobs: [{name: one, command: 'true'}]\n"
        "rules: [{trigger: start, action: {name: submit, label: one}}]\n"
    )
    environment = {**os.environ, "ENSEMBLE_STATE": str(folder / "state")}
    words = ("--executor", "local", "-q")
    compared(
        "jobspec run of one task beside ensemble run",
        rounds,
        lambda: timed([ENSEMBLE, "jobspec", "run", "one.yaml", *words], folder, environment),
        lambda: timed([ENSEMBLE, "run", "ensemble.yaml", *words], folder, environment),
        "at most 1.2",
    )


def flux_module() -> Any:
    path = ROOT / "plugins" / "ensemble-flux" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("flux_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batches(rounds: int, count: int, length: float, folder: Path) -> None:
    module = flux_module()
    command = module.command()
    if command is None:
        print("no Flux: batches are not compared")
        return
    nodes = 4
    slot = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}]}
    work = {
        "version": 1,
        "resources": {"all": {"type": "node", "count": nodes, "with": [slot]}},
        "groups": [
            {
                "name": "batch",
                "resources": "all",
                "tasks": [{"name": "t", "command": ["sleep", str(length)], "replicas": count}],
            }
        ],
    }
    (folder / "group.yaml").write_text(json.dumps(work))
    script = folder / "batch.sh"
    script.write_text(
        f"#!/bin/sh\nflux submit --quiet --cc=1-{count} sleep {length}\nflux queue drain\n"
    )
    instance = module.Instance(command, size=nodes)
    try:
        environment = {**instance.environment(), "ENSEMBLE_STATE": str(folder / "state")}
        environment["PATH"] = f"{Path(command).parent}{os.pathsep}{environment['PATH']}"
        by_hand = f'flux job status "$(flux batch -N{nodes} -n{nodes} -c1 "$0")"'
        own = ["sh", "-c", by_hand, str(script)]
        words = [ENSEMBLE, "jobspec", "run", "group.yaml", "--executor", "flux", "-q"]
        compared(
            f"a group of {count} tasks of {length:g} s on Flux beside flux batch",
            rounds,
            lambda: timed(words, folder, environment),
            lambda: timed(own, folder, environment),
            "at most 1.11: 0.9 of its rate",
        )
    finally:
        instance.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--length", type=float, default=0.2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ensemble-jobspec-") as base:
        folder = Path(base)
        (folder / "many.yaml").write_text(many(given.tasks))
        environment = dict(os.environ)
        for words in (["validate", "many.yaml"], ["convert", "many.yaml", "--to", "ensemble"]):
            full = [ENSEMBLE, "jobspec", *words]
            took = min(timed(full, folder, environment) for _ in range(given.rounds))
            busy = min(processor(full, folder, environment) for _ in range(given.rounds))
            print(
                f"{words[0]} of {given.tasks} tasks: {took:.2f} s, of the processor {busy:.2f} s, "
                "at best (2 s)"
            )
        one_task(given.rounds, folder)
        batches(min(given.rounds, 3), given.batch, given.length, folder)


if __name__ == "__main__":
    main()
