"""Contract tests of QueueExecutor on a queue of two slots.

The queue is a separate process, so it outlives controllers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_batch import Batch, CannotTake, QueueExecutor, QueueJob
from ensemble_testing import ExecutorContract

from ensemble_core import Executor, Job, job_environment

SLOTS = 2


class Entry:
    """One job in the queue."""

    def __init__(self, id_: str, job: Mapping[str, Any]) -> None:
        self.row = QueueJob(id_, "waiting")
        self.job = job
        self.processes: list[subprocess.Popen[bytes]] = []
        self.began = 0.0
        self.why: str | None = None
        self.kill_at = float("inf")

    def start(self) -> None:
        job = self.job
        self.began = time.time()
        try:
            for path in (job["workdir"], os.path.dirname(job["out"]), os.path.dirname(job["err"])):
                os.makedirs(path, exist_ok=True)
            with open(job["out"], "ab") as out, open(job["err"], "ab") as err:
                for rank in range(job["tasks"]):
                    process = subprocess.Popen(
                        job["command"],
                        env={**job["environment"], "ENSEMBLE_TASK_RANK": str(rank)},
                        cwd=job["workdir"],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                    self.processes.append(process)
        except OSError as error:
            row = QueueJob(self.row.id, "over", 127 << 8, None, str(error), self.began)
            if error.filename != job["command"][0]:
                row = QueueJob(self.row.id, "over", None, "output", str(error))
            self.row = row
        else:
            self.row = QueueJob(self.row.id, "running", began=self.began, host="here")

    def signal(self, number: int) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def end(self, why: str | None) -> None:
        """Send SIGTERM to the processes, and SIGKILL after five seconds."""
        if self.why is None:
            self.why, self.kill_at = why, time.time() + 5
            self.signal(signal.SIGTERM)

    def look(self) -> None:
        """Enforce the time limit, and record the end of the job."""
        limit = self.job["duration"]
        if limit and time.time() > self.began + limit:
            self.end("timeout")
        if time.time() > self.kill_at:
            self.signal(signal.SIGKILL)
        codes = [process.poll() for process in self.processes]
        if None in codes:
            return
        self.signal(signal.SIGKILL)  # descendants
        for path in self.job["kept"]:
            if os.path.exists(path) and not os.path.getsize(path):
                os.unlink(path)
        worst = max((code for code in codes if code is not None), key=abs)
        status = worst << 8 if worst >= 0 else -worst
        times = (self.began, time.time(), "here")
        self.row = QueueJob(self.row.id, "over", status, self.why, self.why or "", *times)


class Line:
    """The queue: its jobs and a log of their changes."""

    def __init__(self) -> None:
        self.jobs: dict[str, Entry] = {}
        self.log: list[QueueJob] = []
        self.lock = threading.Condition()
        threading.Thread(target=self.work, daemon=True).start()

    def submit(self, name: str, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        ids = [f"{name}-{place}" for place in range(len(jobs))]
        with self.lock:
            for id_, job in zip(ids, jobs, strict=True):
                self.jobs.setdefault(id_, Entry(id_, job))
        return ids

    def rows(self) -> list[QueueJob]:
        with self.lock:
            return [entry.row for entry in self.jobs.values()]

    def end(self, ids: Collection[str]) -> None:
        with self.lock:
            for id_ in ids:
                entry = self.jobs.get(id_)
                if entry is not None and entry.row.state == "waiting":
                    self.told(entry, QueueJob(id_, "over", None, "cancel", "ended"))
                elif entry is not None and entry.row.state == "running":
                    entry.end("cancel")

    def news(self, after: int) -> tuple[int, list[QueueJob]]:
        """Return the log's length and its entries from ``after``; wait up to 0.5 s for one."""
        with self.lock:
            self.lock.wait_for(lambda: len(self.log) > after >= 0, 0.5)
            return len(self.log), self.log[after:] if after >= 0 else []

    def told(self, entry: Entry, row: QueueJob) -> None:
        entry.row = row
        self.log.append(row)
        self.lock.notify_all()

    def work(self) -> None:
        while True:
            with self.lock:
                running = [each for each in self.jobs.values() if each.row.state == "running"]
                for entry in running:
                    entry.look()
                    if entry.row.state == "over":
                        self.told(entry, entry.row)
                free = SLOTS - sum(
                    each.job["cores"] for each in running if each.row.state == "running"
                )
                waiting = [each for each in self.jobs.values() if each.row.state == "waiting"]
                for entry in sorted(waiting, key=lambda each: -each.job["urgency"]):
                    if entry.job["urgency"] and entry.job["cores"] <= free:
                        free -= entry.job["cores"]
                        entry.start()
                        self.told(entry, entry.row)
            time.sleep(0.02)


class Manager(BaseManager):
    """Connection to the queue's process."""


THE_LINE: list[Line] = []


def the_line() -> Line:
    if not THE_LINE:
        THE_LINE.append(Line())
    return THE_LINE[0]


Manager.register("line", the_line)
Manager.register("other", list)


class Served(QueueExecutor):
    """An executor for :class:`Line`."""

    name: ClassVar[str] = "served"
    most_jobs = 20
    poll = 2.0

    def __init__(self, address: Any) -> None:
        self.address = address

    def connect(self) -> None:
        manager = Manager(self.address, b"secret")
        manager.connect()
        self.line = manager.line()  # type: ignore[attr-defined]  # registered
        self.leaving = False

    def disconnect(self) -> None:
        self.leaving = True

    def asked(self, what: str, *words: Any) -> Any:
        try:
            return getattr(self.line, what)(*words)
        except (OSError, EOFError, TypeError) as error:
            # Python's connection raises TypeError if another thread closes it during a write.
            if isinstance(error, TypeError) and "NoneType" not in str(error):
                raise
            raise CannotTake(f"the line is away: {error!r}") from None

    def wrong(self, job: Job) -> str | None:
        if job.nodes > 1 or job.gpus or job.cores > SLOTS:
            return f"there is one machine with {SLOTS} cores and no GPUs: ask for less"
        return None

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        jobs = [
            {
                "command": job.command,
                "environment": {**job_environment(), **batch.environment(job)},
                "workdir": place.workdir,
                "out": place.out,
                "err": place.err,
                "kept": place.kept,
                "tasks": job.tasks,
                "cores": job.cores,
                "urgency": job.urgency,
                "duration": job.duration,
            }
            for job, place in zip(batch.jobs, batch.places, strict=True)
        ]
        ids: list[str] = self.asked("submit", batch.name, jobs)
        return ids

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        rows: list[QueueJob] = self.asked("rows")
        return rows

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        ids = [f"{name}-{place}" for place in range(size)]
        return ids if {row.id for row in self.asked("rows")} >= set(ids) else None

    def end_jobs(self, ids: Collection[str]) -> None:
        self.asked("end", list(ids))

    def watch(self, told: Callable[[Iterable[QueueJob]], None]) -> None:
        seen, _ = self.asked("news", -1)
        told(())
        while not self.leaving:
            seen, rows = self.asked("news", seen)
            if rows:
                told(rows)

    def nodes(self) -> Mapping[str, float]:
        busy = sum(row.state == "running" for row in self.asked("rows"))
        return {"cores.up": SLOTS, "cores.free": max(0, SLOTS - busy)}


@pytest.fixture(scope="module")
def line() -> Iterator[Any]:
    """Yield the address of a queue."""
    manager = Manager(("127.0.0.1", 0), b"secret", ctx=get_context("fork"))
    manager.start()
    # If the last object of a server is dropped, Python closes the connection of the thread that
    # drops it, and only that one. So this keeps an object, and threads close theirs as they end.
    _kept = manager.other()  # type: ignore[attr-defined]  # registered
    yield manager.address
    manager.shutdown()


@pytest.mark.timeout(300)
class TestServed(ExecutorContract):
    """All contract tests."""

    contains = False
    many = 20

    @pytest.fixture(autouse=True)
    def _line(self, line: Any, _end_long_jobs: Path) -> None:
        self.address = line

    def make_executor(self) -> Executor:
        return Served(self.address)
