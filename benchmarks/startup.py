"""Start-up: the command line compared with a bare click program, each in a separate process.

Measures ``ensemble --help`` compared with the bare program's ``--help``; ``ensemble validate
hello-world.yaml`` and ``ensemble run`` of one ``/bin/true`` compared with its command; and
``ensemble_core.run`` of the same compared with ``ensemble run``. With ``--against``, also those of
another environment. ``floor`` only imports click, PyYAML and jsonschema_rs: the lower limit of a
``validate`` that reads YAML and checks it with a schema. Each round runs all of them. On a busy
machine, minima and CPU time are more reliable than medians of wall time, and the results of
``perf stat -e instructions:u COMMAND`` are reproducible.

    python benchmarks/startup.py [--rounds N] [--against PROGRAM]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BARE = """
import click

@click.group()
def main():
    "A bare program."

@main.command()
@click.argument("file")
def validate(file):
    "Check a file."
    click.echo(f"{file}: valid")

main()
"""
ONE = """
jobs: [{name: one, command: /bin/true}]
rules: [{trigger: start, action: {name: submit, label: one}}]
"""
#: The same run from Python.
PROGRAM = """
import sys
import ensemble_core
run = ensemble_core.run(sys.argv[1], executor="local", state=sys.argv[2])
print(run)
sys.exit(run.exit_code)
"""
EXAMPLE = Path(__file__).parents[1] / "examples" / "hello-world.yaml"


#: Columns of the table.
WIDTHS = (10, 8, 10, 8)
#: A checkout to measure; its modules are compiled first, as in an installation.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


class Cost(NamedTuple):
    """Times of a process in milliseconds; ``cpu`` excludes processes that outlive it."""

    wall: float
    cpu: float


def cost(command: Sequence[str], folder: str) -> Cost:
    """Run a process to its end in a folder without modules of any tree."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: {errors.decode()}")
    return Cost(wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3)


def main() -> None:
    """Measure in rounds and print minima, medians and ratios."""
    parser = argparse.ArgumentParser(description="start-up compared with a bare click program")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--against", metavar="PROGRAM", help="the program 'ensemble' of another environment"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bare.py"
        file.write_text(BARE, encoding="utf-8")
        one = Path(folder) / "one.yaml"
        one.write_text(ONE, encoding="utf-8")
        ways = {
            "--help": ["--help"],
            "validate": ["validate", str(EXAMPLE)],
            "run": ["run", "--executor", "local", "--state", folder, str(one)],
        }
        commands = {
            "bare --help": [sys.executable, str(file), "--help"],
            "bare validate": [sys.executable, str(file), "validate", "x"],
            "floor validate": [sys.executable, "-c", "import click, yaml, jsonschema_rs"],
        }
        trees = {"ensemble": str(Path(sys.executable).with_name("ensemble"))}
        if given.against:
            trees["other"] = given.against
        for way, arguments in ways.items():
            for tree, program in trees.items():
                commands[f"{tree} {way}"] = [program, *arguments]
        commands["Python run"] = [sys.executable, "-c", PROGRAM, str(one), folder]
        for command in commands.values():
            cost(command, folder)
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for _ in range(given.rounds):
            for name, command in commands.items():
                costs[name].append(cost(command, folder))

    print(
        f"{'milliseconds':36s} {'wall: min':>10s} {'median':>8s} {'cpu: min':>10s} {'median':>8s}"
    )
    for name, all_of in costs.items():
        print(
            f"{name:36s}",
            *(f"{value:{w}.1f}" for value, w in zip(summary(all_of), WIDTHS, strict=True)),
        )
    print("ratios")
    for way in ways:
        bare = "bare --help" if way == "--help" else "bare validate"
        pairs = [(f"ensemble {way}", bare)]
        if way == "validate":
            pairs += [("floor validate", bare), ("ensemble validate", "floor validate")]
        if given.against:
            pairs += [(f"other {way}", bare), (f"ensemble {way}", f"other {way}")]
        if way == "run":
            pairs.append(("Python run", "ensemble run"))
        for ours, theirs in pairs:
            both = zip(summary(costs[ours]), summary(costs[theirs]), WIDTHS, strict=True)
            print(f"{f'{ours} / {theirs}':36s}", *(f"{a / b:{w}.2f}" for a, b, w in both))


def summary(costs: Sequence[Cost]) -> tuple[float, float, float, float]:
    """Return minimum and median of wall time and of CPU time."""
    walls, cpus = zip(*costs, strict=True)
    return min(walls), statistics.median(walls), min(cpus), statistics.median(cpus)


if __name__ == "__main__":
    main()
