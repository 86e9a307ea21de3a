"""The answers to requests for another size, kept: asked again, the same one is given.

A file in the service's state folder remembers them beyond a restart, and also which requests were
begun: what became of one that was cut short is not known, and it is not carried out a second time.
Called by ``resizes``, from several threads; a line is appended for each, and now and then the file
is written anew.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import IO

from ensemble_core import EnsembleError, Resized
from ensemble_service.access import write_private

__all__ = ["Answers", "Entry"]

#: Answers that are remembered; of more, the oldest are forgotten.
MOST = 10_000
#: Seconds for writing to end when the service stops.
_CLOSING = 1.0


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
        #: Whether the file may end with half a line.
        self._torn = False
        self._lock = threading.Lock()  # requests are begun and ended in worker threads
        if path is not None:
            self._read(path)
            self._rewrite()

    def get(self, member: str, request: str) -> Entry | None:
        """What is known of a request. Does not wait for the disk."""
        return self._entries.get((member, request))

    def begin(self, member: str, request: str, delta: int) -> None:
        """It is about to be carried out. Raises :class:`EnsembleError` where that cannot be put on
        record: then it must not be."""
        self.turn(member, None, (request, delta))

    def end(self, member: str, request: str, delta: int, answer: Resized) -> None:
        """It was answered."""
        self.turn(member, (request, delta, answer), None)

    def turn(
        self, member: str, ended: tuple[str, int, Resized] | None, begun: tuple[str, int] | None
    ) -> None:
        """:meth:`end` of one request of a member and :meth:`begin` of its next, with one write;
        either may be missing. Where it raises, the first counts as ended all the same."""
        data = b""
        if ended is not None:
            data = _line(member, *ended)
        if begun is not None:
            data += _line(member, *begun)
        if not data:
            return
        with self._lock:
            if ended is not None:
                self._keep(member, ended[0], Entry(*ended[1:]))
            if begun is not None:
                self._keep(member, begun[0], Entry(begun[1]))
            try:
                self._append(data)
            except EnsembleError:
                # What ended has its beginning on record still: it is not carried out again.
                if begun is not None:
                    del self._entries[member, begun[0]]
                    raise

    def close(self) -> None:
        """Give the file back; not where somebody waits for the disk and does not come back."""
        if self._lock.acquire(timeout=_CLOSING):
            try:
                self._close()
            finally:
                self._lock.release()

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

    def _append(self, data: bytes) -> None:
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - kept open
            # Half a line would spoil the next one too.
            whole = b"\n" + data if self._torn else data
            self._torn = True
            if self._file.write(whole) != len(whole):
                raise OSError(28, "not all of it could be written")
            self._torn = False
        except OSError as error:
            raise EnsembleError(
                "the request cannot be put on record",
                cause=f"{self._path}: {error.strerror}",
                code="no-record",
                transient=True,
            ) from None
        self._lines += data.count(b"\n")
        if self._lines > 4 * self._most:
            with contextlib.suppress(EnsembleError):  # it is on record; the file is only long
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
        lines = [
            _line(member, request, entry.delta, entry.answer)
            for (member, request), entry in self._entries.items()
        ]
        write_private(self._path, b"".join(lines))
        self._lines, self._torn = len(lines), False


def _line(member: str, request: str, delta: int, answer: Resized | None = None) -> bytes:
    # Put together by hand, for a worker thread holds up the event loop while it does this.
    line = f'{{"member": {_quoted(member)}, "request": {_quoted(request)}, "delta": {delta:d}'
    if answer is not None:
        line += (
            f', "answer": {{"outcome": {_quoted(answer.outcome)}, "before": {answer.before:d}, '
            f'"asked": {answer.asked:d}, "granted": {answer.granted:d}, '
            f'"reason": {_quoted(answer.reason)}, "code": {_quoted(answer.code)}, '
            f'"transient": {"true" if answer.transient else "false"}}}'
        )
    return line.encode() + b"}\n"
