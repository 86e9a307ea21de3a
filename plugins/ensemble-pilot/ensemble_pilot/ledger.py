"""Ledger of the controller: which jobs the run has submitted, and where each one was sent.

It is a file of JSON lines with checksums, and each line is synced before anything follows from it:

- ``["v",1,RUN_ID]``: the first line
- ``["j",TIME,JOB]``: a job was submitted
- ``["n",PILOT,TIME]``: a pilot is requested
- ``["b",PILOT,TIME]``: it has begun
- ``["o",PILOT]``: it is over: its ledgers were read, and what followed stands before this line
- ``["p",PILOT,RANK,[ID,…]]``: jobs are sent to a node
- ``["w",[ID,…]]``: jobs wait again, because they never started
- ``["e",ID,TIME,NAME,CONTEXT]``: the controller itself has ended a job with this event
- ``["f",[ID,…]]``: the run needs these jobs no longer
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ensemble_core import ExecutorError, Job, JobEvent
from ensemble_core.local.ledger_lines import strip_checksum, with_checksum
from ensemble_core.local.protocol import decode, encode_event, encode_job, line, to_event, to_job

__all__ = ["STEP", "Entry", "PilotLedger"]

#: Seconds between two events of a job that the controller emits: each must be a microsecond later.
STEP = 2e-6
_NAMES = ("submit", "validate", "depend", "priority")


class Entry:
    """A submitted job. ``place`` is the pilot and the rank of the node to which it was sent."""

    __slots__ = ("ended", "job", "number", "place", "submitted")

    def __init__(self, job: Job, number: int, submitted: float) -> None:
        self.job = job
        self.number = number
        self.submitted = submitted
        self.place: tuple[int, int] | None = None
        #: Events with which the controller itself has ended the job.
        self.ended: list[JobEvent] = []

    def first_events(self) -> list[JobEvent]:
        """Return the events of the submission. They are the same at each call."""
        contexts: Mapping[str, Mapping[str, Any]] = {
            "submit": {"urgency": self.job.urgency},
            "priority": {"priority": self.job.urgency},
        }
        return [
            JobEvent(self.submitted + place * STEP, self.job.id, name, contexts.get(name, {}))
            for place, name in enumerate(_NAMES)
        ]


class PilotLedger:
    """The ledger in the file ``path``. Raises :class:`ExecutorError` if it cannot be used.

    :meth:`submit` may be called from any thread; all other methods from one.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self.run_id = run_id
        self.jobs: dict[str, Entry] = {}
        #: The pilots that are not over: when each was requested, and when it began.
        self.pilots: dict[int, tuple[float, float | None]] = {}
        self.last_pilot = 0
        #: True if an earlier controller of the run has written this ledger.
        self.resumed = path.exists()
        self._numbers = 0
        self._lock = threading.Lock()
        self._unsynced = False
        try:
            if self.resumed:
                self._read()
            self._rewrite()
        except OSError as error:
            raise self._error(error) from None

    def _error(self, error: OSError) -> ExecutorError:
        return ExecutorError(
            f"cannot read or write the ledger of the run's pilots: {self._path}",
            cause=error.strerror or str(error),
            hint="make its folder writable and free some space",
            code="no-ledger",
            transient=True,
        )

    def _read(self) -> None:
        for raw in self._path.read_bytes().splitlines(keepends=True):
            try:
                message = decode(strip_checksum(raw, False).decode("ascii"))
            except ValueError:
                if raw.endswith(b"\n"):
                    raise ExecutorError(
                        f"the ledger of the run's pilots is damaged: {self._path}",
                        cause="a line does not match its checksum",
                        hint="restore the file, or end the run's jobs in the queue and start a new "
                        "run: without it, it is unknown which jobs have started",
                        code="no-ledger",
                    ) from None
                continue  # the last line was being written: nothing has followed from it
            self._take(message)

    def _take(self, message: Any) -> None:
        what, first, *rest = message
        if what == "v":
            self.run_id = rest[0]
        elif what == "j":
            self._numbers += 1
            job = to_job(rest[0])
            self.jobs[job.id] = Entry(job, self._numbers, first)
        elif what == "n":
            self.pilots[first] = rest[0], None
            self.last_pilot = max(self.last_pilot, first)
        elif what == "b" and first in self.pilots:
            self.pilots[first] = self.pilots[first][0], rest[0]
        elif what == "o":
            self.pilots.pop(first, None)
        elif what == "p":
            for name in rest[1]:
                self.jobs[name].place = first, rest[0]
        elif what == "w":
            for name in first:
                self.jobs[name].place = None
        elif what == "e":
            event = to_event(message)
            assert isinstance(event, JobEvent)
            self.jobs[first].ended.append(event)
        elif what == "f":
            for name in first:
                self.jobs.pop(name, None)

    def _rewrite(self) -> None:
        """Write a new file with what is needed, and open it to append lines."""
        # The numbers of pilots are not used again, even if all pilots are over.
        texts = [line(["v", 1, self.run_id])]
        texts += [line(["n", self.last_pilot, 0.0]), line(["o", self.last_pilot])]
        for number, (requested, began) in self.pilots.items():
            texts.append(line(["n", number, requested]))
            texts += [] if began is None else [line(["b", number, began])]
        for name, entry in self.jobs.items():
            texts.append(line(["j", entry.submitted, encode_job(entry.job)]))
            if entry.place is not None:
                texts.append(line(["p", *entry.place, [name]]))
            texts += [encode_event(event) for event in entry.ended]
        draft = self._path.with_suffix(".new")
        self._fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0
        try:
            self._write(texts)
            os.fsync(self._fd)
            os.rename(draft, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(self._fd)
            raise

    def _write(self, texts: Iterable[bytes]) -> None:
        """Append lines. If that fails, the file is as before."""
        data = b"".join(map(with_checksum, texts))
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)

    def add(self, *messages: list[object]) -> None:
        """Write lines and apply them. They are not synced yet. Raises :class:`ExecutorError`."""
        with self._lock:
            try:
                self._write(map(line, messages))
            except OSError as error:
                raise self._error(error) from None
            self._unsynced = True
            for message in messages:
                self._take(message)

    def add_events(self, events: Iterable[JobEvent]) -> None:
        """Write events by which the controller itself ends jobs."""
        self.add(*(["e", e.job, e.timestamp, e.name, dict(e.context)] for e in events))

    def sync(self) -> None:
        """Wait until all lines are on the disk. Raises :class:`ExecutorError`."""
        if self._unsynced:
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                raise self._error(error) from None
            self._unsynced = False

    def submit(self, jobs: Iterable[Job], now: float) -> list[Entry]:
        """Write and sync jobs. If this raises :class:`ExecutorError`, none of them is submitted."""
        messages = [["j", now, encode_job(job)] for job in jobs]
        with self._lock:
            size = self._size
            try:
                self._write(map(line, messages))
                os.fdatasync(self._fd)
            except OSError as error:
                os.ftruncate(self._fd, size)
                os.lseek(self._fd, size, os.SEEK_SET)
                self._size = size
                raise self._error(error) from None
            made = []
            for job in jobs:
                self._numbers += 1
                made.append(Entry(job, self._numbers, now))
            self.jobs.update((entry.job.id, entry) for entry in made)
        return made

    def close(self) -> None:
        os.close(self._fd)
