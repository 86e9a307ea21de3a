"""Warnings while a queue omits jobs that have not ended as far as is known."""

from __future__ import annotations

from collections.abc import Callable

#: A phase of this many seconds is reported in any case.
_LONG = 600.0


class Absences:
    """Phases in which a queue omits jobs of a run.

    The first one is reported. A later one is reported if it lasts twice as long as any before: a
    queue that often omits jobs for a moment causes two messages, not two for each time.
    :attr:`summary` is for the end of the run.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._since: float | None = None
        self._told = False  # whether this phase was reported
        self._longest = 0.0
        self._times = self._reported = 0

    def begin(self, now: float, message: str) -> None:
        """Note that jobs are missing at this time, in monotonic seconds."""
        if self._since is None:
            self._since = now
            self._times += 1
        if not self._told and now - self._since >= min(2 * self._longest, _LONG):
            self._told = True
            self._reported += 1
            self._warn(message)

    def end(self, now: float, message: str) -> None:
        """Note that no job is missing. An empty message is not shown."""
        if self._since is None:
            return
        self._longest = max(self._longest, now - self._since)
        if self._told and message:
            self._warn(message)
        self._since, self._told = None, False

    def summary(self, now: float, name: str) -> str:
        """Return how often and how long the queue omitted jobs; empty if all that was reported."""
        if self._times == self._reported:
            return ""
        longest = max(self._longest, 0.0 if self._since is None else now - self._since)
        return (
            f"{name} omitted jobs of the run {self._times} times, for at most {longest:.0f} s, "
            "although they had not ended"
        )
