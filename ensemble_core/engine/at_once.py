"""Slots: how many attempts may be in the queue at the same time.

There are slots of a group (``at_once``), of each value of some parameters of a group (``at_once``
with ``each``), and slots that groups share: those of the whole run and of named limits
(``limits.at_once``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.model.codec import dumps
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job

#: Start of the names of these limits.
AT_ONCE = "at_once"

#: A limit: ``AT_ONCE``, a group and perhaps values, or ``limits`` and the name of a shared limit.
Key = tuple[str, ...]
#: Start of the keys of shared limits. A group may have the same name as a shared limit.
_SHARED = "limits"


class AtOnceSlots:
    """Counts the attempts in the queue that take slots."""

    __slots__ = ("shared", "used")

    def __init__(self) -> None:
        #: The shared limits: by name, and under an empty name that of the whole run.
        self.shared: Mapping[str, int] = {}
        self.used: dict[Key, int] = {}

    # -- what a job needs ------------------------------------------------------------------------

    def limits(self, group: JobGroup) -> bool:
        """Return True if jobs of this group need slots."""
        return group.at_once is not None or (bool(self.shared) and bool(self._shared_by(group)))

    def _shared_by(self, group: JobGroup) -> tuple[str, ...]:
        if not self.shared:
            return ()
        return (*(("",) if "" in self.shared else ()), *(n for n in group.uses if n in self.shared))

    @staticmethod
    def own(group: JobGroup, job: Job) -> Key | None:
        """Return the key of the job's group or, with ``each``, of its values in the group."""
        if group.at_once is None:
            return None
        if not group.at_once_each:
            return (AT_ONCE, group.name)
        values = (dumps(job.parameters.get(name)) for name in group.at_once_each)
        return (AT_ONCE, group.name, *values)

    def _needed(self, group: JobGroup, job: Job) -> Iterable[Key]:
        own = self.own(group, job)
        if not self.shared:  # usually
            return () if own is None else (own,)
        shared = [(_SHARED, name) for name in self._shared_by(group)]
        return shared if own is None else (own, *shared)

    # -- updates ---------------------------------------------------------------------------------

    def acquire(self, group: JobGroup, job: Job) -> None:
        """Note that an attempt was handed over to the executor."""
        for key in self._needed(group, job):
            self.used[key] = self.used.get(key, 0) + 1

    def release(self, group: JobGroup, job: Job) -> None:
        """Note that an attempt has left the queue."""
        for key in self._needed(group, job):
            left = self.used.get(key, 0) - 1
            if left > 0:
                self.used[key] = left
            else:
                self.used.pop(key, None)

    def recount(self, there: Iterable[tuple[JobGroup, JobRecord]]) -> None:
        """Count again, after limits or groups have changed, the attempts that are in the queue."""
        self.used = {}
        for group, record in there:
            self.acquire(group, record.job)

    # -- queries ---------------------------------------------------------------------------------

    def full(self, group: JobGroup) -> str | None:
        """Return the name of a shared limit that has no slot for jobs of this group."""
        if not self.shared:
            return None
        for name in self._shared_by(group):
            if self.used.get((_SHARED, name), 0) >= self.shared[name]:
                return f"{AT_ONCE}.{name}"
        return None

    def described(self, group: JobGroup, what: str) -> str:
        """Describe the limit that holds a job: ``at_once: 1 for each user``."""
        if what == AT_ONCE:
            each = f" for each {', '.join(group.at_once_each)}" if group.at_once_each else ""
            return f"{AT_ONCE}: {group.at_once}{each}"
        name = what.partition(".")[2]
        return f"limits.{AT_ONCE}{f'.{name}' if name else ''}: {self.shared[name]}"
