"""Job table: all jobs that are not over, and the state of each group.

A job is in the table from the decision to submit it until its last event, ``clean``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ensemble_core.engine.at_once import AT_ONCE, ConcurrencySlots
from ensemble_core.engine.budget import JOBS, Budget, Usage
from ensemble_core.engine.changed_jobs import (
    changed_fields,
    followed,
    jobs_keep,
    recreated_job,
    with_old_values,
)
from ensemble_core.engine.done_jobs import DoneJobs
from ensemble_core.engine.group_state import Change, GroupState
from ensemble_core.engine.job_metrics import Counters, JobGauges, Samples
from ensemble_core.engine.job_record import IndexRecord, JobRecord, Link
from ensemble_core.engine.job_state_changes import MOVES
from ensemble_core.engine.job_states import (
    HANDED_OVER,
    INDEX,
    NOT_HANDED_OVER,
    ImpossibleMove,
    IndexState,
)
from ensemble_core.engine.rate_limit import HeldJob
from ensemble_core.engine.rule_index import RuleIndex
from ensemble_core.engine.scopes import Slice, SliceKey, SliceTable
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import COMMITTED, RESOURCES, USED, MetricStore
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.ensemble import Limits
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job

#: Gauges of the costs of a run.
_USED = tuple(USED + resource for resource in RESOURCES)
_COMMITTED = tuple(COMMITTED + resource for resource in RESOURCES)
_COSTS = (USED + JOBS, *_USED, *_COMMITTED)

#: For each state of an index, the states that can follow.
_INDEX_WAYS = {
    state: frozenset(each for ways in causes.values() for each in ways)
    for state, causes in INDEX.items()
}

#: Number of slices of one key from which on a warning is given.
_MANY_SLICES = 100_000


class JobTable:
    """The jobs that are not over, and the counts of all jobs."""

    def __init__(
        self, groups: Mapping[str, JobGroup], metrics: MetricStore, index: RuleIndex
    ) -> None:
        self.groups: dict[str, GroupState] = {}
        self.records: dict[str, JobRecord] = {}
        #: The lost indices, by the ids of their jobs without an attempt: a user may retry them.
        self.lost: dict[str, IndexRecord] = {}
        #: Done jobs by group, for groups that a table or a function for parameters reads.
        self.done: dict[str, DoneJobs] = {}
        #: Attempts that are over, for a reader that clears the list. ``None`` without such a
        #: reader.
        self.over: list[JobRecord] | None = None
        self.submitted = 0
        self.finishes = 0
        #: Number of jobs that were never handed over, because they were cancelled before or are
        #: reused.
        self.withdrawn = 0
        #: ``looking``: the attempts that are being looked up in earlier runs. ``reused_from``: the
        #: earlier jobs that are reused.
        self.looking: dict[str, JobRecord] = {}
        self.reused_from: dict[str, None] = {}
        self.usage = Usage(self.records)
        #: The budget. ``None`` if no limit and no rule on a gauge ``committed.…`` needs it.
        self.budget: Budget | None = None
        #: The slots that ``at_once`` and ``limits.at_once`` limit.
        self.slots = ConcurrencySlots()
        #: True if jobs may be held because of ``at_once``, a budget, or requeued jobs.
        self.has_limits = False
        #: The slices of rules with ``each``.
        self.tables: dict[SliceKey, SliceTable] = {}
        #: Slices that have become idle since the last check.
        self.emptied: dict[Slice, None] = {}
        self._warned_of: list[SliceTable] = []
        self.metrics = metrics
        self.gauges = JobGauges(self.groups, self.records, metrics, index)
        self.counters = Counters(self.groups, metrics, self.gauges, index)
        self.samples = Samples(self.groups, metrics, self.counters, index)
        self.reconfigure({}, groups, index)

    def reconfigure(
        self,
        before: Mapping[str, JobGroup],
        groups: Mapping[str, JobGroup],
        index: RuleIndex,
        waiting: Collection[IndexRecord] = (),
    ) -> None:
        """Continue with a changed file. Unchanged groups keep the fields that rules have set.

        ``waiting``: indices whose next attempt has to wait.
        """
        self._index = self.gauges.index = self.counters.index = self.samples.index = index
        for name, group in groups.items():
            state = self.groups.get(name)
            if state is None:
                state = self.groups[name] = GroupState(group, self.metrics.counts[name])
            elif before.get(name) != group:
                earlier, was = state.results, state.group
                state.reconfigure(before.get(name), group)
                if name in before:
                    self.follow((before[name], was), group, waiting)
                for each in sorted(earlier ^ state.results):
                    if self.metrics.mean(name, each) is not None:
                        self.metrics.warn(
                            f"{each!r} of the job group {name!r} has changed between column and "
                            "result: its statistics still contain the earlier values"
                        )
        for name in [name for name in before if name not in groups]:
            left, counts = self.groups[name].open, self.groups[name].counts
            over = counts["done"] + counts["lost"]
            if over:
                jobs = "1 job that is" if over == 1 else f"{over} jobs that are"
                self.metrics.warn(
                    f"the file no longer has the job group {name!r}: its {jobs} over stay"
                    f"{'s' * (over == 1)}, but no table or rule of the file covers them"
                )
            if left:
                jobs = "1 job that is" if left == 1 else f"{left} jobs that are"
                self.metrics.warn(
                    f"the file no longer has the job group {name!r}: its {jobs} not over "
                    f"run{'s' * (left == 1)} as submitted"
                )
        for name, state in self.groups.items():
            state.watches = index.counts.setdefault(name, {})
            self.has_limits = self.has_limits or self.slots.limits(state.group)
        if index.gauges:
            self.gauges.keep()

    def follow(
        self, earlier: tuple[JobGroup, JobGroup], after: JobGroup, waiting: Collection[IndexRecord]
    ) -> None:
        """Let jobs that are not over, and lost ones, follow a changed group.

        ``earlier``: the group until now, as in the file and as changed during the run.

        Jobs that are not in the queue are made again. Those in the queue stay as they were
        submitted, which a warning says; their next attempts have the new fields.
        """
        made: dict[int, tuple[JobGroup, JobGroup]] = {}

        def renewed(source: JobGroup) -> JobGroup:
            if id(source) not in made:
                made[id(source)] = source, followed(source, *earlier, after)
            return made[id(source)][1]

        for index in (*self.lost.values(), *waiting):
            source = index.record.source
            if source is not None and source.name == after.name:
                index.record.source = renewed(source)
        fields: dict[str, None] = {}
        stay = unread = 0
        for record in self.records.values():
            source = record.source
            if source is None or source.name != after.name or (now := renewed(source)) is source:
                continue
            try:
                job = recreated_job(record.job, now)
            except EnsembleError as error:
                self.metrics.warn(f"{record.job.id} stays as it was submitted: {error}")
                continue
            if record.state in NOT_HANDED_OVER:
                record.job = job
            elif record.cancel != "stopping":  # a job that is requeued is made again
                changed = changed_fields(record.job, job)
                stay += bool(changed)
                fields |= dict.fromkeys(changed)
                if record.observed and not now.reads <= source.reads:
                    now = with_old_values(now, source)
                    unread += 1
            record.source = now
        group = self.groups[after.name]
        group.rebuild_line()
        if stay:
            self.metrics.warn(
                f"{after.name}: {jobs_keep(stay)} {', '.join(fields)}, as submitted before the "
                "change; further attempts follow it"
            )
        if unread:
            self.metrics.warn(
                f"{after.name}: {jobs_keep(unread)} result, fail_if and retry: the change "
                "needs statistics that do not cover the rows so far"
            )

    def renew_sources(
        self, group: str, change: Callable[[JobGroup], JobGroup], waiting: Iterable[IndexRecord]
    ) -> None:
        """Change the definition by which the group's jobs are retried: those that are not over,
        those that are lost, and those that are ``waiting`` for a retry.
        """
        made: dict[int, tuple[JobGroup, JobGroup]] = {}
        records = [*self.records.values()]
        records += [index.record for index in (*self.lost.values(), *waiting)]
        for record in records:
            source = record.source
            if record.job.group != group or source is None:
                continue
            if id(source) not in made:
                made[id(source)] = changed = source, change(source)
                made[id(changed[1])] = changed[1], changed[1]
            record.source = made[id(source)][1]

    def add(
        self,
        job: Job,
        source: JobGroup | None,
        now: float,
        link: Link | None,
        origin: tuple[str | None, int],
        *,
        index: IndexRecord | None = None,
        cause: str = "submit",
    ) -> None:
        """Add an attempt that is about to be submitted.

        ``origin`` is the rule and firing that submit it. The attempt belongs to ``index``, or to a
        new index. ``cause`` is one of those that the state ``new`` has.
        """
        self.submitted = position = self.submitted + 1
        record = self.records[job.id] = JobRecord(
            job, now, link, source, index, origin=origin, position=position, waits_since=now
        )
        group = self.groups[job.group]
        group.counts["submitted"] += 1
        self.move(record, cause, now)
        if group.count_filters:
            self.counters.judge_filters(record, group)
        if index is not None:
            if group.count_filters:
                self.counters.count_for(record, index.record.passed, "repeated")
            record.earlier = index.record.spent
            index.record = record
            group.counts["repeated"] += 1
            for each in index.slices:
                each.counters["submitted"] += 1
                each.counters["repeated"] += 1
        else:
            if group.replicas is not None:
                group.replicas.claim(job.parameters, job.replica)
            for table in group.tables:
                self.enter_slice(record.index, table)
        if record.passed:
            self.counters.count_passing(record, "submitted")
        if group.watches or group.kept_names or self.gauges.active:
            self.counters.count_change(group, record, "first" if index is None else "again")

    def enter_slice(self, index: IndexRecord, table: SliceTable, *, late: bool = False) -> None:
        """Add an index to the slice with its parameters.

        With ``late``, the index existed before the table of slices.
        """
        job = index.record.job
        found = table.of(job.parameters)
        if found is None:
            if table not in self._warned_of:
                self._warned_of.append(table)
                self.metrics.warn(
                    f"{job.id} has no parameter {' or '.join(table.key.parameters)}: rules with "
                    f"each: [{', '.join(table.key.parameters)}] ignore it"
                )
            return
        if found.order + 1 == _MANY_SLICES and not found.ever:
            self.metrics.warn(
                f"each: [{', '.join(table.key.parameters)}] has {_MANY_SLICES} instances, which "
                "stay in memory until the run ends"
            )
        index.slices = (*index.slices, found)
        found.open += 1
        found.counters["submitted"] += 1
        if index.record.outcome is not None:
            found.counters[index.record.outcome] += 1
        self.emptied.pop(found, None)
        if late and index.record.passed:
            found.count_passing(index.record.passed, "submitted")
            if index.record.outcome is not None:
                found.count_passing(index.record.passed, index.record.outcome)

    # -- states ----------------------------------------------------------------------------------

    def move(self, record: JobRecord, cause: str, now: float) -> None:
        """Change the state of an attempt, and everything that is kept by state.

        Raises :class:`ImpossibleMove` if the table ``ATTEMPT`` does not have this change.
        """
        before = record.state
        try:
            record.state, changes = MOVES[before][cause]
        except KeyError:
            raise ImpossibleMove(f"{record.job.id}: {cause!r} in state {before!r}") from None
        group = self.groups[record.job.group]
        for change in changes:
            change(self, record, group, now)

    @staticmethod
    def move_index(index: IndexRecord, to: IndexState) -> None:
        """Change the state of an index.

        Raises :class:`ImpossibleMove` if the table ``INDEX`` does not have this change.
        """
        if to not in _INDEX_WAYS[index.state]:
            raise ImpossibleMove(f"index of {index.record.job.id}: {index.state!r} → {to!r}")
        index.state = to

    def looked_up(self, job: str, found: str | None) -> JobRecord | None:
        """Handle the answer to a look-up: the earlier job ``found`` replaces the job, or else the
        job is held.

        Return the job's record, or ``None`` if the job is already over.
        """
        record = self.looking.get(job)
        if record is None:
            return None
        if found is None:
            self.move(record, "not found", record.submitted)
        else:
            record.reused = found
            self.reused_from[found] = None
            self.move(record, "found", record.submitted)
        return record

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

    def costs(self, now: float) -> dict[str, float]:
        """Return the gauges ``used.…`` and, if the run has a budget, ``committed.…``."""
        budget = self.budget
        if budget is None:
            jobs = self.submitted - self.withdrawn
            jobs -= sum(len(group.held) for group in self.groups.values()) + len(self.looking)
        else:
            jobs = budget.handed
        found: dict[str, float] = {f"{USED}{JOBS}": jobs}
        found.update(zip(_USED, self.usage.hours(now), strict=True))
        if budget is not None:
            found.update(zip(_COMMITTED, budget.committed(now), strict=True))
        return found

    def update_costs(self, now: float) -> None:
        """Update the cost gauges for which rules wait, and mark them as changed."""
        watched = [gauge for gauge in _COSTS if gauge in self._index.gauges]
        if watched:
            costs = self.costs(max(now, self.usage.latest))
            for gauge in watched:
                if gauge in costs:
                    self.metrics.gauges[gauge] = costs[gauge]
                    self._index.touched[self._index.gauges[gauge]] = None

    def keep_budget(self, limits: Limits) -> None:
        """Apply these limits. The first time, count the existing jobs."""
        if self.budget is not None:
            self.budget.limit(limits)
            return
        self.has_limits = True
        self.usage.keep()
        handed = int(self.costs(0.0)[f"{USED}{JOBS}"])
        self.budget = Budget(limits, self.usage, self.metrics, handed)
        for job, record in self.records.items():
            if record.state in HANDED_OVER:
                self.budget.handed -= 1  # `claim` counts it
                self.budget.claim(record.job)
                if record.started is not None:
                    self.budget.start(job, record.started)
                if record.suspended is not None:
                    self.budget.pause(job, record.suspended)

    def close(self, record: JobRecord, done: bool) -> None:
        """Finish the index of this attempt, which was its last one."""
        job, index = record.job, record.index_record
        group = self.groups[job.group]
        change: Change = "done" if done else "lost"
        group.counts[change] += 1
        if record.passed:
            self.counters.count_passing(record, change)
            index = record.index_record
        if group.watches or group.counted_changes[change]:
            self.counters.count_change(group, record, change)
        if done and (done_jobs := self.done.get(job.group)) is not None:
            result = NOTHING if index is None else index.result
            done_jobs.add(job, result, record.duration, record.reused)
        if not done:
            index = self.lost[f"{job.group}.{job.index}"] = record.index
        if index is None:
            return
        self.move_index(index, "done" if done else "lost")
        for each in index.slices:
            each.open -= 1
            each.counters[change] += 1
            if not each.open:
                self.emptied[each] = None

    def reopen(self, index: IndexRecord) -> None:
        """Open a lost index again, for a further attempt."""
        record = index.record
        job, group = record.job, self.groups[record.job.group]
        del self.lost[f"{job.group}.{job.index}"]
        self.move_index(index, "called" if index.calls else "waiting")
        index.dropped = False
        group.counts["lost"] -= 1
        self.counters.count_for(record, record.passed, "lost", -1)
        if group.watches or group.counted_changes["reopened"]:
            self.counters.count_change(group, record, "reopened")
        for each in index.slices:
            each.open += 1
            each.counters["lost"] -= 1
            self.emptied.pop(each, None)

    def requeue(self, record: JobRecord, job: Job, now: float) -> None:
        """Prepare to hand over this attempt again as ``job``, before other jobs of the group."""
        record.position, record.origin = 0, (None, 0)
        if self.gauges.active:
            self.gauges.leave(record.phase)
        self.move(record, "submit again", record.finished or now)
        self.counters.count_rows(record, -record.observed)
        fresh = JobRecord(job, now, record.link, record.source, record.index_record)
        fresh.state, fresh.position, fresh.waits_since = record.state, 0, now
        fresh.earlier = record.spent
        fresh.passed = record.passed
        if record.index_record is not None:
            record.index_record.record = fresh
        self.records[job.id] = self.groups[job.group].held[job.id] = fresh

    @staticmethod
    def described(record: JobRecord) -> dict[str, Any]:
        """Return a job as plain data, for functions and for the ``run`` of actions."""
        job, files = record.job, record.files or {}
        # A member may report other paths, because relative paths mean different folders there.
        workdir = files.get("workdir") or job.workdir
        known: dict[str, Any] = {
            "job": job.id,
            "group": job.group,
            "index": job.index,
            "command": list(job.command),
            "workdir": workdir if isinstance(workdir, str) and workdir.startswith("/") else None,
            "parameters": dict(job.parameters),
            "nodes": job.nodes,
            "tasks": job.tasks,
            "started": record.started,
        }
        if record.outcome is not None:
            known["outcome"] = record.outcome
        return known
