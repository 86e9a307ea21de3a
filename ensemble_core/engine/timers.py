"""Timers of the engine: heartbeat, intervals, rate limit (``pace``), retries of resizes and of
jobs (``attempt``), jobs that print nothing (``silent``).

The engine has no clock: it says which time it waits for, and the runtime hands it a
``TimerElapsed`` when that has come. A period that was missed (a suspended machine, a clock that
jumped) is skipped, not made up for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Kind", "Timer", "Timers"]

Kind = Literal["heartbeat", "interval", "pace", "retry", "attempt", "silent"]


class Timer(NamedTuple):
    """``when`` is in seconds since the epoch; ``kind`` and ``key`` go into the TimerElapsed."""

    when: float
    kind: Kind
    key: str


@dataclass(slots=True, eq=False)
class Timers:
    """Timers that have not elapsed, one for each ``(kind, key)``."""

    _heap: list[Timer] = field(default_factory=list)
    _due: dict[tuple[Kind, str], float] = field(default_factory=dict)
    _periods: dict[tuple[Kind, str], float] = field(default_factory=dict)

    def once(self, when: float, kind: Kind, key: str) -> None:
        """Tell of this time, once."""
        if self._due.get((kind, key)) != when:
            self._due[kind, key] = when
            heapq.heappush(self._heap, Timer(when, kind, key))

    def every(self, period: float, kind: Kind, key: str, start: float) -> None:
        """Tell of every ``period`` seconds from ``start``."""
        self._periods[kind, key] = period
        self.once(start + period, kind, key)

    def stop(self, kind: Kind, key: str) -> None:
        """Do not tell of it any more."""
        self._due.pop((kind, key), None)
        self._periods.pop((kind, key), None)

    def elapsed(self, kind: Kind, key: str, now: float) -> None:
        """The engine was told; a period begins anew."""
        due = self._due.pop((kind, key), None)
        period = self._periods.get((kind, key))
        if period is not None:
            following = (now if due is None else due) + period
            self.once(following if following > now else now + period, kind, key)

    def first(self) -> Timer | None:
        """The earliest time to come."""
        heap = self._heap
        while heap:
            timer = heap[0]
            if self._due.get((timer.kind, timer.key)) == timer.when:
                return timer
            heapq.heappop(heap)
        return None
