"""The text of a file at the end of an attempt, to find what the next attempt of its job changes.

Programs that restart from a checkpoint may overwrite the end of their log in place, or truncate it
to the position of the checkpoint. Only the lines that they have changed are new.
"""

from __future__ import annotations

import zlib

#: At most so many bytes at the end of a file are stored.
LONGEST = 4 << 20


class EarlierText:
    """The bytes of a file from ``start`` to the position up to which it was read.

    :meth:`changed_lines` compares them with the current bytes, which it then stores instead.
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

    def common_lines(self, now: bytes) -> int:
        """Return the position up to which whole lines are the same in ``now``, the current bytes
        from ``start`` on.
        """
        same = _common(self.text, now)
        return self.start + now.rfind(b"\n", 0, same) + 1

    def changed_lines(self, now: bytes, *, final: bool) -> bytes:
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
