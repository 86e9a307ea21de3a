"""Reuse: the speed of looking up jobs of an earlier run, and the time that a second run saves.

The first run has ``--jobs`` jobs of one second each; each one prints a row and reads a file. Its
executor emits events as fast as they are received. The second run reuses its jobs. Measures the
seconds to read the first run's jobs, look-ups per second, and wall and CPU seconds of the whole
second run; on a busy machine, compare CPU seconds only. The time that the first run would take on
``--slots`` slots is calculated from the number of jobs.

    python benchmarks/reuse_rate.py [--jobs 100000] [--slots N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ensemble_core import Emit, Event, Executor, Job, JobEvent, Observed, Run
from ensemble_core.config import load_text
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.reusable_jobs import EarlierJobs
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.identity import Source
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.controller import Runtime
from ensemble_core.runtime.identities import identify
from ensemble_core.runtime.input_files import Inputs

REGISTRY = discover()
FILE = """
jobs:
  - name: sim
    command: "{{here}}/sim --seed {{seed}}"
    parameters: {{seed: {{from: 1, to: {jobs}}}}}
    observe: {{json-lines: {{}}}}
    result: {{E: last.energy}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
"""
SECONDS = 1.0


class Flood(Executor):
    """Executor that emits all events of a job at once."""

    def open(self, run: Run, emit: Emit) -> None:
        self._emit, self._clock = emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        for at in range(0, len(jobs), 1000):
            now = self._clock()
            events: list[Event] = []
            for job in jobs[at : at + 1000]:
                events += [JobEvent(now, job.id, name) for name in ("submit", "start")]
                events.append(Observed(now, job.id, "json-lines", {"energy": -1.25 + job.index}))
                events.append(JobEvent(now + SECONDS, job.id, "finish", {"status": 0}))
                events.append(JobEvent(now + SECONDS, job.id, "clean"))
            self._emit(events)

    def cancel(self, jobs: Sequence[str]) -> None:
        return

    def close(self) -> None:
        return


def play(folder: Path, text: str, file: str, reuse: Sequence[str] = ()) -> tuple[float, Runtime]:
    """Execute a run; return the seconds."""
    folder.mkdir(parents=True)
    writer = JournalWriter(folder / NAME)
    executor = {"name": "local", "options": {}}
    writer.describe({"tag": folder.name, "shared": False, "executor": executor, "cwd": "."})
    writer.store_file_version(file, text, ())
    writer.begin(time.time(), {})
    began = time.perf_counter()
    earlier = None
    if reuse:
        earlier = EarlierJobs()
        for run in reuse:
            earlier.read(Path(run))
    runtime = Runtime(
        load_text(text, REGISTRY, file=file).begun(folder.name, str(folder), reuse),
        Flood(),
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=folder / "output",
        tag=folder.name,
        journal=writer,
        maker="benchmark",
        earlier=earlier,
    )
    outcome = runtime.run()
    writer.end(time.time(), {"over": outcome.over, "exit_code": outcome.exit_code})
    seconds = time.perf_counter() - began
    writer.close()
    return seconds, runtime


def look_ups(folder: Path, text: str, file: str) -> tuple[float, float, float, int]:
    """Return the seconds to read jobs and to look them up (wall, CPU), and the number found."""
    began = time.perf_counter()
    earlier = EarlierJobs()
    earlier.read(folder)
    read = time.perf_counter() - began
    group = load_text(text, REGISTRY, file=file).begun("x", str(folder)).groups["sim"]
    jobs = list(group.jobs(0))
    began, used = time.perf_counter(), time.process_time()
    source, inputs, found = Source.of(group), Inputs(), 0
    for at in range(0, len(jobs), 100):
        seen: dict[str, str | None] = {}
        for job in jobs[at : at + 100]:
            identity, _ = identify(job, group, source, inputs, seen)
            found += earlier.take(identity) is not None
    return read, time.perf_counter() - began, time.process_time() - used, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    options = parser.parse_args()
    text = FILE.format(jobs=options.jobs)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        program = folder / "sim"
        program.write_text("#!/bin/sh\n" + "# a program\n" * 1000)
        program.chmod(0o755)
        file = str(folder / "study.yaml")
        seconds, _ = play(folder / "first", text, file)
        print(f"first run, without its jobs' own time: {seconds:.1f} s")
        read, looked, used, found = look_ups(folder / "first", text, file)
        print(f"reading {options.jobs} earlier jobs: {read:.2f} s")
        print(
            f"look-ups: {options.jobs / looked:,.0f} a second, {options.jobs / used:,.0f} a second "
            f"of CPU time, {found} found"
        )
        used = time.process_time()
        seconds, runtime = play(folder / "second", text, file, [str(folder / "first")])
        reused = runtime.engine.snapshot()["count.sim.reused"]
        first = options.jobs * SECONDS / options.slots
        used = time.process_time() - used
        print(f"second run: {seconds:.1f} s ({used:.1f} s of CPU time), {reused:.0f} reused")
        print(
            f"first run on {options.slots} slots: {first:,.0f} s, {first / seconds:.0f} times that"
        )


if __name__ == "__main__":
    main()
