"""Ledger: the durable record of what this run has submitted and told, for recovery after a crash.

A file of lines in the run's state folder, each a JSON list, only ever appended to. A batch is
written before it is submitted, its id in Slurm once it is known, each event before it is told. So a
later controller tells the same events with the same times. It need not survive a power cut: what
is missing at its end, Slurm and the wrappers' files still know. The loop's thread owns it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from ensemble_core import JobEvent
from ensemble_slurm.names import Batch

__all__ = ["Ledger", "Sent", "Told"]

#: An event as it is kept: its time, its name, its context.
Told = tuple[float, str, Mapping[str, Any]]


@dataclass(slots=True)
class Sent:
    """A batch that was written down. ``id`` is Slurm's, once it is known; ``at`` is when it was
    about to be submitted (seconds since the epoch); ``extra`` is each job's."""

    batch: Batch
    at: float
    extra: Mapping[str, Mapping[str, Any]]
    id: str | None = None


@dataclass(slots=True)
class _Kept:
    sent: dict[str, Sent] = field(default_factory=dict)
    told: dict[str, list[Told]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)


class Ledger:
    """The ledger in a folder; without one nothing is kept. It is written anew, without them, when
    so many jobs as ``renewal`` were forgotten.

    Raises :class:`OSError` where it cannot be read or written.
    """

    renewal = 10_000

    def __init__(self, folder: str | None, tag: str) -> None:
        self._tag = tag
        self._path = None if folder is None else os.path.join(folder, "ledger.jsonl")
        self._file: TextIO | None = None
        self._kept = _Kept()
        self._forgotten = 0
        #: Whether an earlier controller has left anything.
        self.resumed = False
        if self._path is None:
            return
        if os.path.exists(self._path):
            self.resumed = True
            self._load()
            if self._kept.forgotten:
                self._compact()
        self._file = self._open()
        if self.resumed:
            # The last line may have been cut short; an empty one is passed over.
            self._write(["\n"])

    def _load(self) -> None:
        assert self._path is not None
        with open(self._path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                self._read(line)

    def _open(self) -> TextIO:
        assert self._path is not None
        return open(self._path, "a", encoding="utf-8", errors="surrogateescape")

    # -- reading -------------------------------------------------------------------------------

    def _read(self, line: str) -> None:
        try:
            kind, *rest = json.loads(line)
            if kind == "b":
                key, attempt, group, indices, at, extra, *suffix = rest
                batch = Batch(self._tag, key, group, tuple(indices), attempt, *suffix)
                self._kept.sent[key] = Sent(batch, at, extra)
            elif kind == "a":
                self._kept.sent[rest[0]].id = rest[1]
            elif kind == "e":
                told = [(when, name, context) for when, name, context in rest[1]]
                self._kept.told.setdefault(rest[0], []).extend(told)
            elif kind == "c":
                self._kept.cancelled.update(rest[0])
            elif kind == "z":
                self._kept.emptied.add(rest[0])
            elif kind == "f":
                self._kept.forgotten.update(rest[0])
        except (ValueError, KeyError, TypeError, IndexError):
            return  # the end of a line that was being written

    def _compact(self) -> None:
        """Write anew what was not forgotten."""
        assert self._path is not None
        forgotten, self._kept.forgotten = self._kept.forgotten, set()
        self._kept.cancelled -= forgotten
        for job in forgotten:
            self._kept.told.pop(job, None)
        for sent in self._kept.sent.values():
            sent.extra = {job: extra for job, extra in sent.extra.items() if job not in forgotten}
        new = f"{self._path}.new"
        with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
            for key, sent in list(self._kept.sent.items()):
                if not sent.extra:
                    del self._kept.sent[key]
                    continue
                file.write(_line(*_batch(sent)))
                if sent.id is not None:
                    file.write(_line("a", key, sent.id))
            for job, events in self._kept.told.items():
                file.write(_line("e", job, events))
            for path in self._kept.emptied:
                file.write(_line("z", path))
            if self._kept.cancelled:
                file.write(_line("c", sorted(self._kept.cancelled)))
        os.replace(new, self._path)

    def sent(self) -> Mapping[str, Sent]:
        """The batches that were written down, by key, those of an earlier controller too."""
        return self._kept.sent

    def told(self, job: str) -> Sequence[Told]:
        """The events of a job that an earlier controller told."""
        return self._kept.told.get(job, ())

    def was_cancelled(self, job: str) -> bool:
        """Whether an earlier controller was told to cancel it."""
        return job in self._kept.cancelled

    def was_emptied(self, path: str) -> bool:
        """Whether the run has begun this file of output already."""
        return path in self._kept.emptied

    # -- writing -------------------------------------------------------------------------------

    def _write(self, lines: Iterable[str]) -> None:
        if self._file is not None:
            self._file.write("".join(lines))
            self._file.flush()

    def send(self, sent: Sent) -> None:
        """This batch is about to be submitted."""
        self._write([_line(*_batch(sent))])

    def accept(self, key: str, queue_id: str) -> None:
        """Slurm has taken a batch."""
        self._write([_line("a", key, queue_id)])

    def tell(self, events: Sequence[JobEvent]) -> None:
        """These events are about to be told."""
        if self._file is None:
            return
        together: dict[str, list[Told]] = {}
        for event in events:
            told = (event.timestamp, event.name, dict(event.context))
            together.setdefault(event.job, []).append(told)
        self._write(_line("e", job, told) for job, told in together.items())

    def cancel(self, jobs: Sequence[str]) -> None:
        """These jobs are about to be cancelled."""
        self._write([_line("c", list(jobs))])

    def empty(self, path: str) -> None:
        """This file of output is the run's from now on."""
        self._kept.emptied.add(path)
        self._write([_line("z", path)])

    def forget(self, jobs: Sequence[str]) -> None:
        """Nobody will ask for these jobs any more. Raises :class:`OSError`."""
        self._write([_line("f", list(jobs))])
        self._forgotten += len(jobs)
        if self._file is not None and self._forgotten >= self.renewal:
            self._forgotten = 0
            try:
                self._load()
                self._compact()
            finally:
                self._file.close()
                self._file = self._open()
                self.drop()

    def drop(self) -> None:
        """What an earlier controller told need not be kept in memory any longer."""
        self._kept.told.clear()
        self._kept.sent.clear()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what a full disk does not take, it has refused before
                self._file.close()
            self._file = None


def _line(*words: object) -> str:
    return json.dumps(words, separators=(",", ":")) + "\n"


def _batch(sent: Sent) -> tuple[object, ...]:
    batch = sent.batch
    said = ("b", batch.key, batch.attempt, batch.group, batch.indices, sent.at, sent.extra)
    return (*said, batch.suffix) if batch.suffix else said
