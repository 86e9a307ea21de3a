"""How often somebody may ask, and how long a request may take; the guard looks at each request."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from typing import Any

from ensemble_service.send_queue import Refused

__all__ = ["Buckets", "Deadlines"]


class Buckets:
    """For each key so many turns a second, and ``burst`` at once; bounded memory."""

    def __init__(self, rate: float, burst: float, most: int = 20_000) -> None:
        self._rate, self._burst, self._most = rate, max(1.0, burst), most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        """Take a turn, if there is one."""
        level, since = self._levels.get(key, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1.0
        self._levels[key] = (level - 1.0 if allowed else level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return allowed


class Deadlines:
    """Cancels what takes longer than ``seconds``: one timer for all requests that are under way.

    An earlier deadline of the caller's own is gRPC's to hold: it cancels the request itself.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = max(0.0, seconds)
        #: When the time of each is over, by the event loop's clock, the earliest first.
        self._due: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> asyncio.Task[Any]:
        """The time of the current task runs from now, until :meth:`end`."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        self._due[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look)
        return task

    def end(self, task: asyncio.Task[Any]) -> bool:
        """It is over; whether it was cancelled for its time."""
        self._due.pop(task, None)
        if task not in self._over:
            return False
        self._over.discard(task)
        if sys.version_info >= (3, 11):
            task.uncancel()
        return True

    def refusal(self) -> Refused:
        """What is said of what took too long."""
        return Refused("DEADLINE_EXCEEDED", f"it took longer than {self._seconds:.3g} s")

    def _look(self) -> None:
        self._timer = None
        for task, due in list(self._due.items()):
            loop = task.get_loop()
            if due > loop.time():
                self._timer = loop.call_at(due, self._look)
                return
            del self._due[task]
            self._over.add(task)
            task.cancel()
