"""Results: the cost of tables of a million jobs, and of storing their rows during a run.

Runs ``--jobs`` jobs with parameters, a result and a printed column on an executor that emits events
as fast as they are received. Copies the job rows of its journal to more indices, up to ``--rows``.
Measures the seconds and memory of ``ensemble results`` as Parquet, CSV and JSON, each in a separate
process. For comparison, prints the time that reading the same number of events would take. With
``--rounds``, also compares the events per second of runs with and without job rows, in pairs.

    python benchmarks/results_rate.py [--rows N] [--jobs N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ensemble_core import Emit, Event, Executor, Job, JobEvent, Observed, Run
from ensemble_core.config import load_text
from ensemble_core.journal.damage_detection import WRITE_ALL, add_functions, job_checksum
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.controller import Runtime

REGISTRY = discover()
ACTIVE = 200
FILE = f"""
jobs:
  - name: sim
    command: run {{T}} {{seed}}
    parameters: {{T: [2.0, 2.1, 2.2, 2.3], seed: {{from: 1, to: {ACTIVE // 4}}}}}
    observe: {{json-lines: {{}}}}
    result: {{E: last.energy}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{trigger: job-success, name: sim, repetitions: unlimited,
     action: {{name: submit, label: sim, with: {{parameters: {{T: 2.25, seed: 1}}}}}}}}
"""
LIFE = ("submit", "validate", "depend", "priority", "alloc", "start")
END = ("release", "free", "clean")


class Flood(Executor):
    """Executor that emits all events of a job at once, until ``jobs`` were submitted."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self.runtime: Runtime | None = None

    def open(self, run: Run, emit: Emit) -> None:
        self._emit, self._clock = emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        now = self._clock()
        events: list[Event] = []
        for job in jobs:
            self.left -= 1
            events += [JobEvent(now, job.id, name) for name in LIFE]
            events.append(Observed(now, job.id, "json-lines", {"energy": -1.25 + job.index}))
            events.append(JobEvent(now + 1.0, job.id, "finish", {"status": 0}))
            events += [JobEvent(now + 1.0, job.id, name) for name in END]
        self._emit(events)
        if self.left <= 0:
            assert self.runtime is not None
            threading.Timer(0.5, self.runtime.stop).start()
            self.left = sys.maxsize

    def cancel(self, jobs: Sequence[str]) -> None:
        now = self._clock()
        self._emit([JobEvent(now, job, "clean") for job in jobs])

    def close(self) -> None:
        return


class WithoutRows(JournalWriter):
    """Journal writer without job rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.keeps_rows = False


def flood(folder: Path, jobs: int, writer_of: type[JournalWriter] = JournalWriter) -> float:
    """Run a number of jobs; return events per second."""
    folder.mkdir(parents=True)
    writer = writer_of(folder / NAME)
    executor = {"name": "local", "options": {}}
    writer.describe({"tag": folder.name, "shared": False, "executor": executor, "cwd": "."})
    writer.store_file_version("study.yaml", FILE, ())
    writer.begin(time.time(), {})
    flooding = Flood(jobs)
    runtime = flooding.runtime = Runtime(
        load_text(FILE, REGISTRY, file="study.yaml"),
        flooding,
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=folder / "output",
        tag="benchmark",
        journal=writer,
        maker="benchmark",
    )
    began = time.process_time()
    outcome = runtime.run()
    took = time.process_time() - began
    writer.end(time.time(), {"over": True, "exit_code": 0})
    writer.close()
    return outcome.report.events / took


def multiply(path: Path, rows: int) -> None:
    """Copy job rows to more indices."""
    connection = sqlite3.connect(path)
    connection.create_function("job_checksum", 4, job_checksum)
    (there,) = connection.execute("SELECT max(number) + 1 FROM job_rows").fetchone()
    done = there
    while done < rows:
        connection.execute(
            "INSERT INTO job_rows SELECT name, number + ?1, layout,"
            " job_checksum(name, number + ?1, layout, row), 0, row FROM job_rows WHERE number < ?2",
            (done, min(done, rows - done)),
        )
        done *= 2
    connection.execute(
        "UPDATE event_lists SET jobs = (SELECT sum(crc + replaced) FROM job_rows)"
        " + (SELECT sum(crc) FROM job_layouts)"
    )
    add_functions(connection)
    connection.executescript(WRITE_ALL)
    connection.commit()
    connection.close()


def cost(state: Path, *arguments: str) -> str:
    """Return wall time, CPU time and peak memory of a command in a separate process."""
    code = "from ensemble_core.cli.main import main; main()"
    command = [sys.executable, "-c", code, *arguments, "--state", str(state)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(arguments)}: {status}")
    wall, used = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
    return f"{wall:.1f} s ({used:.1f} s of processors), {usage.ru_maxrss >> 10} MB"


def reading(path: Path) -> float:
    """Return events per second of only reading the journal."""
    with Journal(path) as journal:
        began = time.perf_counter()
        events = sum(1 for _ in journal.rows())
        return events / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ensemble-results-") as home:
        state = Path(home)
        ratios = []
        for number in range(given.rounds):
            bare = flood(state / f"bare{number}", given.jobs, WithoutRows)
            kept = flood(state / f"kept{number}", given.jobs)
            ratios.append(kept / bare)
        if ratios:
            print(
                "events per second of processor time with rows of jobs against without: "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )
        journal = state / "runs" / "many" / NAME
        flood(journal.parent, given.jobs)
        size = journal.stat().st_size / given.jobs
        rate = reading(journal)
        multiply(journal, given.rows)
        more = (journal.stat().st_size - size * given.jobs) / max(1, given.rows - given.jobs)
        print(f"bytes a job: {size:,.0f}, of which its row {more:,.0f}")
        for form in ("parquet", "csv", "json"):
            file = state / f"jobs.{form}"
            print(
                f"{given.rows:,} jobs as {form}: {cost(state, 'results', 'many', '-o', str(file))}"
            )
        chosen = cost(state, "jobs", "many", "--where", "E > 100", "--csv")
        print(f"jobs --where 'E > 100', as CSV: {chosen}")
        events = 11 * given.rows
        print(f"to read {events:,} events alone would take {events / rate:.0f} s ({rate:,.0f}/s)")
    print(f"memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")


if __name__ == "__main__":
    main()
