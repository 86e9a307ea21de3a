"""Rate limits (token buckets) and deadlines of single requests."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from math import inf


class RateLimiter:
    """Rate limiter with a token bucket for each key.

    To limit memory, only the most recently used keys are stored.
    """

    def __init__(
        self,
        rate: float,  # tokens per second
        burst: float,  # size of a bucket
        most: int = 20_000,  # maximum number of keys
    ) -> None:
        self._rate, self._burst, self._most = rate, max(1.0, burst), most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        """Take a token. Return False if none is left."""
        level, since = self._levels.get(key, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1.0
        self._levels[key] = (level - 1.0 if allowed else level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return allowed


class Deadline:
    """Cancels the current task after a time (``asyncio.timeout``, which Python 3.10 lacks).

    If the caller has set a shorter deadline, gRPC itself cancels the request at that time.
    """

    __slots__ = ("_timer", "exceeded", "seconds", "task")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task, self.exceeded = task, False
        self._timer: asyncio.TimerHandle | None = None
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """Restart with this many seconds; infinity for no deadline."""
        self.seconds = seconds
        if self._timer is not None:
            self._timer.cancel()
        if seconds < inf and not self.exceeded:
            self._timer = self.task.get_loop().call_later(max(0.0, seconds), self._exceed)

    def _exceed(self) -> None:
        self.exceeded = True
        self.task.cancel()

    def end(self) -> bool:
        """End the request. Return whether the deadline cancelled it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.exceeded and sys.version_info >= (3, 11):
            self.task.uncancel()
        return self.exceeded
