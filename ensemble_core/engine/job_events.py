"""Applies events of jobs to the job table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ensemble_core.engine.job_record import BY_OTHERS, BY_RUN, JobRecord
from ensemble_core.engine.job_states import ATTEMPT, OUTCOME_EVENTS, TRANSITIONS, Outcome
from ensemble_core.engine.job_table import JobTable
from ensemble_core.model.causes import reported_cause
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import JobState

#: For each outcome, the variables for the duration of a job and for its time in the queue.
_DURATIONS: dict[Outcome, str] = {outcome: f"duration.{outcome}" for outcome in OUTCOME_EVENTS}
_PENDING: dict[Outcome, str] = {outcome: f"pending.{outcome}" for outcome in OUTCOME_EVENTS}

#: What the functions below return if the event changes nothing.
_NO_EFFECT = ""
#: The bit of the event that a requeued job can have again.
_ALLOCATED = TRANSITIONS["alloc"].once


def apply_job_event(table: JobTable, record: JobRecord, event: JobEvent) -> tuple[str, ...] | None:
    """Apply an event of one of our jobs.

    Return the names of the trigger events that it causes, such as ``job-fail``, or ``None`` if
    the event changes nothing, for example because it is a duplicate.
    """
    name = event.name
    context = event.context
    record.newest = event.reported_at if context and "reported_at" in context else event.timestamp
    moves, once, phase, trigger_events, moving, change = _EFFECTS[name]
    if once:
        if record.seen & once:
            return None
        record.seen |= once
    elif moves and name not in ATTEMPT[record.state]:
        return None
    outcome = change(table, record, event) if change is not None else None
    if phase > record.phase:
        trigger_events = moving
        if table.gauges.active and record.reused is None:
            table.gauges.move(record.phase, phase)
        record.phase = phase
    if outcome is None:
        return trigger_events
    return None if outcome is _NO_EFFECT else (*trigger_events, outcome)


# The functions below apply what an event changes in addition to the phase. If the outcome is known,
# they return its trigger event.


def _submitted(table: JobTable, record: JobRecord, event: JobEvent) -> None:
    record.submitted = record.waits_since = event.timestamp
    record.queue_id = event.context.get("queue_id")


def _start(table: JobTable, record: JobRecord, event: JobEvent) -> None:
    record.files = event.context
    record.started = now = event.timestamp
    if record.began is None:
        record.began = now
    table.move(record, "start", now)
    since = record.waits_since
    if now >= since and record.reused is None:
        table.statistics.record(record.job.group, "pending", now - since, now)


def _suspend(table: JobTable, record: JobRecord, event: JobEvent) -> None:
    table.move(record, "suspend", event.timestamp)


def _unsuspend(table: JobTable, record: JobRecord, event: JobEvent) -> None:
    table.move(record, "unsuspend", event.timestamp)


def _requeue(table: JobTable, record: JobRecord, event: JobEvent) -> str | None:
    if record.phase != JobState.RUN:
        return _NO_EFFECT  # the job waits
    now = event.timestamp
    table.move(record, "requeue", now)
    if record.started is not None:
        record.waited += record.started - record.waits_since
        record.started, record.waits_since = None, now
    record.seen &= ~_ALLOCATED
    record.phase = JobState.SCHED.value
    if table.gauges.active:
        table.gauges.move(JobState.RUN, JobState.SCHED)
    return None


def _except(table: JobTable, record: JobRecord, event: JobEvent) -> None:
    if event.context.get("severity", 0) == 0 and record.exception is None:
        record.exception = str(event.context.get("type", ""))
        record.note = str(event.context.get("note", ""))
        if record.outcome is None:
            record.cause = reported_cause(event.context)
        if record.exception == "cancel":
            record.cancelled_by = _canceller(record, event.context)
        status = event.context.get("status")
        if record.status is None and isinstance(status, int):
            record.status = status  # a job that could not be launched: 126 or 127


def _finish(table: JobTable, record: JobRecord, event: JobEvent) -> str:
    context = event.context
    status = context.get("status")
    record.status = status if isinstance(status, int) else None
    record.finished = event.timestamp
    if record.reused is not None:  # use the duration of the earlier job
        record.began = event.timestamp - float(context.get("duration") or 0.0)
        record.started, record.ran = record.began, event.timestamp - record.began
    if "cause" in context and record.exception is None:
        record.cause = reported_cause(context)
    table.move(record, "finish", event.timestamp)
    table.finishes += 1
    return _outcome(table, record)


def _clean(table: JobTable, record: JobRecord, event: JobEvent) -> str | None:
    table.move(record, "clean", event.timestamp)
    return _outcome(table, record) if record.outcome is None else None


_Change: TypeAlias = Callable[[JobTable, JobRecord, JobEvent], "str | None"]
_CHANGES: dict[str, _Change] = {
    "submit": _submitted,
    "start": _start,
    "suspend": _suspend,
    "unsuspend": _unsuspend,
    "requeue": _requeue,
    "exception": _except,
    "finish": _finish,
    "clean": _clean,
}


#: The fields of ``Transition``, and the event's function in ``_CHANGES``.
_Effect: TypeAlias = tuple[bool, int, int, tuple[str, ...], tuple[str, ...], "_Change | None"]


class _Effects(dict[str, _Effect]):
    def __missing__(self, name: str) -> _Effect:
        return (*TRANSITIONS[name], None)


_EFFECTS = _Effects({name: (*each, _CHANGES.get(name)) for name, each in TRANSITIONS.items()})


def _outcome(table: JobTable, record: JobRecord) -> str:
    """Determine and count the outcome of a job. Return the outcome's trigger event."""
    job = record.job
    group = table.groups[job.group]
    outcome: Outcome = "cancelled"
    if record.exception != "cancel":
        good = record.exception is None and record.status == 0
        outcome = "success" if good else "failed"
    record.outcome = outcome
    group.counts[outcome] += 1
    if record.passed:
        table.counters.count_passing(record, outcome)
    if record.index_record is not None:
        for each in record.index_record.slices:
            each.counters[outcome] += 1
    if group.watches or group.counted_changes[outcome] or table.gauges.active:
        table.counters.count_change(group, record, outcome)
    if outcome == "success":
        if record.reused is not None:
            table.counters.count_reused(group, record)
    elif outcome == "failed":
        why = record.why or "unknown"
        group.causes[why] = group.causes.get(why, 0) + 1
    elif record.cancelled_by_others:
        by = record.cancelled_by or BY_OTHERS
        group.cancelled_by[by] = group.cancelled_by.get(by, 0) + 1
    if record.started is not None and record.finished is not None:
        duration = record.ran
        if (job.group, _PENDING[outcome]) in table.metrics.series and record.reused is None:
            waited = record.waited + (record.started - record.waits_since)
            if waited >= 0:
                table.statistics.record(job.group, _PENDING[outcome], waited, record.finished)
        if duration >= 0:
            if outcome != "cancelled":
                table.statistics.record(job.group, "duration", duration, record.finished)
            if (job.group, _DURATIONS[outcome]) in table.metrics.series:
                table.statistics.record(job.group, _DURATIONS[outcome], duration, record.finished)
            if "duration" in group.kept_names:
                table.statistics.sample(group, record, "duration", duration, record.finished)
                if "duration" in group.filtered:
                    table.statistics.sample_durations(
                        group, record, duration, record.finished, with_result=False
                    )
    return OUTCOME_EVENTS[outcome]


def end_unsubmitted(table: JobTable, record: JobRecord) -> None:
    """Finish a cancelled job that never reached an executor."""
    record.exception, record.cancelled_by = "cancel", BY_RUN
    before, now = record.state, record.newest
    table.move(record, "cancel", now)
    if before in ("looking", "held"):  # rules on waiting jobs and costs look again
        if table.gauges.active:
            table.gauges.enqueue(record.job)
            table.gauges.dequeue(record.job)
        if table.usage.active:
            table.update_costs(now)
    _outcome(table, record)
    if table.gauges.active:
        table.gauges.move(record.phase, JobState.INACTIVE)
    record.phase = JobState.INACTIVE.value


def _canceller(record: JobRecord, context: Mapping[str, Any]) -> str:
    """Return who cancelled a job: the run if it had asked for that, else others.

    ``context`` is that of the exception; its field ``by`` is the name of a user.
    """
    if record.cancel != "none":
        return BY_RUN
    by = str(context.get("by") or BY_OTHERS)
    return BY_OTHERS if by == BY_RUN else by
