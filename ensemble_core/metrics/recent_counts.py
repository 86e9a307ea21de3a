"""Counts within a time: ``count.GROUP.failed(within 10m)`` is how many attempts failed in the last
ten minutes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import field

from ensemble_core.quick_dataclass import dataclass

#: What the filter of such a count begins with.
WITHIN = "within "


@dataclass(slots=True, eq=False)
class RecentCount:
    """The times at which a counter of a group grew, as far as they may still count."""

    counter: str
    seconds: float
    times: list[float] = field(default_factory=list)

    def add(self, time: float) -> None:
        """Note that the counter grew at this time (seconds since the epoch)."""
        insort(self.times, time)
        del self.times[: self._over(self.times[-1])]

    def count(self, now: float) -> int:
        """Return how often the counter has grown within the time until ``now``."""
        return len(self.times) - self._over(now)

    def next_drop(self, now: float) -> float | None:
        """Return when the count gets smaller if the counter does not grow, or ``None`` if it is
        0.
        """
        over = self._over(now)
        return self.times[over] + self.seconds if over < len(self.times) else None

    def _over(self, now: float) -> int:
        """Return how many of the times no longer count: the time since then is over at ``now``."""
        return bisect_right(self.times, now, key=lambda time: time + self.seconds)
