"""Lets jobs that are not over follow their group if it is changed, in the file or by a user.

A job was created from a *source*: its group, perhaps with fields that a rule or a retry has
changed. If a change gives a field of the group another value, the source gets this value, too,
unless the job's own value differed from that of the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

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


def followed(source: JobGroup, before: JobGroup, during: JobGroup, after: JobGroup) -> JobGroup:
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


def recreated_job(job: Job, source: JobGroup) -> Job:
    """Return a job that is not in the queue, as its source makes it now."""
    made = source.job(job.index, job.parameters, job.replica, job.attempt)
    return replace(made, requeued=job.requeued)


def changed_fields(job: Job, made: Job) -> list[str]:
    """Return the names of the fields in which these two versions of a job differ."""
    return [
        each.name
        for each in fields(Job)
        if each.name not in ("requeued", "avoid")
        and getattr(job, each.name) != getattr(made, each.name)
    ]


def with_old_values(source: JobGroup, earlier: JobGroup) -> JobGroup:
    """Return a source with the fields about a job's rows of an earlier one."""
    return replace(source, **{name: getattr(earlier, name) for name in _VALUES})


def jobs_keep(number: int) -> str:
    """Return the beginning of a warning about jobs that do not follow the file."""
    return "1 job keeps its" if number == 1 else f"{number} jobs keep their"
