"""Finds out which followed files have new data, and when to poll next.

Inotify does not report writes of other nodes. On shared file systems, files are therefore also
polled every few seconds.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ensemble_core.posix import filesystem
from ensemble_core.runtime.tail.output_file import File

if TYPE_CHECKING:
    from ensemble_core.runtime.tail.inotify import InotifyWatches


#: For how many seconds files are checked before those with new data are read.
_SLICE = 0.02
#: Polling intervals in seconds: if other nodes may write, and if inotify reports every write.
_REMOTE, _NET = 2.0, 5.0
#: For how many seconds no inotify watches are added after their limit was reached.
_FULL = 10.0
#: How many folders on the path to a file may be created during one check.
_DEPTH = 64


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


class ChangeDetector:
    """Finds changed files with inotify and by polling. Used by one thread.

    ``say`` receives a warning if inotify cannot report all writes.
    """

    def __init__(self, say: Callable[[str], None], *, inotify: bool = True) -> None:
        self._warn = say
        self._inotify = inotify
        self._watches: InotifyWatches[File] | None = None
        self._full_until = 0.0
        self._said: set[str] = set()
        self._kinds: dict[int, str] = {}
        self._told = PollInterval(_NET, _NET, 60.0, 100.0)
        self._remote = PollInterval(_REMOTE, _REMOTE, 30.0, 10.0)
        self._here = PollInterval(0.1, 1.0, 10.0, 20.0)
        self._paces = (self._told, self._remote, self._here)
        self._pace_of: dict[File, PollInterval] = {}
        self._fresh: deque[File] = deque()

    def open(self) -> None:
        """Start inotify."""
        if not self._inotify:
            return
        try:
            # Imported only here, because most runs follow no file, and other systems have no
            # inotify.
            from ensemble_core.runtime.tail.inotify import InotifyWatches

            self._watches = InotifyWatches()
        except (ImportError, OSError) as error:
            cause = error.strerror if isinstance(error, OSError) else error
            self._warn_once(
                "inotify",
                f"inotify is unavailable ({cause}): files are polled every 0.1 to 1 s",
            )

    def close(self) -> None:
        """Stop watching."""
        if self._watches is not None:
            self._watches.close()
            self._watches = None

    def fileno(self) -> int | None:
        """Return inotify's file descriptor, which becomes readable after a change, or ``None``."""
        return None if self._watches is None else self._watches.fileno()

    def due(self) -> float:
        """Return the time of the next poll, as in ``time.monotonic``."""
        return 0.0 if self._fresh else min(pace.due() for pace in self._paces)

    def add(self, files: Iterable[File]) -> None:
        """Watch these files."""
        self._fresh += files

    def remove(self, file: File) -> None:
        """Stop watching this file."""
        file.over = True
        if (pace := self._pace_of.pop(file, None)) is not None:
            pace.remove(file)
        if self._watches is not None:
            self._watches.drop(file)

    def news(self) -> list[File]:
        """Return the files that have something to read.

        This checks files that inotify has reported, new files, and files whose poll is due.
        """
        news: dict[File, None] = {}
        if self._watches is not None:
            told, lost = self._watches.changed()
            news.update((file, None) for file in told if self._check_file(file, told=True))
            if lost:
                for pace in self._paces:
                    pace.poll_now()
        began = time.monotonic()
        while self._fresh and time.monotonic() - began < _SLICE:
            file = self._fresh.popleft()
            if not file.over and self._check_file(file):
                news[file] = None
        for pace in self._paces:
            news.update((file, None) for file in pace.turn(self._check_file, _SLICE))
        return list(news)

    def _check_file(self, file: File, *, told: bool = False) -> bool:
        """Check a file, and watch it if necessary. Return True if it has something to read."""
        news = file.look()
        if file.dropped:
            self.remove(file)
            return False
        for _ in range(_DEPTH):
            if not self._add_watch(file, told=told):
                break
            # Check the file again, because changes before the watch were not reported.
            news = file.look() or news
        pace = self._choose_interval(file)
        earlier = self._pace_of.get(file)
        if earlier is not pace:
            if earlier is not None:
                earlier.remove(file)
            self._pace_of[file] = pace
            pace.add(file)
        return news

    def _add_watch(self, file: File, *, told: bool) -> bool:
        """Watch this file with inotify. Return True if it was not watched before."""
        watches = self._watches
        if watches is None or time.monotonic() < self._full_until:
            return False
        known = file in watches
        try:
            if file.identity is not None:
                if known and file.watched == file.identity:
                    return False
                file.watched = file.identity
                return watches.watch(file, file.path)
            if known and file.watched is None and not told:
                return False
            file.watched = None
            return watches.expect(file, file.path)
        except OSError as error:
            self._full_until = time.monotonic() + _FULL
            self._warn_once(
                "full",
                "no more inotify watches for this user (fs.inotify.max_user_watches: "
                f"{os.strerror(error.errno or 0)}): further files are polled every 0.1 to 1 s",
            )
            return False

    def _choose_interval(self, file: File) -> PollInterval:
        device = self._device(file)
        if device is not None and device != file.device:
            file.device = device
            kind = self._kind(device, file.path)
            file.cached = kind in CACHING
        if file.device is not None and self._kinds[file.device] not in LOCAL:
            return self._remote
        if file.is_moving:
            return self._here
        return self._told if self._watches is not None and file in self._watches else self._here

    def _device(self, file: File) -> int | None:
        if file.identity is not None:
            return file.identity[0]
        if file.device is not None:
            return file.device
        folder = os.path.dirname(os.path.realpath(file.path))
        while True:
            try:
                return os.stat(folder).st_dev
            except OSError:
                folder, last = os.path.dirname(folder), folder
                if folder == last:
                    return None

    def _kind(self, device: int, path: str) -> str:
        """Return the type of a file system.

        Each file system is looked up and reported only once.
        """
        kind = self._kinds.get(device)
        if kind is None:
            kind = self._kinds[device] = filesystem(path)
            if kind not in LOCAL:
                self._warn_once(
                    f"on {kind}",
                    f"the file system of {os.path.dirname(path)} ({kind or 'of unknown type'}) "
                    "does not report writes of other nodes: jobs' output there is polled every "
                    f"{_REMOTE:.0f} s",
                )
        return kind

    def _warn_once(self, cause: str, message: str) -> None:
        if cause not in self._said:
            self._said.add(cause)
            self._warn(message)


class PollInterval:
    """Files that are polled together, and the time of the next round: by file system and cost.

    - After a round that has found new data, the pause is ``shortest`` seconds.
    - After any other round, the pause is 1.5 times the previous one, up to ``idle``.
    - A pause is at least ``per_cost`` times the duration of the round, up to ``longest``.
    """

    def __init__(self, shortest: float, idle: float, longest: float, per_cost: float) -> None:
        self._shortest = shortest
        self._idle = idle
        self._longest = longest
        self._per_cost = per_cost
        self._files: dict[File, None] = {}
        self._left: deque[File] = deque()
        self._pause = shortest
        self._next = 0.0
        self._cost = 0.0
        self._news = False

    def add(self, file: File) -> None:
        """Poll this file from now on."""
        if not self._files:
            self._next = time.monotonic() + self._shortest
        self._files[file] = None

    def remove(self, file: File) -> None:
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

    def turn(self, look: Callable[[File], bool], slice_: float) -> list[File]:
        """Poll files for about ``slice_`` seconds at most, and return those with new data.

        The next call continues the round.
        """
        began = time.monotonic()
        if not self._left:
            if not self._files or began < self._next:
                return []
            self._left = deque(self._files)
        news: list[File] = []
        now = began
        while self._left and now - began < slice_:
            file = self._left.popleft()
            if file in self._files and look(file):
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
