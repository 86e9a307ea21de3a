"""Retries: those that a group's ``retry`` decides, and those that a user requests.

On request, lost jobs run again, as further attempts of the same indices. Retries that a rule
decides, and all later steps of a retry, are in ``submission``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.job_record import BY_OTHERS, IndexRecord, JobRecord
from ensemble_core.engine.name_values import JobFields, named_fields
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter, next_attempt
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Log, Retry
from ensemble_core.model.events import Event
from ensemble_core.model.jobs import Job
from ensemble_core.model.retry_policy import RetryPolicy

#: How many jobs a message names.
_NAMED = 5


def group_retry(state: State, record: JobRecord, policy: RetryPolicy, event: Event) -> Retry | None:
    """Return the retry of a failed job that its group asks for, or ``None``."""
    if record.index.retried >= policy.times:
        return None
    if record.cancelled_by_others and not policy.names_cancels(record.job.parameters):
        return None  # whoever has cancelled a job may have had a reason
    match = Match(event, record)
    if policy.computes:
        fields = state.fields(match)
    else:
        names = () if policy.when is None else policy.when.sorted_names
        fields = named_fields(names, state.ensemble, event, record)
    for name in policy.reads:
        fields.setdefault(name, state.read_scoped(name, None, match))
    if policy.when is not None and not policy.when.verdict(None, fields, state.metric):
        return None
    known = JobFields(fields, record)
    try:
        changed, wait = policy.evaluate(known, state.metric)
    except EnsembleError as error:
        state.error(f"cannot retry {record.job.id}: {error}")
        return None
    return Retry(job=record.job.id, fields=changed, wait=wait, resume=policy.resume)


def chosen(state: State, action: Mapping[str, Any]) -> list[IndexRecord]:
    """Return the indices that a request ``retry`` means: those of its ``jobs``, or without
    ``jobs``, all that failed, were lost, or were cancelled by others.

    Raises :class:`UsageError` if one of them cannot be retried, or if no job is lost.
    """
    if "jobs" in action:
        jobs = action["jobs"]
        if not isinstance(jobs, list) or not jobs:
            raise UsageError("'jobs' is not a list of jobs", hint="name jobs", code="bad-action")
        found = list(dict.fromkeys(_lost(state, str(job)) for job in jobs))
    else:
        found = [each for each in state.table.lost.values() if each.record.failed]
    if not found:
        lost = ", ".join(list(state.table.lost)[:_NAMED])
        raise UsageError(
            "the run has no failed job to retry",
            hint=f"to retry jobs that the run itself has cancelled, name them: {lost}"
            if lost
            else "'ensemble submit RUN GROUP' submits further jobs",
            code="nothing-to-retry",
        )
    for index in found:
        try:
            next_attempt(index, _decision(index, action), state.ensemble.binder)
        except EnsembleError as error:
            raise UsageError(
                f"cannot retry {_name(index)}: {error.what}",
                cause=error.cause,
                hint=error.hint,
                code=error.code,
            ) from error
    return found


def reopen(submission: Submitter, action: Mapping[str, Any]) -> list[IndexRecord]:
    """Open the indices of a request again, with a decided retry, and return them."""
    state = submission.state
    found = chosen(state, action)
    for index in found:
        open_again(submission, index, _decision(index, action))
    for name, jobs in _points(state, found).items():
        message = (
            f"the generator {name} counts {', '.join(jobs)} as lost: it does not learn from the "
            "retry, whose result is only in tables"
        )
        state.out.append(Log(message=message, level="warning"))
    return found


def open_again(
    submission: Submitter, index: IndexRecord, decision: Retry, *, retried: int = 0
) -> None:
    """Open a lost index again, for this retry. ``retried``: how often its group has retried it."""
    state = submission.state
    state.table.reopen(index)
    index.retried = retried
    _handle_failure(state, index)
    _await_idle(state, index)
    submission.retry(index, decision)


def no_such_job(state: State, job: str) -> UsageError:
    """Return the error about a name that no job of the run has."""
    hint = f"name a job GROUP.INDEX; groups: {', '.join(state.table.groups)}; see 'ensemble jobs'"
    return UsageError(f"the run has no job {job!r}", hint=hint, code="no-such-job")


def _lost(state: State, job: str) -> IndexRecord:
    """Return the lost index of a job. Raise :class:`UsageError` if it is not lost."""
    group, _, number = job.rpartition(".")
    position, _, attempt = number.partition("-")
    group_state = state.table.groups.get(group)
    if group_state is None or not position.isdecimal() or int(position) >= group_state.next_index:
        raise no_such_job(state, job)
    name = f"{group}.{int(position)}"
    index = state.table.lost.get(name)
    if index is not None:
        if attempt and job != index.record.job.id:
            raise UsageError(
                f"{job} is not the newest attempt of {name}",
                hint=f"name the job: {name}",
                code="no-such-job",
            )
        return index
    if any((each.group, each.index) == (group, int(position)) for each in _open(state)):
        raise UsageError(
            f"{name} is not over",
            hint="wait for its end, or cancel it first: 'ensemble cancel RUN JOB'",
            code="job-not-over",
        )
    raise UsageError(
        f"{name} has succeeded",
        hint="'ensemble submit RUN GROUP' submits further jobs",
        code="job-succeeded",
    )


def _open(state: State) -> Iterator[Job]:
    """Yield the newest attempts of the indices that are not over."""
    yield from (record.job for record in state.table.records.values())
    yield from (index.record.job for index in state.attempts.values())
    for asked in state.calls.values():
        record = asked.origin.match.record
        if record is not None and not record.index.over:
            yield record.job


def _decision(index: IndexRecord, action: Mapping[str, Any]) -> Retry:
    source = index.record.source
    policy = None if source is None else source.retry
    return Retry(
        job=index.record.job.id,
        fields=action.get("with") or NOTHING,
        resume=policy is not None and policy.resume,
    )


def _handle_failure(state: State, index: IndexRecord) -> None:
    """Count the failure of this index as handled, because it is retried."""
    record = index.record
    if not index.unhandled:
        return
    index.unhandled = False
    if not record.cancelled_by_others:
        state.unhandled_failures -= 1
        return
    by = record.cancelled_by or BY_OTHERS
    state.unhandled_cancels[by] -= 1
    if not state.unhandled_cancels[by]:
        del state.unhandled_cancels[by]


def _await_idle(state: State, index: IndexRecord) -> None:
    """Let rules on ``idle`` see the next idle state of the job's scopes."""
    for rule_state in state.rules.idle():
        rule = rule_state.rule
        if rule.groups and index.record.job.group not in rule.groups:
            continue
        if rule.each is None:
            rule_state.main.idle_job_count = 0
        for each in index.slices:
            if each.key == rule_state.slices:
                each.instance(rule_state.key).idle_job_count = 0


def _points(state: State, found: list[IndexRecord]) -> dict[str, list[str]]:
    """Return the jobs of points, by the names of their generators."""
    jobs: dict[str, list[str]] = {}
    for name, generator in state.generators.items():
        spec = state.ensemble.generators.get(name)
        if spec is None:
            continue
        known = {number for point in generator.points for number in point.jobs}
        for index in found:
            if index.record.job.group == spec.group and index.record.job.index in known:
                jobs.setdefault(name, []).append(_name(index))
    return jobs


def _name(index: IndexRecord) -> str:
    return f"{index.record.job.group}.{index.record.job.index}"
