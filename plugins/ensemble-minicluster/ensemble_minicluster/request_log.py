"""Request log: this run's resize requests and their answers, so that a retry is idempotent.

A controller that was killed before it knew an answer is followed by one that asks again under the
same name. This is how the second knows which nodes the first chose, and what was answered already.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Asked", "RequestLog"]

#: Requests that are kept; who asks again asks for the newest.
_MOST = 200

Answered = Literal["", "granted", "denied", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. ``delta`` is what the service is asked for, ``victims`` are the ranks that are
    to go; ``outcome`` is empty until it is answered."""

    delta: int
    victims: tuple[int, ...] = ()
    sent: bool = False
    outcome: Answered = ""
    size: int | None = None
    reason: str = ""


class RequestLog:
    """Requests by name. Without a ``folder`` it lasts as long as the process.

    ``executor`` is the name of the one that the run's jobs went to; ``None`` for a new run.
    ``queue`` says which queue of that executor it was, and is empty where that is not known.
    ``trouble`` says why it could not be read or written, and is empty if it could.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "minicluster.json"
        self._requests: dict[str, Asked] = {}
        self.executor: str | None = None
        self.queue = ""
        self.trouble = ""
        try:
            self._read()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.trouble = f"{self._file} cannot be read: {error}"

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        data = json.loads(self._file.read_text(encoding="utf-8"))
        self.executor = data["executor"]
        self.queue = data.get("queue", "")
        for name, fields in data["requests"].items():
            self._requests[name] = Asked(**{**fields, "victims": tuple(fields["victims"])})

    def get(self, request: str) -> Asked | None:
        """The record of a request; ``None`` where there is none."""
        return self._requests.get(request)

    def put(self, request: str, asked: Asked) -> None:
        """Remember a request, before anything is done about it."""
        self._requests.pop(request, None)
        self._requests[request] = asked
        for old in list(self._requests)[:-_MOST]:
            del self._requests[old]
        self._write()

    def begin(self, executor: str, queue: str = "") -> None:
        """Remember which executor, and which queue of it, the jobs go to."""
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
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with new.open("w", encoding="utf-8") as file:
                json.dump(data, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._file)
        except OSError as error:
            self.trouble = f"{self._file} cannot be written: {error.strerror or error}"
        else:
            self.trouble = ""
