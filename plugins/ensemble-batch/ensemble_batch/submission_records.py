"""Records on disk of submissions and emitted events, for a later controller.

A batch is recorded before it is submitted, and an event before it is emitted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any, TextIO

from ensemble_core import JobEvent

#: A recorded event: its time, name and context.
Told = tuple[float, str, Mapping[str, Any]]


@dataclass(slots=True)
class Sent:
    """A recorded batch."""

    key: str
    jobs: Mapping[str, Mapping[str, Any]]  #: in order, with the context of their ``start`` event
    names: list[str] = field(default_factory=list)  #: under which the batch was submitted
    at: float = 0.0  #: time of the last submission, in seconds since the epoch
    ids: list[str] | None = None  #: the queue's ids once known: of each job, or of the whole batch
    grace: float | None = None  #: seconds from SIGTERM to SIGKILL for each of the jobs, if known
    holds: bool = False  #: the run has submitted the jobs with urgency 0


@dataclass(slots=True)
class Lost:
    """A recorded job that was reported as lost, although it may still run."""

    key: str  #: of its batch
    names: Sequence[str]  #: under which the batch was submitted
    files: Mapping[str, Any]
    queue_id: str | None


class Records:
    """The records in ``folder``, or only in memory if ``folder`` is ``None``.

    Raises :class:`OSError` if the file cannot be read or written.
    """

    #: Number of forgotten jobs after which the file is rewritten without them.
    renewal = 10_000

    def __init__(self, folder: str | None, file: str = "records.jsonl") -> None:
        self._path = None if folder is None else os.path.join(folder, file)
        self._file: TextIO | None = None
        #: Batches, events and cancelled jobs of an earlier controller, until :meth:`drop`.
        self.sent: dict[str, Sent] = {}
        self.told: dict[str, list[Told]] = {}
        self.cancelled: set[str] = set()
        #: Why jobs were given up, by name.
        self.verdicts: dict[str, str] = {}
        #: Jobs that were reported as lost, and those that have a newer attempt in the queue.
        self.lost: dict[str, Lost] = {}
        self.superseded: set[str] = set()
        #: Late successes of lost jobs that no attempt has used yet: their files and reports.
        self.late: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._emptied: set[str] = set()
        self._forgotten: set[str] = set()
        self._count = 0
        #: Whether there are records of an earlier controller.
        self.resumed = self._path is not None and os.path.exists(self._path)
        if self._path is not None:
            if self.resumed:
                self._load(self._path)
                if self._forgotten:
                    self._renew(self._path)
            self._file = self._open(self._path)
            if self.resumed:
                self._write(["\n"])  # the last line may be incomplete; empty lines are ignored

    def _open(self, path: str) -> TextIO:
        return open(path, "a", encoding="utf-8", errors="surrogateescape")

    def _load(self, path: str) -> None:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                # incomplete, at the end
                with suppress(ValueError, KeyError, TypeError, IndexError):
                    self.read(*json.loads(line))

    def read(self, kind: str, *rest: Any) -> None:
        """Read one line of the file."""
        if kind == "b":
            key, name, jobs, at, grace, holds = rest
            sent = self.sent.pop(key, None) or Sent(key, jobs)
            self.sent[key] = sent  # a job belongs to its last batch
            if name not in sent.names:
                sent.names.append(name)
            sent.at, sent.grace, sent.holds = at, grace, holds
        elif kind == "a":
            self.sent[rest[0]].ids = rest[1]
        elif kind == "e":
            told = [(when, name, context) for when, name, context in rest[1]]
            self.told.setdefault(rest[0], []).extend(told)
        elif kind == "c":
            self.cancelled.update(rest[0])
        elif kind == "v":
            self.verdicts[rest[0]] = rest[1]
        elif kind == "l":
            self.lost[rest[0]] = Lost(*rest[1:])
        elif kind == "s":
            self.superseded.update(rest[0])
        elif kind == "o":
            self.lost.pop(rest[0], None)
            self.superseded.discard(rest[0])
        elif kind == "w":
            self.late[rest[0]] = rest[1], rest[2]
        elif kind == "u":
            for job in rest[0]:
                self.late.pop(job, None)
        elif kind == "z":
            self._emptied.add(rest[0])
        elif kind == "f":
            self._forgotten.update(rest[0])

    def _renew(self, path: str) -> None:
        """Rewrite the file without the forgotten jobs."""
        gone, self._forgotten = self._forgotten, set()
        self.told = {job: told for job, told in self.told.items() if job not in gone}
        self.cancelled -= gone
        self.verdicts = {job: why for job, why in self.verdicts.items() if job not in gone}
        self.sent = {key: sent for key, sent in self.sent.items() if not gone >= sent.jobs.keys()}
        new = f"{path}.new"
        with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
            for key, sent in self.sent.items():
                file.writelines(_batch(sent, name) for name in sent.names)
                if sent.ids is not None:
                    file.write(_line("a", key, sent.ids))
            file.writelines(_line("e", job, told) for job, told in self.told.items())
            file.writelines(_line("z", path) for path in self._emptied)
            if self.cancelled:
                file.write(_line("c", sorted(self.cancelled)))
            file.writelines(_line("v", job, why) for job, why in self.verdicts.items())
            file.writelines(_line("l", job, *astuple(lost)) for job, lost in self.lost.items())
            if self.superseded:
                file.write(_line("s", sorted(self.superseded)))
            file.writelines(_line("w", job, *late) for job, late in self.late.items())
        os.replace(new, path)

    def _write(self, lines: Iterable[str]) -> None:
        if self._file is not None:
            # Not synced: entries that are lost in a power cut can be restored.
            self._file.write("".join(lines))
            self._file.flush()

    def was_emptied(self, path: str) -> bool:
        """Return whether the run has already truncated this output file."""
        return path in self._emptied

    def send(self, sent: Sent) -> None:
        """Record that a batch is about to be submitted under the last of its names."""
        self._write([_batch(sent, sent.names[-1])])

    def accept(self, key: str, ids: Sequence[str]) -> None:
        """Record that the queue has accepted a batch."""
        self._write([_line("a", key, list(ids))])

    def tell(self, events: Sequence[JobEvent]) -> None:
        """Record events that are about to be emitted."""
        if self._file is None:
            return
        together: dict[str, list[Told]] = {}
        for event in events:
            told = (event.timestamp, event.name, dict(event.context))
            together.setdefault(event.job, []).append(told)
        self._write(_line("e", job, told) for job, told in together.items())

    def cancel(self, jobs: Sequence[str]) -> None:
        """Record jobs that are about to be cancelled."""
        self._write([_line("c", list(jobs))])

    def doom(self, job: str, verdict: str) -> None:
        """Record that a job is about to be cancelled, because the queue seems to have lost it."""
        self._write([_line("v", job, verdict)])

    def lose(self, job: str, lost: Lost) -> None:
        """Record a job that is about to be reported as lost; :meth:`forget` keeps it."""
        self._write([_line("l", job, *astuple(lost))])

    def supersede(self, jobs: Sequence[str]) -> None:
        """Record lost jobs whose next attempts the queue may have."""
        self._write([_line("s", list(jobs))])

    def end_late(self, job: str) -> None:
        """Record that a lost job has ended."""
        self._write([_line("o", job)])

    def succeed_late(self, job: str, files: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Record a lost job that has succeeded, as the end of the next attempt."""
        self._write([_line("w", job, files, report)])

    def use(self, jobs: Sequence[str]) -> None:
        """Record that the late successes of these jobs end no attempt from now on."""
        self._write([_line("u", list(jobs))])

    def empty(self, path: str) -> None:
        """Record that this output file belongs to the run."""
        self._emptied.add(path)
        self._write([_line("z", path)])

    def forget(self, jobs: Sequence[str]) -> None:
        """Drop the records of jobs that are over and recorded in the run's journal."""
        self._write([_line("f", list(jobs))])
        self._count += len(jobs)
        if self._file is not None and self._path is not None and self._count >= self.renewal:
            self._count = 0
            try:
                self._load(self._path)
                self._renew(self._path)
            finally:
                self._file.close()
                self._file = self._open(self._path)
                self.drop()

    def drop(self) -> None:
        """Free the memory of an earlier controller's records."""
        self.sent.clear()
        self.told.clear()
        self.cancelled.clear()
        self.verdicts.clear()
        self.lost.clear()
        self.superseded.clear()
        self.late.clear()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk has already reported the failure
                self._file.close()
            self._file = None


def _batch(sent: Sent, name: str) -> str:
    return _line("b", sent.key, name, sent.jobs, sent.at, sent.grace, sent.holds)


def _line(*words: object) -> str:
    return json.dumps(words, separators=(",", ":")) + "\n"
