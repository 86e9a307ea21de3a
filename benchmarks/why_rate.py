"""Cost of ``ensemble why`` for rules that were considered many times.

Writes a journal with ``--looks`` rows of one job. Two rules are checked for each row and never
fire: one on ``observed`` that compares a column with a mean, and one on a metric. Prints the wall
and CPU time of the command, in a separate process, and for comparison those of ``ensemble replay``,
which repeats the decisions.

    python benchmarks/why_rate.py [--looks N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ensemble_core import Event, JobEvent, Observed
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import Started
from ensemble_core.plugin.discovery import discover

FILE = """
jobs: [{name: sim, command: run, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: observed, trigger: observed, name: sim, repetitions: 5,
     when: energy < 0 and mean.energy < 5, action: {name: log, message: low}}
  - {id: metric, trigger: metric, name: mean.sim-energy, repetitions: 5,
     when: "< 0", action: {name: log, message: low}}
"""


def kept_run(state: Path, looks: int) -> None:
    """Write the journal of a run whose job printed a number of rows."""
    folder = state / "runs" / "why"
    folder.mkdir(parents=True)
    writer = JournalWriter(folder / NAME)
    executor = {"name": "local", "options": {}}
    writer.describe({"tag": "why", "shared": False, "executor": executor, "cwd": "."})
    writer.store_file_version("study.yaml", FILE, ())
    writer.begin(0.0, {})
    writer.perform = lambda _: None
    engine = Engine(load_text(FILE, discover(), file="study.yaml"))

    def happen(event: Event) -> None:
        writer.append(event, engine.handle(event))

    happen(Started(1.0, {}))
    for name in ("submit", "start"):
        happen(JobEvent(1.0, "sim.0", name))
    for row in range(looks):
        happen(Observed(2.0 + row * 0.01, "sim.0", "json-lines", {"energy": 1.0 + row % 7}))
    writer.end(3000.0, {"over": False})
    writer.close()


def took(state: Path, *words: str) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    command = [sys.executable, "-m", "ensemble_core.cli", *words, "--state", str(state)]
    before, began = os.times(), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    spent = after.children_user + after.children_system
    return time.monotonic() - began, spent - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    commands = {
        "why, of a rule on rows": ("why", "last", "observed"),
        "why, of a rule on a metric": ("why", "last", "metric"),
        "replay": ("replay", "last"),
    }
    with tempfile.TemporaryDirectory() as folder:
        kept_run(Path(folder), chosen.looks)
        print(f"{chosen.looks:,} looks; medians of {chosen.rounds}")
        found = [
            {name: took(Path(folder), *words) for name, words in commands.items()}
            for _ in range(chosen.rounds)
        ]
    for name in commands:
        clock, spent = (statistics.median(one[name][part] for one in found) for part in (0, 1))
        print(f"  {name:28} {clock:6.2f} s, of the processor {spent:6.2f} s")


if __name__ == "__main__":
    main()
