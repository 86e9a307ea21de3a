"""Timers of the engine, which has no clock of its own.

The runtime asks when the next timer is due, and sends the event ``TimerElapsed`` at that time.
"""

from __future__ import annotations

import heapq
from dataclasses import field
from typing import Literal, NamedTuple

from ensemble_core.quick_dataclass import dataclass

Kind = Literal["heartbeat", "interval", "pace", "retry", "attempt", "silent", "for", "within"]


class Timer(NamedTuple):
    """A pending timer."""

    when: float  # seconds since the epoch
    kind: Kind
    key: str


@dataclass(slots=True, eq=False)
class Timers:
    """All pending timers. There is at most one for each ``(kind, key)``."""

    _heap: list[Timer] = field(default_factory=list)
    _due: dict[tuple[Kind, str], float] = field(default_factory=dict)
    _periods: dict[tuple[Kind, str], float] = field(default_factory=dict)

    def once(self, when: float, kind: Kind, key: str) -> None:
        """Start a timer that elapses once."""
        if self._due.get((kind, key)) != when:
            self._due[kind, key] = when
            heapq.heappush(self._heap, Timer(when, kind, key))
            if len(self._heap) > 2 * len(self._due) + 100:  # most of them were stopped
                self._heap = [Timer(at, *each) for each, at in self._due.items()]
                heapq.heapify(self._heap)

    def every(self, period: float, kind: Kind, key: str, start: float) -> None:
        """Start a timer that elapses every ``period`` seconds after ``start``."""
        self._periods[kind, key] = period
        self.once(start + period, kind, key)

    def stop(self, kind: Kind, key: str) -> None:
        """Stop a timer."""
        self._due.pop((kind, key), None)
        self._periods.pop((kind, key), None)

    def elapsed(self, kind: Kind, key: str, now: float) -> None:
        """Remove a timer that has elapsed. If it is periodic, start it again."""
        due = self._due.pop((kind, key), None)
        period = self._periods.get((kind, key))
        if period is not None:
            # Skip periods that were missed because the machine was suspended or its clock jumped.
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
