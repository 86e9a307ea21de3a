"""Running time of a job, from its events: without the time in which it was suspended or requeued.

For readers of events. The engine keeps the same sums in ``JobRecord``.
"""

from __future__ import annotations

from ensemble_core.quick_dataclass import dataclass


@dataclass(slots=True, eq=False)
class RunningTime:
    """The seconds that an attempt ran.

    >>> ran = RunningTime()
    >>> for name, time in [("start", 10), ("suspend", 14), ("unsuspend", 20), ("finish", 23)]:
    ...     ran.take(name, time)
    >>> ran.first, ran.seconds
    (10, 7.0)
    """

    first: float | None = None  #: The first start.
    since: float | None = None  #: Since when it runs; ``None``: it does not run.
    seconds: float = 0.0  #: How long it ran until then.
    suspended: bool = False

    def take(self, name: str, time: float) -> None:
        """Take an event of the attempt into account."""
        if name == "start" or (name == "unsuspend" and self.suspended):
            self.first = time if self.first is None else self.first
            self.since, self.suspended = time, False
        elif name in ("suspend", "requeue", "finish"):
            self.suspended = name == "suspend" and self.since is not None
            if self.since is not None:
                self.seconds += time - self.since
                self.since = None

    def until(self, time: float) -> float:
        """Return the seconds that the attempt ran until this time, its newest."""
        return self.seconds + (0.0 if self.since is None else time - self.since)
