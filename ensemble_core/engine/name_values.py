"""Values of the names that conditions, actions and results can use, such as ``duration``."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_states import exit_code
from ensemble_core.engine.scopes import Scope, Slice
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, JobEvent, Observed
from ensemble_core.model.jobs import JOB_FIELDS

#: Names that ``_overridable_fields`` returns in addition to the job's result.
_NEWER_NAMES = frozenset(
    {"attempt", "replica", "limit", "memory_per_task", "cause", "cancelled_by", "host", "run"}
)
#: Names that mean a field of the event or job, even if the event's context has the same name.
_NOT_CONTEXT = frozenset({"cause", "name", "timestamp"})


def tag_of(ensemble: Ensemble) -> str:
    """Return the run's tag."""
    group = next(iter(ensemble.groups.values()), None)
    return "" if group is None else group.run


def all_fields(ensemble: Ensemble, match: Match) -> dict[str, Any]:
    """Return the fields of the event and its job, and the job's parameters, columns and result.

    If several of these have the same name, the one that comes first in this list takes precedence.
    """
    event, record, own, scope = match
    known: dict[str, Any] = {"run": tag_of(ensemble)}
    row = type(event) is Observed
    if record is not None:
        known.update(_overridable_fields(record))
        if row:
            known.update(own)
        known.update(record.job.parameters)
        for name, of_job in _OF_JOB.items():
            value = of_job(record)
            if value is not None:
                known[name] = value
    elif isinstance(scope, Slice):
        known.update(scope.parameters)
    if isinstance(event, JobEvent):
        if "cause" in event.context:  # a parameter, or the job's first exception, takes precedence
            known.update({**event.context, "cause": known.get("cause")})
        else:
            known.update(event.context)
        known["name"] = event.name
    known["timestamp"] = event.timestamp
    if not row or record is None:
        known.update(own)
    return known


def named_fields(
    names: Iterable[str],
    ensemble: Ensemble,
    event: Event,
    record: JobRecord | None,
    own: Mapping[str, Any] = NOTHING,
    scope: Scope | None = None,
) -> dict[str, Any]:
    """Return those of the fields in :func:`all_fields` that have these names.

    This is faster than :func:`all_fields`, because most rules use only one or two names.
    """
    row, context = NOTHING, NOTHING
    if type(event) is JobEvent:
        context = event.context
    elif record is not None and type(event) is Observed:
        own, row = NOTHING, own
    if record is not None:
        parameters = record.job.parameters
    else:
        parameters = scope.parameters if isinstance(scope, Slice) else NOTHING
    known: dict[str, Any] = {}
    newer: Mapping[str, Any] | None = None
    for name in names:
        if name in own:
            known[name] = own[name]
        elif name in context and name not in _NOT_CONTEXT:
            known[name] = context[name]
        elif (
            name in _OF_JOB and record is not None and (of_job := _OF_JOB[name](record)) is not None
        ):
            known[name] = of_job
        elif name == "timestamp":
            known[name] = event.timestamp
        elif name == "name" and type(event) is JobEvent:
            known[name] = event.name
        elif name in parameters:
            known[name] = parameters[name]
        elif name in row:
            known[name] = row[name]
        elif name in _NEWER_NAMES or (record is not None and name in record.result):
            if newer is None:
                newer = {"run": tag_of(ensemble)}
                if record is not None:
                    newer.update(_overridable_fields(record))
            if name in newer:
                known[name] = newer[name]
            elif name in context:
                known[name] = None
    return known


def _duration(record: JobRecord) -> float | None:
    return None if record.status is None else record.duration


#: Fields of a job and of its end, for conditions. A missing value is ``None``.
_OF_JOB: Mapping[str, Callable[[JobRecord], Any]] = {
    "job": lambda record: record.job.id,
    "group": lambda record: record.job.group,
    "index": lambda record: record.job.index,
    "queue_id": lambda record: record.queue_id,
    "pending": lambda record: record.pending,
    "status": lambda record: record.status,
    "exit_code": lambda record: None if record.status is None else exit_code(record.status),
    "duration": _duration,
    "type": lambda record: record.exception,
    "note": lambda record: None if record.exception is None else record.note,
}


def _overridable_fields(record: JobRecord) -> dict[str, Any]:
    """Return the fields for which a parameter or column of the same name takes precedence."""
    job = record.job
    fields: dict[str, Any] = {"attempt": job.attempt, "replica": job.replica}
    if record.source is not None:
        fields["run"] = record.source.run
    if job.duration:
        fields["limit"] = job.duration
    if job.memory_per_task:
        fields["memory_per_task"] = job.memory_per_task
    if record.files and (host := host_of(record)):
        fields["host"] = host
    if record.outcome == "success":
        fields["cause"] = record.cause or "exit"
    elif record.outcome is not None or record.exception is not None:
        fields["cause"] = record.why
    if record.cancelled_by is not None:
        fields["cancelled_by"] = record.cancelled_by
    fields.update(record.result)
    return fields


def host_of(record: JobRecord) -> str | None:
    """Return the node on which the job runs or ran, or several, separated by commas."""
    files = record.files or {}
    found = files.get("host") or files.get("nodes") or ()
    return ",".join([found] if isinstance(found, str) else map(str, found)) or None


class JobFields(Mapping[str, Any]):
    """Mapping with the fields of an event, and ``job.NAME`` for the job in ``record``.

    Iteration yields only the event's fields.
    """

    def __init__(self, fields: Mapping[str, Any], record: JobRecord) -> None:
        self._fields = fields
        self._record = record

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields and name.startswith("job."):
            found = job_field(self._record, name.removeprefix("job."))
            if found is not None:
                return found
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def job_field(record: JobRecord, name: str) -> Any:
    """Return the value of ``job.NAME``, or ``None`` if it has none or the name is unknown."""
    job, files = record.job, record.files or {}
    if name in ("workdir", "stdout", "stderr") or name.startswith("outputs["):
        source = record.source
        start = "" if source is None else source.cwd
        workdir = _path(start, files.get("workdir"), job.workdir or start)
        if name == "workdir":
            return workdir
        if name.startswith("outputs["):
            given = dict(enumerate(job.outputs)).get(int(name[8:-1]))
        else:
            given = getattr(job, name)
        return _path(workdir or "", files.get(name), given)
    if name == "queue_id":
        return record.queue_id
    if name == "host" and name not in job.parameters:
        return host_of(record)
    found = getattr(job, name, None) if name in JOB_FIELDS else None
    return job.parameters.get(name) if found is None else found


def _path(start: str, reported: object, given: str | None) -> str | None:
    """Return the absolute path of a job's file.

    ``reported`` is the path that the member reported. It takes precedence over ``given``, the path
    in the ensemble file.
    """
    for path in (reported, given):
        if isinstance(path, str) and path:
            whole = posixpath.normpath(posixpath.join(start, path))
            if whole.startswith("/"):
                return whole
    return None
