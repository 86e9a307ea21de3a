"""Logs that several attempts of a job write: finds what an attempt overwrites of an earlier one.

Programs that restart from a checkpoint may overwrite the end of their log in place, or truncate it
to the position of the checkpoint. Only the lines that they have changed are new.
"""

from __future__ import annotations

import os
import zlib

from ensemble_core.quick_dataclass import dataclass
from ensemble_core.runtime.tail.file_reading import REMEMBERED, Identity, ReadPosition
from ensemble_core.runtime.tail.observer_feed import ObserverFeed

#: At most so many bytes at the end of a file are stored.
LONGEST = 4 << 20
#: How many bytes before the position are stored for a later attempt.
_PLACE_BYTES = 32


class EarlierText:
    """The bytes of a file from ``start`` to the position up to which it was read.

    :meth:`read_overwritten` compares them with the current bytes, which it then stores instead.
    """

    def __init__(self, start: int, text: bytes) -> None:
        self.start = start
        self._packed: bytes | None = zlib.compress(text, 1)
        self._text = b""
        #: Number of bytes in memory until it is used.
        self.size = len(self._packed)

    @property
    def text(self) -> bytes:
        """The stored bytes."""
        if self._packed is not None:
            self._text, self._packed = zlib.decompress(self._packed), None
        return self._text

    @property
    def end(self) -> int:
        """Position after the last stored byte."""
        return self.start + len(self.text)

    def read_overwritten(
        self,
        fd: int,
        status: os.stat_result,
        position: ReadPosition,
        feed: ObserverFeed,
        *,
        final: bool = False,
    ) -> ReadPosition | None:
        """Feed the lines that the later attempt has overwritten, and return the position.

        If it has truncated or replaced the file, return the position after the lines that are still
        the same, or ``None`` if none is; this text is then no longer needed.
        """
        now = os.pread(fd, len(self.text), self.start)
        identity = (status.st_dev, status.st_ino)
        if status.st_size < position.offset or position.identity != identity:
            same = self._common_lines(now)
            if same <= self.start:
                return None
            feed.truncated(repeats=False)
            before = now[: same - self.start]
            return ReadPosition(identity, same, before[-REMEMBERED:], same)
        if now != self.text and (final or not feed.in_line):
            lines = self._changed_lines(now, final=final)
            if position.offset == self.end:
                position.before = now[-len(position.before) :] if position.before else b""
            if lines:
                feed.feed(lines)
        return position

    def _common_lines(self, now: bytes) -> int:
        """Return the position up to which whole lines are the same in ``now``, the current bytes
        from ``start`` on.
        """
        same = _common(self.text, now)
        return self.start + now.rfind(b"\n", 0, same) + 1

    def _changed_lines(self, now: bytes, *, final: bool) -> bytes:
        """Return the lines in which a byte has changed, with line ends, and store the new bytes.

        ``now`` has as many bytes as the stored text. Unless ``final``, the last changed line waits
        if its end has not changed: the program may be about to overwrite it.
        """
        text = self.text
        if now == text:
            return b""
        first = _common(text, now)
        last = len(now) - _common(text[::-1], now[::-1])
        start = now.rfind(b"\n", 0, first) + 1
        end = now.find(b"\n", last - 1) + 1
        if not end or (end > last and not final):
            end = now.rfind(b"\n", 0, last) + 1
        if end <= start:
            return b""
        old = text[start:end]
        self._text = text[:start] + now[start:end] + text[end:]
        found, at = [], 0
        for line in now[start:end].splitlines(keepends=True):
            if old[at : at + len(line)] != line:
                found.append(line)
            at += len(line)
        return b"".join(found)


@dataclass(slots=True)
class Place:
    """The position up to which a file was read, for a later attempt of the job."""

    path: str
    identity: Identity
    offset: int
    #: The bytes before this position; if the job failed, the earlier text as well.
    before: bytes
    text: EarlierText | None = None

    @classmethod
    def of(cls, position: ReadPosition, path: str) -> Place | None:
        """Return the place for this position, or ``None`` if the file was not read."""
        if position.identity is None:
            return None
        return cls(path, position.identity, position.offset, position.before[-_PLACE_BYTES:])


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # bisection, because a loop over the bytes is slow
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
