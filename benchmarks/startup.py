"""Start-up: the command line against a bare click program, each in a process of its own.

Prints the ratio of wall times, pair by pair, medians of many pairs: ``ensemble --help`` against the
bare program's ``--help``, ``ensemble validate hello-world.yaml`` against both of the bare program's
ways to run, and ``ensemble run`` of one ``/bin/true`` against the bare program.

    python benchmarks/startup.py [--pairs N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
EXAMPLE = Path(__file__).parents[1] / "examples" / "hello-world.yaml"


def seconds(command: list[str]) -> float:
    """Wall time of one process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure in pairs, and print medians of ratios."""
    parser = argparse.ArgumentParser(description="start-up against a bare click program")
    parser.add_argument("--pairs", type=int, default=21)
    pairs = parser.parse_args().pairs
    ours = [sys.executable, "-m", "ensemble_core.cli"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bare.py"
        file.write_text(BARE, encoding="utf-8")
        bare = [sys.executable, str(file)]
        one = Path(folder) / "one.yaml"
        one.write_text(ONE, encoding="utf-8")
        run = [*ours, "run", "--executor", "local", "--state", folder, str(one)]
        for name, a, b in (
            ("ensemble --help / bare --help", [*ours, "--help"], [*bare, "--help"]),
            (
                "ensemble validate / bare --help",
                [*ours, "validate", str(EXAMPLE)],
                [*bare, "--help"],
            ),
            (
                "ensemble validate / bare validate",
                [*ours, "validate", str(EXAMPLE)],
                [*bare, "validate", "x"],
            ),
            ("ensemble run (/bin/true) / bare validate", run, [*bare, "validate", "x"]),
        ):
            seconds(a), seconds(b)
            ratios = [seconds(a) / seconds(b) for _ in range(pairs)]
            print(f"{name:40s} {statistics.median(ratios):5.2f}")


if __name__ == "__main__":
    main()
