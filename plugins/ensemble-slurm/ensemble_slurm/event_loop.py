"""Event loop: a thread with a selector for timers, posted work and the listener's sockets.

Everything that knows how jobs stand lives in this one thread, so none of it needs a lock. Made and
driven by the loop.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["EventLoop"]

_LONGEST = 60.0


class EventLoop:
    """Runs what is posted, when it is due. ``idle`` is called after each round of work, ``broken``
    is told of an error that nobody caught."""

    def __init__(self, idle: Callable[[], None], broken: Callable[[str], None]) -> None:
        self.selector = selectors.DefaultSelector()
        self._idle = idle
        self._broken = broken
        self._posts: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self._wake_in, selectors.EVENT_READ, self._drain)
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="slurm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, what: Callable[[], None]) -> None:
        """Have it done in the thread. From any thread."""
        self._posts.append(what)
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_out, b"!")

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Have it done after so many seconds. In the thread."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), what))

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_in, 4096):
                pass

    def _work(self) -> None:
        while not self._ending:
            timeout = _LONGEST
            if self._timers:
                timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
            for key, _ in self.selector.select(0 if self._posts else timeout):
                self._do(key.data)
            for _ in range(len(self._posts)):
                self._do(self._posts.popleft())
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._do(heapq.heappop(self._timers)[2])
            self._do(self._idle)

    def _do(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:  # one job's trouble must not end the news of all others
            self._broken(traceback.format_exc())

    def stop(self) -> None:
        """End the thread, with what is posted already done. From another thread."""

        def end() -> None:
            self._ending = True

        if self._thread.ident is not None:
            self.post(end)
            self._thread.join()
        self.selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)
