"""Wakeup of the follower's thread: by other threads, by inotify, or by a timeout."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes one sleeping thread. ``set`` may be called from any thread, until ``close``.

    Where no more descriptors can be had, the sleeper looks up twenty times a second instead.
    """

    _SHORT = 0.05

    def __init__(self) -> None:
        self._set = threading.Event()
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake the sleeper, or have its next sleep end at once."""
        if not self._set.is_set():
            self._set.set()
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """The sleeper has woken; it looks at what it was woken for after this."""
        self._set.clear()
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):  # nobody woke it
                os.eventfd_read(self._fd)

    def sleep(self, until: float, ear: int | None) -> None:
        """Sleep until it is set, ``ear`` is readable, or it is ``until`` (``time.monotonic``)."""
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
            # In milliseconds, rounded up: a sleep that ends too early is another round.
            if poll.poll(None if left == float("inf") else left * 1000 + 1):
                return

    def close(self) -> None:
        """Nobody sleeps any more, and nobody sets it."""
        self._set.set()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
