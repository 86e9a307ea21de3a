"""Changes of an attempt's state, and what each changes in the containers, counts and claims."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from ensemble_core.engine.at_once import ConcurrencySlots
from ensemble_core.engine.budget import Budget, Usage
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.job_metrics import JobGauges
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_states import ATTEMPT, HANDED_OVER, AttemptState
from ensemble_core.model.jobs import Job


class _Table(Protocol):
    """The parts of the job table that a change of state concerns."""

    records: dict[str, JobRecord]
    over: list[JobRecord] | None
    withdrawn: int
    looking: dict[str, JobRecord]
    usage: Usage
    budget: Budget | None
    slots: ConcurrencySlots
    has_limits: bool
    gauges: JobGauges

    def release_slot(self, group: GroupState, job: Job) -> None: ...
    def update_costs(self, now: float) -> None: ...
    def unblock(self, group: GroupState, job: Job) -> None: ...


# When an attempt leaves a state:


def _leave_line(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    del group.held[record.job.id]


def _leave_queue(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    del group.waiting[record.job.id]
    if table.gauges.active:
        table.gauges.dequeue(record.job)


def _stop_running(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    group.running -= 1
    since = record.runs_since or 0.0
    table.usage.end(record.job, since, now)
    if record.finished is not None:
        record.ran += record.finished - since
    elif record.state != "gone":
        record.ran += max(0.0, now - since)
    record.runs_since = None


def _leave_suspended(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    group.suspended -= 1
    record.suspended = None
    if table.gauges.active:
        table.gauges.suspend(-1)


def _leave_looking(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    del table.looking[record.job.id]


def _release_claim(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    if table.usage.active:
        if table.budget is not None:
            table.budget.end(record.job.id)
        table.update_costs(now)


# When an attempt enters a state:


def _look_up(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    table.looking[record.job.id] = record


def _reuse(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    table.withdrawn += 1


def _hold(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    job = record.job
    table.has_limits = True
    group.held[job.id] = record
    heapq.heappush(group.line, (-job.urgency, record.position, job.id))


def _hold_again(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    table.release_slot(group, record.job)
    if table.budget is not None:
        table.budget.end(record.job.id)
        table.budget.handed -= 1
    _hold(table, record, group, now)


def _hand_over(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
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


def _queue_again(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    job = record.job
    group.waiting[job.id] = record
    if table.gauges.active:
        table.gauges.wait_again(job)
    if table.usage.active:
        if table.budget is not None:
            table.budget.restart(job, now)
        table.update_costs(now)


def _run(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
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


def _suspend(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    group.suspended += 1
    record.suspended = now
    if table.gauges.active:
        table.gauges.suspend(1)
    if table.usage.active:
        if table.budget is not None:
            table.budget.pause(record.job.id, now)
        table.update_costs(now)


def _forget(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    del table.records[record.job.id]
    if table.over is not None:
        table.over.append(record)
    if record.reused is None and (table.slots.shared or group.group.at_once is not None):
        table.release_slot(group, record.job)


def _withdraw(table: _Table, record: JobRecord, group: GroupState, now: float) -> None:
    del table.records[record.job.id]
    if table.over is not None:
        table.over.append(record)
    table.withdrawn += 1
    table.unblock(group, record.job)


_Change: TypeAlias = Callable[[_Table, JobRecord, GroupState, float], None]

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
MOVES: dict[AttemptState, dict[str, tuple[AttemptState, tuple[_Change, ...]]]] = {
    before: {cause: (after, tuple(_changes(before, after))) for cause, after in ways.items()}
    for before, ways in ATTEMPT.items()
}
