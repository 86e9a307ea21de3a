"""Lets the follower's thread sleep until another thread or inotify wakes it, or time is up."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time


class Wakeup:
    """Wakes one sleeping thread. Any thread may call ``set``, until ``close`` is called."""

    #: Seconds between checks if the process has no file descriptor left.
    _SHORT = 0.05

    def __init__(self) -> None:
        self._set = threading.Event()
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake the sleeping thread. If it does not sleep, end its next sleep immediately."""
        if not self._set.is_set():
            self._set.set()
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Reset the wakeup. Call this after waking up and before looking for work."""
        self._set.clear()
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):  # it was not set
                os.eventfd_read(self._fd)

    def sleep(self, until: float, ear: int | None) -> None:
        """Sleep until :meth:`set` is called, the descriptor ``ear`` is readable, or time is up.

        ``until`` is a time as in ``time.monotonic``.
        """
        poll = select.poll()
        for fd in (ear, self._fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while not self._set.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._fd is None:
                left = min(left, self._SHORT)
            # Milliseconds, rounded up, so that the sleep does not end too early.
            if poll.poll(None if left == float("inf") else left * 1000 + 1):
                return

    def close(self) -> None:
        """Release the descriptor. After that, no thread may sleep or call ``set``."""
        self._set.set()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
