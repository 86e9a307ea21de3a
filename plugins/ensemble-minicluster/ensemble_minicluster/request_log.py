"""Durable log of a run's resize requests, so that requests can be repeated safely.

The log is the file ``minicluster.json`` in the run's folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ensemble_core import private_folder

#: Number of requests to keep. Only the newest is ever repeated.
_MOST = 200

Answered = Literal["", "granted", "denied", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """A request for more or fewer nodes."""

    delta: int  #: number of nodes to add; negative: to remove
    victims: tuple[int, ...] = ()  #: ranks to remove
    sent: bool = False
    outcome: Answered = ""  #: empty until it is known
    size: int | None = None
    reason: str = ""


class RequestLog:
    """The requests of a run, by name. Without a ``folder``, nothing is written to disk."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "minicluster.json"
        self._requests: dict[str, ResizeRequest] = {}
        #: Name of the executor that runs the jobs (``None`` for a new run), and what identifies its
        #: queue.
        self.executor: str | None = None
        self.queue = ""
        #: Why the log could not be read or written.
        self.trouble = ""
        try:
            self._read()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.trouble = f"cannot read {self._file}: {error}"

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        data = json.loads(self._file.read_text(encoding="utf-8"))
        self.executor = data["executor"]
        self.queue = data.get("queue", "")
        for name, fields in data["requests"].items():
            self._requests[name] = ResizeRequest(**{**fields, "victims": tuple(fields["victims"])})

    def get(self, request: str) -> ResizeRequest | None:
        """Return the record of a request, or ``None``."""
        return self._requests.get(request)

    def put(self, request: str, asked: ResizeRequest) -> None:
        """Record a request before it is carried out."""
        self._requests.pop(request, None)
        self._requests[request] = asked
        for old in list(self._requests)[:-_MOST]:
            del self._requests[old]
        self._write()

    def begin(self, executor: str, queue: str = "") -> None:
        """Record the executor and queue that the jobs use."""
        if (self.executor, self.queue) != (executor, queue):
            self.executor, self.queue = executor, queue
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        data: dict[str, Any] = {
            "executor": self.executor,
            "queue": self.queue,
            "requests": {name: asdict(asked) for name, asked in self._requests.items()},
        }
        new = self._file.with_suffix(".new")
        try:
            private_folder(self._file.parent)
            with new.open("w", encoding="utf-8") as file:
                json.dump(data, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._file)
        except OSError as error:
            self.trouble = f"cannot write {self._file}: {error.strerror or error}"
        else:
            self.trouble = ""
