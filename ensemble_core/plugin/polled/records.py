"""Record on disk of what a polled executor has submitted and told, for a later controller.

A file of lines in the run's state folder, each a JSON list, only ever appended to. A batch is
written before it is handed in, the queue's ids once they are known, each event before it is told:
so a later controller tells the same events with the same times. Used by ``PolledExecutor``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from ensemble_core.model.events import JobEvent

__all__ = ["Records", "Sent", "Told"]

#: An event as it is kept: its time, its name, its context.
Told = tuple[float, str, Mapping[str, Any]]
#: So many forgotten jobs, and the file is written anew without them.
_RENEWAL = 10_000


@dataclass(slots=True)
class Sent:
    """A batch that was written down: its key, its jobs with the context of their ``start``, the
    names it was handed in under, and the queue's ids of its jobs once they are known."""

    key: str
    jobs: dict[str, Mapping[str, Any]]
    names: list[str] = field(default_factory=list)
    ids: list[str] | None = None


class Records:
    """The record in a folder; without one (``None``) nothing is kept on disk.

    Raises :class:`OSError` where it cannot be read or written.
    """

    def __init__(self, folder: str | None) -> None:
        self._path = None if folder is None else os.path.join(folder, "records.jsonl")
        self._file: TextIO | None = None
        self.sent: dict[str, Sent] = {}
        self.told: dict[str, list[Told]] = {}
        self.cancelled: set[str] = set()
        self._emptied: set[str] = set()
        self._forgotten: set[str] = set()
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._load(self._path)
            self._renew()

    def _load(self, path: str) -> None:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError, IndexError):  # cut short at the end
                    self._read(*json.loads(line))

    def _read(self, kind: str, *rest: Any) -> None:
        if kind == "b":
            key, name, jobs = rest
            self.sent.setdefault(key, Sent(key, jobs)).names.append(name)
        elif kind == "a":
            self.sent[rest[0]].ids = rest[1]
        elif kind == "e":
            told = [(when, name, context) for when, name, context in rest[1]]
            self.told.setdefault(rest[0], []).extend(told)
        elif kind == "c":
            self.cancelled.update(rest[0])
        elif kind == "z":
            self._emptied.add(rest[0])
        elif kind == "f":
            self._forgotten.update(rest[0])

    def _renew(self) -> None:
        """Write anew what was not forgotten."""
        assert self._path is not None
        gone = self._forgotten
        self._forgotten = set()
        self.told = {job: told for job, told in self.told.items() if job not in gone}
        self.cancelled -= gone
        self.sent = {key: sent for key, sent in self.sent.items() if not gone >= sent.jobs.keys()}
        new = f"{self._path}.new"
        with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
            for key, sent in self.sent.items():
                file.writelines(_line("b", key, name, sent.jobs) for name in sent.names)
                if sent.ids is not None:
                    file.write(_line("a", key, sent.ids))
            file.writelines(_line("e", job, told) for job, told in self.told.items())
            file.writelines(_line("z", path) for path in self._emptied)
            file.write(_line("c", sorted(self.cancelled)))
        os.replace(new, self._path)
        if self._file is not None:
            self._file.close()
        self._file = open(self._path, "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115  # closed by close()

    def _write(self, lines: Iterable[str]) -> None:
        if self._file is not None:
            self._file.writelines(lines)
            self._file.flush()

    def was_emptied(self, path: str) -> bool:
        """Whether the run has begun this file of output already."""
        return path in self._emptied

    def send(self, key: str, name: str, jobs: Mapping[str, Mapping[str, Any]]) -> Sent:
        """This batch is about to be handed in, under this name."""
        self._write([_line("b", key, name, jobs)])
        sent = self.sent.setdefault(key, Sent(key, dict(jobs)))
        sent.names.append(name)
        return sent

    def accept(self, sent: Sent, ids: Sequence[str]) -> None:
        """The queue has taken a batch."""
        sent.ids = list(ids)
        self._write([_line("a", sent.key, sent.ids)])

    def tell(self, events: Sequence[JobEvent]) -> None:
        """These events are about to be told."""
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
        self._emptied.add(path)
        self._write([_line("z", path)])

    def forget(self, jobs: Sequence[str]) -> None:
        """Nobody will ask for these jobs any more."""
        self._write([_line("f", list(jobs))])
        self._forgotten.update(jobs)
        if self._file is not None and len(self._forgotten) >= _RENEWAL:
            assert self._path is not None
            sent, self.sent, self.told, self.cancelled = self.sent, {}, {}, set()
            self._load(self._path)
            self._renew()
            self.sent, self.told = sent, {}

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what a full disk does not take, it has refused before
                self._file.close()
            self._file = None


def _line(*words: object) -> str:
    return json.dumps(words, separators=(",", ":")) + "\n"
