"""The answers to requests for another size, kept: asked again, the same one is given.

A file in the service's state folder remembers them beyond a restart, and also which requests were
begun: what became of one that was cut short is not known, and it is not carried out a second time.
Called by ``resizes``, from several threads; a line is appended for each, and now and then the file
is written anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from ensemble_core.errors import EnsembleError
from ensemble_core.resizer import Resized
from ensemble_core.service.access import write_private

__all__ = ["Answers", "Entry"]

#: Answers that are remembered; of more, the oldest are forgotten.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that was begun, and its answer once there is one."""

    delta: int
    answer: Resized | None = None


class Answers:
    """What was asked under which name, and what the answer was. ``path`` None keeps no file."""

    def __init__(self, path: Path | None, most: int = MOST) -> None:
        self._path, self._most = path, most
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._file: IO[bytes] | None = None
        self._lines = 0
        self._lock = threading.Lock()  # requests are begun and ended in worker threads
        if path is not None:
            self._read(path)
            self._rewrite()

    def get(self, member: str, request: str) -> Entry | None:
        """What is known of a request."""
        with self._lock:
            return self._entries.get((member, request))

    def begin(self, member: str, request: str, delta: int) -> None:
        """It is about to be carried out. Raises :class:`EnsembleError` where that cannot be put on
        record: then it must not be."""
        with self._lock:
            self._keep(member, request, Entry(delta))
            try:
                self._append({"member": member, "request": request, "delta": delta})
            except EnsembleError:
                del self._entries[member, request]
                raise

    def end(self, member: str, request: str, delta: int, answer: Resized) -> None:
        """It was answered."""
        line = {"member": member, "request": request, "delta": delta, "answer": _plain(answer)}
        # Where the file takes no more, it still has the beginning: it is not carried out again.
        with self._lock, contextlib.suppress(EnsembleError):
            self._keep(member, request, Entry(delta, answer))
            self._append(line)

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, member: str, request: str, entry: Entry) -> None:
        self._entries[member, request] = entry
        self._entries.move_to_end((member, request))
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    # -- the file -------------------------------------------------------------------------------

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - kept open
            data = json.dumps(line).encode() + b"\n"
            if self._file.write(data) != len(data):
                # Half a line would spoil the next one too.
                self._file.write(b"\n")
                raise OSError(28, "not all of it could be written")
        except OSError as error:
            raise EnsembleError(
                "the request cannot be put on record",
                cause=f"{self._path}: {error.strerror}",
                code="no-record",
                transient=True,
            ) from None
        self._lines += 1
        if self._lines > 4 * self._most:
            self._rewrite()

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise EnsembleError(
                f"cannot read {path}", cause=error.strerror or str(error), code="cannot-read"
            ) from None
        for line in data.splitlines():
            try:
                content = json.loads(line)
                answer = content.get("answer")
                entry = Entry(int(content["delta"]), Resized(**answer) if answer else None)
                self._keep(str(content["member"]), str(content["request"]), entry)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a line that was cut short: its writer died over it

    def _rewrite(self) -> None:
        """The file with one line for each request."""
        assert self._path is not None
        self._close()
        lines = []
        for (member, request), entry in self._entries.items():
            line: dict[str, Any] = {"member": member, "request": request, "delta": entry.delta}
            if entry.answer is not None:
                line["answer"] = _plain(entry.answer)
            lines.append(json.dumps(line) + "\n")
        write_private(self._path, "".join(lines).encode())
        os.chmod(self._path, 0o600)
        self._lines = len(lines)


_FIELDS = tuple(each.name for each in fields(Resized))


def _plain(answer: Resized) -> dict[str, object]:
    return {name: getattr(answer, name) for name in _FIELDS}
