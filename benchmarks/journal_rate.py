"""Cost of the journal during a run, and the time to recover a run from it.

Prints events per second of a run with its journal compared with the same run without it, the time
to recover the engine after 1,000, 100,000 and (``--jobs 1000000``) more finished jobs compared with
the first, and bytes on disk per job. The executor emits ten events per job as fast as they are
received, so that only Ensemble is measured.

    python benchmarks/journal_rate.py [--jobs N] [--rounds N] [--state DIR]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ensemble_core.config import load_text
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Emit, Executor, Run
from ensemble_core.posix import shared_storage
from ensemble_core.runtime.controller import Runtime, Watcher

REGISTRY = discover()
MAKER = "benchmark"
#: Number of active jobs: the end of each submits the next.
ACTIVE = 200
GROUPS = 10

FILE = "jobs:\n" + "".join(
    f"  - {{name: group{number}, command: 'true', count: {ACTIVE // GROUPS}}}\n"
    for number in range(GROUPS)
) + "rules:\n" + "".join(
    f"  - {{trigger: start, action: {{name: submit, label: group{number}}}}}\n"
    f"  - {{trigger: job-success, name: group{number}, repetitions: 1000000000,"
    f" action: {{name: submit, label: group{number}, with: {{count: 1}}}}}}\n"
    f"  - {{trigger: metric, name: mean.group{number}-duration, when: '> 1e9',"
    " action: {name: log, message: slow}}\n"
    for number in range(GROUPS)
)  # fmt: skip

LIFE = ("submit", "validate", "depend", "priority", "alloc", "start")
END = ("release", "free", "clean")


class Flood(Executor):
    """Executor that emits all events of a job at once, until ``jobs`` jobs have ended."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self.enough = threading.Event()

    def open(self, run: Run, emit: Emit) -> None:
        self._emit, self._clock = emit, run.clock

    def submit(self, jobs: Sequence[Job]) -> None:
        now = self._clock()
        events: list[Event] = []
        for job in jobs:
            if self.left <= 0:
                self.enough.set()
                return
            self.left -= 1
            events += [JobEvent(now, job.id, name) for name in LIFE]
            events.append(JobEvent(now + 1.0, job.id, "finish", {"status": 0}))
            events += [JobEvent(now + 1.0, job.id, name) for name in END]
        self._emit(events)

    def cancel(self, jobs: Sequence[str]) -> None:
        return

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return dict.fromkeys(jobs, True)

    def close(self) -> None:
        return


class Cut(BaseException):
    """Raised to simulate the death of the controller."""


class Counter(Watcher):
    """Watcher that counts events and kills the run after the last one."""

    def __init__(self, jobs: int) -> None:
        self.events = 0
        # One event before the last snapshot: the longest possible recovery.
        self._most = 10 * jobs - 1

    def event(self, event: Event) -> None:
        self.events += 1
        if self.events > self._most:
            raise Cut


class CutOff(Runtime):
    """Run that is killed before its final snapshot."""

    def _last_snapshot(self, journal: JournalWriter) -> None:
        return


def flood(ensemble: Ensemble, jobs: int, folder: Path | None) -> float:
    """Run until ``jobs`` have ended; return the seconds."""
    writer = None
    if folder is not None:
        folder.mkdir(parents=True)
        writer = JournalWriter(folder / NAME)
        writer.describe({"tag": folder.name, "shared": False})
        writer.store_file_version("benchmark.yaml", FILE, ())
        writer.begin(time.time(), {})
    counter = Counter(jobs)
    with tempfile.TemporaryDirectory() as output:
        runtime = CutOff(
            ensemble,
            Flood(jobs),
            actions=REGISTRY.actions,
            observers=REGISTRY.observers,
            watchers=[counter],
            folder=Path(output) / "output",
            tag="benchmark",
            journal=writer,
            maker=MAKER,
        )
        began = time.perf_counter()
        try:
            runtime.run()
        except Cut:
            took = time.perf_counter() - began
        else:
            raise SystemExit("the flood ended before it was cut off")
    if writer is not None:
        writer.close()
    return took


def recovered(folder: Path) -> tuple[float, int]:
    """Return the seconds to recover the engine from the journal, and the events that it handled."""
    began = time.perf_counter()
    with Journal(folder / NAME) as journal:
        result = recover(
            journal,
            lambda text: load_text(text.text, REGISTRY, file=text.file),
            MAKER,
        )
    return time.perf_counter() - began, result.replayed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100_000, help="maximum number of finished jobs")
    parser.add_argument("--rate-jobs", type=int, default=20_000, help="jobs for events per second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state", type=Path, help="folder for the journals")
    options = parser.parse_args()
    ensemble = load_text(FILE, REGISTRY, file="benchmark.yaml")
    home = Path(tempfile.mkdtemp(prefix="ensemble-journal-", dir=options.state))
    try:
        storage = shared_storage(home)
        print(f"journals on {storage or 'a local file system'}: {home}")
        ratios = []
        for number in range(options.rounds):
            bare = flood(ensemble, options.rate_jobs, None)
            kept = flood(ensemble, options.rate_jobs, home / f"rate{number}")
            ratios.append(bare / kept)
            shutil.rmtree(home / f"rate{number}")
        rate = 10 * options.rate_jobs / bare
        print(
            f"events/s with the journal against without: {statistics.median(ratios):.2f} "
            f"(rounds {min(ratios):.2f} to {max(ratios):.2f}; without: {rate:,.0f}/s)"
        )
        first: float | None = None
        size = 1_000
        while size <= options.jobs:
            folder = home / f"resume{size}"
            flood(ensemble, size, folder)
            times, replayed = [], 0
            for _ in range(options.rounds):
                took, replayed = recovered(folder)
                times.append(took)
            took = statistics.median(times)
            first = first or took
            total = sum(file.stat().st_size for file in folder.iterdir())
            print(
                f"{size:>9,} finished jobs: recovered in {took / first:.2f} of the first "
                f"({took * 1000:.0f} ms, {replayed:,} events handled again), "
                f"{total / size:,.0f} bytes a job"
            )
            shutil.rmtree(folder)
            size *= 10 if size >= 100_000 else 100
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
