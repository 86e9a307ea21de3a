"""Lets jobs that are not over follow their group if it is changed, in the file or by a user.

A job was created from a *source*: its group, perhaps with fields that a rule or a retry has
changed. If a change gives a field of the group another value, the source gets this value, too,
unless the job's own value differed from that of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.job_record import IndexRecord, JobRecord
from ensemble_core.engine.job_states import NOT_HANDED_OVER
from ensemble_core.errors import EnsembleError
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import replace

#: Fields that are about the values of a job's rows.
_VALUES = ("result", "fail_if", "retry")

#: Fields that do not say what a job is, or that say which jobs there are.
_OTHER = frozenset(
    {"name", "count", "parameters", "points", "replicated", "more", "run", "cwd", "here", "reads"}
)
_NOTHING = object()


def follow(
    group: GroupState,
    records: Iterable[JobRecord],
    indices: Iterable[IndexRecord],
    earlier: tuple[JobGroup, JobGroup],
    after: JobGroup,
) -> Iterator[str]:
    """Let jobs follow a changed group, and yield warnings.

    ``records``: attempts that are not over. ``indices``: jobs that are lost or wait for a retry.
    ``earlier``: the group until now, as in the file and as changed during the run.

    Jobs that are not in the queue are made again. Jobs in the queue keep their fields until
    their next attempt; a warning lists these fields.
    """
    made: dict[int, tuple[JobGroup, JobGroup]] = {}

    def renewed(source: JobGroup) -> JobGroup:
        if id(source) not in made:
            made[id(source)] = source, _followed(source, *earlier, after)
        return made[id(source)][1]

    for index in indices:
        source = index.record.source
        if source is not None and source.name == after.name:
            index.record.source = renewed(source)
    changed: dict[str, None] = {}
    stay = unread = 0
    for record in records:
        source = record.source
        if source is None or source.name != after.name or (now := renewed(source)) is source:
            continue
        try:
            job = recreated_job(record.job, now)
        except EnsembleError as error:
            yield f"{record.job.id} stays as it was submitted: {error}"
            continue
        if record.state in NOT_HANDED_OVER:
            record.job = job
        elif record.cancel != "stopping":  # a job that is requeued is made again
            differ = _changed_fields(record.job, job)
            stay += bool(differ)
            changed |= dict.fromkeys(differ)
            if record.observed and not now.reads <= source.reads:
                now = replace(now, **{name: getattr(source, name) for name in _VALUES})
                unread += 1
        record.source = now
    group.rebuild_line()
    if stay:
        yield (
            f"{after.name}: {_jobs_keep(stay)} {', '.join(changed)}, as submitted before the "
            "change; further attempts follow it"
        )
    if unread:
        yield (
            f"{after.name}: {_jobs_keep(unread)} result, fail_if and retry: the change "
            "needs statistics that do not cover the rows so far"
        )


def renew_sources(records: Iterable[JobRecord], change: Callable[[JobGroup], JobGroup]) -> None:
    """Change the definition by which the jobs of these attempts are retried."""
    made: dict[int, tuple[JobGroup, JobGroup]] = {}
    for record in records:
        source = record.source
        if source is None:
            continue
        if id(source) not in made:
            made[id(source)] = changed = source, change(source)
            made[id(changed[1])] = changed[1], changed[1]
        record.source = made[id(source)][1]


def recreated_job(job: Job, source: JobGroup) -> Job:
    """Return a job that is not in the queue, as its source makes it now."""
    made = source.job(job.index, job.parameters, job.replica, job.attempt)
    return replace(made, requeued=job.requeued)


def _followed(source: JobGroup, before: JobGroup, during: JobGroup, after: JobGroup) -> JobGroup:
    """Return the source of a job with those fields that the file has changed.

    ``before`` and ``after``: the group in the file. ``during``: the group until now, with fields
    that were set during the run.
    """
    entries = [(replace(one, more=()), *one.more) for one in (before, during, after)]
    position = _position(replace(source, more=()), entries[:2])
    if position is None or any(position >= len(each) for each in entries):
        return source
    file_before, current, file_after = (each[position] for each in entries)
    if file_after.names != source.names:
        return source  # its placeholders may have no values
    changed = {
        name: value
        for name in _compared()
        if getattr(file_before, name) != getattr(file_after, name)
        and (value := _merged(getattr(source, name), (file_before, current), file_after, name))
        is not getattr(source, name)
    }
    if not changed:
        return source
    return replace(source, **changed, reads=source.reads | file_after.reads, more=())


def _compared() -> list[str]:
    return [each.name for each in fields(JobGroup) if each.name not in _OTHER]


def _position(source: JobGroup, earlier: Sequence[Sequence[JobGroup]]) -> int | None:
    """Return the position of the entry from which the source was made, if it is known."""
    for entries in earlier:
        if source in entries:
            return entries.index(source)
    return 0 if all(len(entries) == 1 for entries in earlier) else None


def _merged(own: Any, was: Sequence[JobGroup], now: JobGroup, name: str) -> Any:
    return _merge(own, [getattr(each, name) for each in was], getattr(now, name))


def _merge(own: Any, was: Sequence[Any], now: Any) -> Any:
    if any(own is each or own == each for each in was):
        return now
    values = (own, now, *was)
    if not all(isinstance(each, Mapping) for each in values):
        return own
    merged = {}
    for key in dict.fromkeys(key for each in values for key in each):
        mine, then, new = (each.get(key, _NOTHING) for each in (own, was[0], now))
        if then != new:
            mine = _merge(mine, [each.get(key, _NOTHING) for each in was], new)
        if mine is not _NOTHING:
            merged[key] = mine
    return merged


def _changed_fields(job: Job, made: Job) -> list[str]:
    """Return the names of the fields in which these two versions of a job differ."""
    return [
        each.name
        for each in fields(Job)
        if each.name not in ("requeued", "avoid")
        and getattr(job, each.name) != getattr(made, each.name)
    ]


def _jobs_keep(number: int) -> str:
    """Return the beginning of a warning about jobs that do not follow the file."""
    return "1 job keeps its" if number == 1 else f"{number} jobs keep their"
