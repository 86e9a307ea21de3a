"""Rate limit on submits (``limits.submits_per_second``), implemented as a token bucket."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from ensemble_core.model.jobs import Job

#: A job, with the rule and the firing that submitted it.
HeldJob = tuple[Job, str | None, int]


class RateLimit:
    """Queue that releases at most ``rate`` jobs per second (``None``: no limit)."""

    __slots__ = ("_last", "_rate", "_size", "_tokens", "held")

    def __init__(self, rate: float | None) -> None:
        self._tokens = math.inf
        self.reconfigure(rate)
        self._last: float | None = None
        #: The jobs that wait.
        self.held: deque[HeldJob] = deque()

    def reconfigure(self, rate: float | None) -> None:
        """Change the rate."""
        self._rate = rate
        self._size = max(1.0, rate or 1.0)
        self._tokens = min(self._tokens, self._size)

    @property
    def unlimited(self) -> bool:
        """True if there is no rate limit."""
        return self._rate is None

    def _refill(self, now: float) -> None:
        if self._rate is not None:
            if self._last is not None and now > self._last:
                self._tokens = min(self._size, self._tokens + (now - self._last) * self._rate)
            self._last = now if self._last is None else max(self._last, now)

    def admit(
        self, jobs: Sequence[Job], rule: str | None, firing: int, now: float
    ) -> tuple[Job, ...]:
        """Return those of these jobs that may be submitted now. The others wait."""
        if self._rate is None:
            return tuple(jobs)
        self._refill(now)
        free = 0 if self.held else min(len(jobs), int(self._tokens + 1e-9))
        self._tokens -= free
        self.held.extend((job, rule, firing) for job in jobs[free:])
        return tuple(jobs[:free])

    def release(self, now: float) -> list[HeldJob]:
        """Return the waiting jobs that may be submitted now."""
        self._refill(now)
        count = min(len(self.held), int(self._tokens + 1e-9))
        self._tokens -= count
        return [self.held.popleft() for _ in range(count)]

    def due(self, now: float) -> float | None:
        """Return the time at which the next waiting job may be submitted, or ``None`` if no job
        waits.
        """
        if not self.held or self._rate is None:
            return None
        due = now + max(0.0, 1.0 - self._tokens) / self._rate
        # The wait may be shorter than the resolution of timestamps, but time must advance.
        return max(due, math.nextafter(now, math.inf))

    def drop(self, jobs: Collection[str]) -> list[str]:
        """Remove these jobs. Return those that were waiting, in order."""
        if not self.held:
            return []
        wanted = set(jobs)
        dropped = [job.id for job, _, _ in self.held if job.id in wanted]
        if dropped:
            self.held = deque(item for item in self.held if item[0].id not in wanted)
        return dropped
