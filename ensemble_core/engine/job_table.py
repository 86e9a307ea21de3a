"""Job table: all jobs that are not over, and the state of each group.

A job is in the table from the decision to submit it until its last event, ``clean``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from ensemble_core.engine.at_once import AtOnceSlots
from ensemble_core.engine.budget import JOBS, Budget, Usage
from ensemble_core.engine.changed_jobs import follow
from ensemble_core.engine.done_jobs import DoneJobs
from ensemble_core.engine.group_state import Change, GroupState
from ensemble_core.engine.held_jobs import HeldJobs
from ensemble_core.engine.job_metrics import JobCounters, JobGauges, JobStatistics
from ensemble_core.engine.job_record import IndexRecord, JobRecord, Link
from ensemble_core.engine.job_states import (
    ATTEMPT,
    HANDED_OVER,
    INDEX,
    AttemptState,
    ImpossibleMove,
    IndexState,
)
from ensemble_core.engine.rule_index import RuleIndex
from ensemble_core.engine.scopes import Slice, SliceKey, SliceTable
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


class JobTable(HeldJobs):
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
        self.slots = AtOnceSlots()
        #: True if jobs may be held because of ``at_once``, a budget, or requeued jobs.
        self.has_limits = False
        #: The slices of rules with ``each``.
        self.tables: dict[SliceKey, SliceTable] = {}
        #: Slices that have become idle since the last check.
        self.emptied: dict[Slice, None] = {}
        self._warned_of: list[SliceTable] = []
        self.metrics = metrics
        self.gauges = JobGauges(self.groups, self.records, metrics, index)
        self.counters = JobCounters(self.groups, metrics, self.gauges, index)
        self.statistics = JobStatistics(self.groups, metrics, self.counters, index)
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
        self._index = self.gauges.index = self.counters.index = self.statistics.index = index
        for name, group in groups.items():
            state = self.groups.get(name)
            if state is None:
                state = self.groups[name] = GroupState(group, self.metrics.counts[name])
            elif before.get(name) != group:
                earlier, was = state.results, state.group
                state.reconfigure(before.get(name), group)
                if name in before:
                    indices = (*self.lost.values(), *waiting)
                    records, earlier_groups = self.records.values(), (before[name], was)
                    for warning in follow(state, records, indices, earlier_groups, group):
                        self.metrics.warn(warning)
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
                kept = "ended job is" if over == 1 else f"{over} ended jobs are"
                self.metrics.warn(
                    f"the job group {name!r} is no longer in the file: its {kept} kept, but no "
                    f"table or rule covers {'it' if over == 1 else 'them'}"
                )
            if left:
                jobs = (
                    "unfinished job continues" if left == 1 else f"{left} unfinished jobs continue"
                )
                self.metrics.warn(
                    f"the job group {name!r} is no longer in the file: its {jobs} as submitted"
                )
        for name, state in self.groups.items():
            state.watches = index.counts.setdefault(name, {})
            self.has_limits = self.has_limits or self.slots.limits(state.group)
        if index.gauges:
            self.gauges.keep()

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
            record.state, changes = _MOVES[before][cause]
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


# -- effects of leaving a state -----------------------------------------------------------------


def _leave_line(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    del group.held[record.job.id]


def _leave_queue(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    del group.waiting[record.job.id]
    if table.gauges.active:
        table.gauges.dequeue(record.job)


def _stop_running(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    group.running -= 1
    since = record.runs_since or 0.0
    table.usage.end(record.job, since, now)
    if record.finished is not None:
        record.ran += record.finished - since
    elif record.state != "gone":
        record.ran += max(0.0, now - since)
    record.runs_since = None


def _leave_suspended(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    group.suspended -= 1
    record.suspended = None
    if table.gauges.active:
        table.gauges.suspend(-1)


def _leave_looking(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    del table.looking[record.job.id]


def _release_claim(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    if table.usage.active:
        if table.budget is not None:
            table.budget.end(record.job.id)
        table.update_costs(now)


# -- effects of entering a state ----------------------------------------------------------------


def _look_up(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    table.looking[record.job.id] = record


def _reuse(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    table.withdrawn += 1


def _hold(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    job = record.job
    table.has_limits = True
    group.held[job.id] = record
    heapq.heappush(group.line, (-job.urgency, record.position, job.id))


def _hold_again(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    table.release_slot(group, record.job)
    if table.budget is not None:
        table.budget.end(record.job.id)
        table.budget.handed -= 1
    _hold(table, record, group, now)


def _hand_over(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    job = record.job
    if table.slots.shared or group.group.at_once is not None:
        table.slots.acquire(group.group, job)
    if table.usage.active:
        if table.budget is not None:
            table.budget.claim(job)
        table.update_costs(now)
    group.waiting[job.id] = record
    if table.gauges.active:
        table.gauges.enqueue(job)


def _queue_again(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    job = record.job
    group.waiting[job.id] = record
    if table.gauges.active:
        table.gauges.wait_again(job)
    if table.usage.active:
        if table.budget is not None:
            table.budget.restart(job, now)
        table.update_costs(now)


def _run(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    group.running += 1
    record.runs_since = now
    usage = table.usage
    if usage.since is None:
        usage.since = now
    if usage.active:
        usage.begin(record.job, now)
        if table.budget is not None:
            table.budget.start(record.job.id, now)
        table.update_costs(now)


def _suspend(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    group.suspended += 1
    record.suspended = now
    if table.gauges.active:
        table.gauges.suspend(1)
    if table.usage.active:
        if table.budget is not None:
            table.budget.pause(record.job.id, now)
        table.update_costs(now)


def _forget(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    del table.records[record.job.id]
    if table.over is not None:
        table.over.append(record)
    if record.reused is None and (table.slots.shared or group.group.at_once is not None):
        table.release_slot(group, record.job)


def _withdraw(table: JobTable, record: JobRecord, group: GroupState, now: float) -> None:
    del table.records[record.job.id]
    if table.over is not None:
        table.over.append(record)
    table.withdrawn += 1
    table.unblock(group, record.job)


_Change: TypeAlias = Callable[[JobTable, JobRecord, GroupState, float], None]

_LEAVE: dict[AttemptState, _Change] = {
    "looking": _leave_looking,
    "held": _leave_line,
    "paced": _leave_queue,
    "queued": _leave_queue,
    "running": _stop_running,
    "suspended": _leave_suspended,
}
_ENTER: dict[AttemptState, _Change] = {
    "looking": _look_up,
    "reused": _reuse,
    "held": _hold,
    "paced": _hand_over,
    "queued": _hand_over,
    "running": _run,
    "suspended": _suspend,
    "gone": _forget,
}


def _changes(before: AttemptState, after: AttemptState) -> Iterator[_Change]:
    """Yield what a change of an attempt's state changes elsewhere."""
    if before == after or (before, after) == ("paced", "queued"):
        return
    if before in _LEAVE:
        yield _LEAVE[before]
    if before in HANDED_OVER and after in ("gone", "ended"):
        yield _release_claim
    if before in HANDED_OVER and after == "held":
        yield _hold_again
    elif before in HANDED_OVER and after == "queued":
        yield _queue_again
    elif before in ("looking", "held") and after == "gone":
        yield _withdraw
    elif after in _ENTER:
        yield _ENTER[after]


#: The table ``ATTEMPT``, and for each change the functions that keep everything else up to date.
_MOVES: dict[AttemptState, dict[str, tuple[AttemptState, tuple[_Change, ...]]]] = {
    before: {cause: (after, tuple(_changes(before, after))) for cause, after in ways.items()}
    for before, ways in ATTEMPT.items()
}
