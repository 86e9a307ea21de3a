"""Absence of a member: measures how long a member is disconnected, and warns the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ensemble_core import Resources
from ensemble_service.run_context import RunContext

#: Seconds until the run is warned that a member is disconnected.
_AWAY = 3.0


class Absence:
    """Timer of one member's absences.

    A long absence causes a warning, and sets the gauge ``away.GROUP`` to 1 for each job group with
    jobs at the member.
    """

    def __init__(self, member: str, run: RunContext) -> None:
        self._member = member
        self._run = run
        self._since: float | None = None
        self._told = False
        #: The job groups whose gauge ``away.GROUP`` is 1.
        self._groups: set[str] = set()

    def begin(self, now: float) -> None:
        """Start the absence at ``now`` (monotonic seconds), unless it has started already."""
        if self._since is None:
            self._since = now

    def end(self) -> None:
        self._since = None
        if self._told:
            self._told = False
            self._run.warn(f"member {self._member} is connected again")
        groups, self._groups = self._groups, set()
        self._emit_gauges(groups, 0)

    def tick(self, now: float, jobs: Collection[str], opened: bool) -> None:
        """Warn once if the absence lasts and delays something.

        That is the case if the member has ``jobs``, or if it has ever been ``opened``.
        """
        if self._since is None or now - self._since <= _AWAY or self._told:
            return
        if jobs or opened or self._groups:
            self._told = True
            self._run.warn(
                f"member {self._member} is disconnected: its jobs continue; new requests to it "
                "wait until it is connected again"
            )
            self.holds_up(jobs)

    def holds_up(self, jobs: Iterable[str]) -> None:
        """If the absence was already reported, set ``away.GROUP`` of these jobs' groups."""
        if self._told:
            found = {job.rpartition(".")[0] for job in jobs} - self._groups
            self._groups |= found
            self._emit_gauges(found, 1)

    def of_group(self, group: str, present: bool) -> bool:
        """Return whether the gauge ``away.GROUP`` of this group is set."""
        if not present:
            self._groups.add(group)
        return group in self._groups

    def _emit_gauges(self, groups: Collection[str], away: int) -> None:
        if groups:
            values = {f"away.{group}": away for group in sorted(groups)}
            self._run.tell([Resources(self._run.clock(), values)])
