"""Wakeup of the follower's thread: by other threads, by inotify, or by a timeout."""

from __future__ import annotations

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
        self._lock = threading.Lock()
        self._set = False
        self._ends: tuple[int, int] | None
        try:
            self._ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._ends = None

    def set(self) -> None:
        """Wake the sleeper, or have its next sleep end at once."""
        with self._lock:
            if not self._set:
                self._set = True
                if self._ends is not None:
                    os.write(self._ends[1], b"\0")

    def clear(self) -> None:
        """The sleeper has woken; it looks at what it was woken for after this."""
        with self._lock:
            if self._set:
                self._set = False
                if self._ends is not None:
                    os.read(self._ends[0], 1)

    def sleep(self, until: float, ear: int | None) -> None:
        """Sleep until it is set, ``ear`` is readable, or it is ``until`` (``time.monotonic``)."""
        ears = [] if ear is None else [ear]
        if self._ends is not None:
            ears.append(self._ends[0])
        poll = select.poll()
        for fd in ears:
            poll.register(fd, select.POLLIN)
        while not self._set:
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._ends is None:
                left = min(left, self._SHORT)
            # In milliseconds, rounded up: a sleep that ends too early is another round.
            if poll.poll(None if left == float("inf") else left * 1000 + 1):
                return

    def close(self) -> None:
        """Nobody sleeps any more."""
        with self._lock:
            self._set = True
            ends, self._ends = self._ends, None
            for fd in ends or ():
                os.close(fd)
