"""Poll intervals: how often files are polled, by file system and cost of a poll."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

#: Types of file systems to which no other node writes, so that inotify reports every write.
LOCAL = frozenset(
    {
        "bcachefs", "btrfs", "devpts", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs",
        "jfs", "nilfs2", "ntfs3", "overlay", "proc", "ramfs", "reiserfs", "rootfs", "tmpfs", "vfat",
        "xfs", "zfs",
    }
)  # fmt: skip
#: Types of file systems that cache the state of a file for up to a minute, or until it is opened.
CACHING = frozenset({"nfs", "nfs4"})


class _Polled(Protocol):
    """Any file that has a poll interval."""

    @property
    def pace(self) -> object: ...


_File = TypeVar("_File", bound=_Polled)


class PollInterval(Generic[_File]):
    """Files that are polled together, and the time of the next round.

    - After a round that has found new data, the pause is ``shortest`` seconds.
    - After any other round, the pause is 1.5 times the previous one, up to ``idle``.
    - A pause is at least ``per_cost`` times the duration of the round, up to ``longest``.
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
        """Poll this file from now on."""
        if not self._files:
            self._next = time.monotonic() + self._shortest
        self._files[file] = None

    def remove(self, file: _File) -> None:
        """Stop polling this file."""
        self._files.pop(file, None)

    def due(self) -> float:
        """Return the time of the next poll (as in ``time.monotonic``), or infinity without
        files.
        """
        if self._left:
            return 0.0
        return self._next if self._files else float("inf")

    def poll_now(self) -> None:
        """Poll every file now. Files that have been polled in this round come last."""
        self._left = deque({**dict.fromkeys(self._left), **self._files})

    def turn(self, look: Callable[[_File], bool], slice_: float) -> list[_File]:
        """Poll files for about ``slice_`` seconds at most, and return those with new data.

        The next call continues the round.
        """
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
