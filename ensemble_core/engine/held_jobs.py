"""Held jobs: which of them go to the executor next, as far as ``at_once`` and limits allow.

Jobs of a group are held in a line, most urgent first. ``submission`` decides when to look.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from ensemble_core.engine.at_once import AT_ONCE, AtOnceSlots
from ensemble_core.engine.budget import Budget
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.rate_limit import HeldJob
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job


class HeldJobs:
    """The part of the job table that knows which held jobs can be handed over."""

    groups: dict[str, GroupState]
    records: dict[str, JobRecord]
    slots: AtOnceSlots
    budget: Budget | None
    has_limits: bool

    def move(self, record: JobRecord, cause: str, now: float) -> None:
        """Change the state of an attempt."""
        raise NotImplementedError

    def limit_slots(self, shared: Mapping[str, int]) -> None:
        """Apply the limits that groups share, and changed fields of groups."""
        self.slots.shared = shared
        self.has_limits = self.has_limits or any(map(self.slots.limits, self._specs()))
        self.recount_slots()

    def _specs(self) -> list[JobGroup]:
        return [state.group for state in self.groups.values()]

    def recount_slots(self) -> None:
        """Count the slots again, because a group or a limit has changed."""
        self.slots.recount(
            (self.groups[record.job.group].group, record)
            for record in self.records.values()
            if record.reused is None and record.state not in ("new", "looking", "held")
        )
        for group in self.groups.values():
            self.has_limits = self.has_limits or self.slots.limits(group.group)
            group.rebuild_line()

    def release_slot(self, group: GroupState, job: Job) -> None:
        self.slots.release(group.group, job)
        self.unblock(group, job)

    def unblock(self, group: GroupState, job: Job) -> None:
        """Put the next held job with the values of this job back in line, because this job has left
        a slot, or its own position in the line.
        """
        if not group.blocked:
            return
        key = self.slots.own(group.group, job) or ()
        blocked = group.blocked.get(key, [])
        while blocked:
            entry = heapq.heappop(blocked)
            if entry[2] in group.held:  # otherwise, it was cancelled
                heapq.heappush(group.line, entry)
                break
        if not blocked:
            group.blocked.pop(key, None)

    def free(self, group: GroupState, cause: str, now: float) -> list[HeldJob]:
        """Hand over those held jobs of a group that can be handed over now, and return them.

        ``cause`` is ``submit`` or, if there is a rate limit, ``pace``.
        """
        free: list[HeldJob] = []
        while (first := self._first(group)) and self._limit(group, first, now) is None:
            free.append(self._release(group, first, cause, now))
        return free

    def free_all(self, cause: str, now: float) -> list[HeldJob]:
        """Like ``free``, but for all groups, most urgent jobs first.

        If the first held job of a group must wait, the others of the group wait as well.
        """
        free: list[HeldJob] = []
        waiting = [group for group in self.groups.values() if group.held]
        while waiting:
            waiting = [each for each in waiting if self._first(each) is not None]
            if not waiting:
                break
            group = min(waiting, key=lambda each: each.line[0])
            first = group.line[0][2]
            if self._limit(group, first, now) is None:
                free.append(self._release(group, first, cause, now))
                continue
            waiting.remove(group)
        return free

    def _first(self, group: GroupState) -> str | None:
        """Return the id of a group's next held job that has a slot of the group, or ``None``."""
        spec, slots = group.group, self.slots
        most, each = spec.at_once, spec.at_once_each
        if most is not None and not each and slots.used.get((AT_ONCE, spec.name), 0) >= most:
            return None
        while group.line:
            record = group.held.get(group.line[0][2])
            if record is not None:
                if most is None or not each:
                    return record.job.id
                key = slots.own(spec, record.job) or ()
                if slots.used.get(key, 0) < most:
                    return record.job.id
                heapq.heappush(group.blocked.setdefault(key, []), group.line[0])
            heapq.heappop(group.line)
        return None

    def obstacle(self, group: GroupState, now: float) -> str | None:
        """Return the reason why a group's next job is held: ``at_once`` or the name of a limit.

        Return ``None`` if it can be handed over.
        """
        first = self._first(group)
        if first is None:
            return AT_ONCE if group.held else None
        return self._limit(group, first, now)

    def _limit(self, group: GroupState, first: str, now: float) -> str | None:
        """Return the name of the limit that holds this job, the first one of its group."""
        full = self.slots.full(group.group) if self.slots.shared else None
        if full is not None or self.budget is None:
            return full
        return self.budget.obstacle(group.held[first].job, now)

    def _release(self, group: GroupState, job: str, cause: str, now: float) -> HeldJob:
        heapq.heappop(group.line)
        record = group.held[job]
        record.submitted = record.waits_since = now
        self.move(record, cause, now)
        return record.job, *record.origin

    def held_jobs(self) -> list[Job]:
        """Return the jobs that ``at_once`` or a limit holds."""
        return [record.job for group in self.groups.values() for record in group.held.values()]
