"""Timers of the engine.

There are timers for heartbeats, intervals, the rate limit (``pace``), repeated resizes (``retry``),
retries of jobs (``attempt``) and silent jobs (``silent``). The engine has no clock: it returns the
time of the next timer, and at that time the runtime sends a ``TimerElapsed``. Periods that are
missed, because the machine was suspended or the clock jumped, are skipped.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Kind", "Timer", "Timers"]

Kind = Literal["heartbeat", "interval", "pace", "retry", "attempt", "silent"]


class Timer(NamedTuple):
    """A pending timer. ``when`` is seconds since the epoch. The event gets ``kind`` and ``key``."""

    when: float
    kind: Kind
    key: str


@dataclass(slots=True, eq=False)
class Timers:
    """Pending timers, one for each ``(kind, key)``."""

    _heap: list[Timer] = field(default_factory=list)
    _due: dict[tuple[Kind, str], float] = field(default_factory=dict)
    _periods: dict[tuple[Kind, str], float] = field(default_factory=dict)

    def once(self, when: float, kind: Kind, key: str) -> None:
        """Start a one-time timer."""
        if self._due.get((kind, key)) != when:
            self._due[kind, key] = when
            heapq.heappush(self._heap, Timer(when, kind, key))

    def every(self, period: float, kind: Kind, key: str, start: float) -> None:
        """Start a timer for every ``period`` seconds from ``start``."""
        self._periods[kind, key] = period
        self.once(start + period, kind, key)

    def stop(self, kind: Kind, key: str) -> None:
        """Stop a timer."""
        self._due.pop((kind, key), None)
        self._periods.pop((kind, key), None)

    def elapsed(self, kind: Kind, key: str, now: float) -> None:
        """Handle an elapsed timer. A periodic timer starts again."""
        due = self._due.pop((kind, key), None)
        period = self._periods.get((kind, key))
        if period is not None:
            following = (now if due is None else due) + period
            self.once(following if following > now else now + period, kind, key)

    def first(self) -> Timer | None:
        """Return the earliest pending timer."""
        heap = self._heap
        while heap:
            timer = heap[0]
            if self._due.get((timer.kind, timer.key)) == timer.when:
                return timer
            heapq.heappop(heap)
        return None
