"""The part of a pod's log that is in its file, although the node rotates the log.

A kubelet keeps some MiB of a log (10 by default) and serves only the newest file of it. So a log
that is read again may begin later than before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

#: How many bytes are compared at the start of a log, and searched as the end of the copy.
_COMPARED = 4096


class LogCopy:
    """The file with the copy of a pod's log. With ``resumed``, an earlier controller may have
    written part of the file.
    """

    def __init__(self, path: str, *, resumed: bool) -> None:
        self._path = path
        #: The first bytes of the log, how much of it was copied, and the last bytes of the copy.
        self._head = self._tail = b""
        self._offset = 0
        if resumed and os.path.exists(path):
            with open(path, "rb") as file:
                self._head = file.read(_COMPARED)
                self._offset = file.seek(0, os.SEEK_END)
                file.seek(max(0, self._offset - _COMPARED))
                self._tail = file.read()

    def add(self, pieces: Iterator[bytes]) -> bool:
        """Append what is new in a log that is read from its beginning.

        Return False, without a change, if the log is not the one that was copied.
        """
        passed, left = b"", self._offset
        for piece in pieces:
            if left:
                old, piece = piece[:left], piece[left:]
                head = self._head[self._offset - left :]
                if not (old.startswith(head) or head.startswith(old)):
                    return False
                left -= len(old)
                passed = (passed + old)[-_COMPARED:]
                if not left and not self._tail.endswith(passed):
                    return False
            if piece:
                self._append(piece)
        return True

    def add_rotated(self, log: bytes) -> bool:
        """Append what is new in the whole of a log that was rotated.

        Return False if the log does not have the end of the copy, so bytes may be missing.
        """
        end = self._end_in(log)
        if not end and not self._tail.endswith(b"\n"):
            # Observers read no number before a zero byte: here, its last digits may be missing.
            self._append(b"\0 (the pod's log was rotated here)\n")
        self._offset = end
        self._head = log[: min(self._offset, _COMPARED)]
        self._append(log[self._offset :])
        return end > 0

    def _end_in(self, log: bytes) -> int:
        """Return where the copy ends in a log, or 0. The log may begin with its last lines."""
        at = log.rfind(self._tail)
        if at >= 0:
            return at + len(self._tail)
        start = 0
        while start := self._tail.find(b"\n", start) + 1:
            if start < len(self._tail) and log.startswith(self._tail[start:]):
                return len(self._tail) - start
        return 0

    def _append(self, new: bytes) -> None:
        with open(self._path, "ab") as file:
            file.write(new)
        if len(self._head) < _COMPARED and self._offset == len(self._head):
            self._head = (self._head + new)[:_COMPARED]
        self._offset += len(new)
        self._tail = (self._tail + new)[-_COMPARED:]
