"""Thread pool that can run tasks after a delay."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Tasks:
    """A pool of ``count`` threads. ``failed`` is called with any exception that a task raises."""

    def __init__(self, count: int, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._news = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"kubernetes task {n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def after(self, seconds: float, task: Callable[[], None]) -> None:
        """Run a task after a delay in seconds."""
        with self._news:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), task))
            self._news.notify()

    def close(self) -> None:
        """Drop the tasks that have not started, and wait for the running ones."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._closed:
                    wait = self._due[0][0] - time.monotonic() if self._due else 3600.0
                    if wait <= 0:
                        break
                    self._news.wait(wait)
                if self._closed:
                    return
                task = heapq.heappop(self._due)[2]
            try:
                task()
            except Exception as error:
                self._failed(error)
