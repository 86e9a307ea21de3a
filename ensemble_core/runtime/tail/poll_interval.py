"""Poll intervals: how often followed files are polled, by what that costs and where the files are.

Where inotify tells of every write, polling is a safety net; where other nodes write, it is all that
there is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["LOCAL", "CACHING", "PollInterval"]

#: Types of file systems that no other node writes to: inotify tells of every write there.
LOCAL = frozenset(
    {
        "bcachefs", "btrfs", "devpts", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs",
        "jfs", "nilfs2", "ntfs3", "overlay", "proc", "ramfs", "reiserfs", "rootfs", "tmpfs", "vfat",
        "xfs", "zfs",
    }
)  # fmt: skip
#: Types whose client answers a look from memory for up to a minute, and asks when a file is opened.
CACHING = frozenset({"nfs", "nfs4"})


class _Polled(Protocol):
    """A file with the interval at which it is polled now."""

    @property
    def pace(self) -> object: ...


_File = TypeVar("_File", bound=_Polled)


class PollInterval(Generic[_File]):
    """Files that are polled together, and when their next turn is.

    The pause after a turn is ``shortest`` seconds when there was news, and half as long again as
    the last, up to ``idle``, when there was none; but it is ``per_cost`` times as long as the turn
    took, up to ``longest``.
    """

    def __init__(self, shortest: float, idle: float, longest: float, per_cost: float) -> None:
        self._shortest = shortest
        self._idle = idle
        self._longest = longest
        self._per_cost = per_cost
        self._files: dict[_File, None] = {}
        self._left: deque[_File] = deque()
        self._pause = shortest
        self._next = 0.0
        self._cost = 0.0
        self._news = False

    def add(self, file: _File) -> None:
        """Look at this file, too."""
        if not self._files:
            self._next = time.monotonic() + self._shortest
        self._files[file] = None

    def remove(self, file: _File) -> None:
        """Look at this file no more."""
        self._files.pop(file, None)

    def due(self) -> float:
        """When the next look is to be, by ``time.monotonic``; infinity where there is no file."""
        if self._left:
            return 0.0
        return self._next if self._files else float("inf")

    def hurry(self) -> None:
        """Look at every file now; at those that had their turn, once more after the others."""
        self._left = deque({**dict.fromkeys(self._left), **self._files})

    def turn(self, look: Callable[[_File], bool], slice_: float) -> list[_File]:
        """Look at files for at most about ``slice_`` seconds, and go on there the next time. Gives
        those with news."""
        began = time.monotonic()
        if not self._left:
            if not self._files or began < self._next:
                return []
            self._left = deque(self._files)
        news: list[_File] = []
        now = began
        while self._left and now - began < slice_:
            file = self._left.popleft()
            if file.pace is self and look(file):
                news.append(file)
            now = time.monotonic()
        self._cost += now - began
        self._news = self._news or bool(news)
        if not self._left:
            self._pause = self._shortest if self._news else min(self._pause * 1.5, self._idle)
            self._pause = min(max(self._pause, self._cost * self._per_cost), self._longest)
            self._next = now + self._pause
            self._cost, self._news = 0.0, False
        return news
