"""Names that conditions, actions and results may speak of, and the order of their look-up.

``all_fields`` has all of them and ``named_fields`` some: most rules name one or two, and are asked
far more often than they fire. Called by the engine's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_steps import exit_code
from ensemble_core.engine.occasion import Occasion
from ensemble_core.engine.scopes import Slice
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import JobEvent, Observed

__all__ = ["all_fields", "named_fields"]

#: What ``_newer`` may have beside the job's result.
_NEWER_NAMES = frozenset({"attempt", "replica", "limit", "cause", "run"})
#: What ``_of_job`` may have.
_JOB_NAMES = frozenset(
    {
        "job", "group", "index", "queue_id", "pending", "status", "exit_code", "duration", "type",
        "note",
    }
)  # fmt: skip


def tag_of(ensemble: Ensemble) -> str:
    """The run's tag."""
    group = next(iter(ensemble.groups.values()), None)
    return "" if group is None else group.run


def all_fields(ensemble: Ensemble, occasion: Occasion) -> dict[str, Any]:
    """Fields of the event and its job, the job's parameters, the columns of an observed row, and
    the job's result; of one name the first of these."""
    event, record, own, scope = occasion
    known: dict[str, Any] = {"run": tag_of(ensemble)}
    row = type(event) is Observed
    if record is not None:
        known.update(_newer(record))
        if row:
            known.update(own)
        known.update(record.job.parameters)
        known.update(_of_job(record))
    elif isinstance(scope, Slice):
        known.update(scope.parameters)
    if isinstance(event, JobEvent):
        if "cause" in event.context:  # a parameter, or the job's first exception, says more
            known.update({**event.context, "cause": known.get("cause")})
        else:
            known.update(event.context)
        known["name"] = event.name
    known["timestamp"] = event.timestamp
    if not row or record is None:
        known.update(own)
    return known


def named_fields(names: Iterable[str], ensemble: Ensemble, occasion: Occasion) -> dict[str, Any]:
    """The fields of :func:`all_fields` that have these names."""
    event, record, own, scope = occasion
    first, row = own, NOTHING
    if record is not None and type(event) is Observed:
        first, row = NOTHING, own
    context: Mapping[str, Any] = event.context if isinstance(event, JobEvent) else NOTHING
    if record is not None:
        parameters = record.job.parameters
    else:
        parameters = scope.parameters if isinstance(scope, Slice) else NOTHING
    known: dict[str, Any] = {}
    of_job: Mapping[str, Any] | None = None
    newer: Mapping[str, Any] | None = None
    for name in names:
        if name in first:
            known[name] = first[name]
        elif name == "timestamp":
            known[name] = event.timestamp
        elif name == "name" and isinstance(event, JobEvent):
            known[name] = event.name
        elif name in context and name != "cause":
            known[name] = context[name]
        else:
            if name in _JOB_NAMES and of_job is None and record is not None:
                of_job = _of_job(record)
            if of_job is not None and name in of_job:
                known[name] = of_job[name]
            elif name in parameters:
                known[name] = parameters[name]
            elif name in row:
                known[name] = row[name]
            elif name in _NEWER_NAMES or (record is not None and name in record.result):
                if newer is None:
                    newer = {"run": tag_of(ensemble)}
                    if record is not None:
                        newer.update(_newer(record))
                if name in newer:
                    known[name] = newer[name]
                elif name in context:
                    known[name] = None
    return known


def _of_job(record: JobRecord) -> dict[str, Any]:
    """The fields that a condition may read of this job and of its end."""
    job = record.job
    fields: dict[str, Any] = {"job": job.id, "group": job.group, "index": job.index}
    if record.queue_id is not None:
        fields["queue_id"] = record.queue_id
    if record.started is not None:
        fields["pending"] = record.started - record.submitted
    if record.status is not None:
        fields["status"] = record.status
        fields["exit_code"] = exit_code(record.status)
        if record.started is not None and record.finished is not None:
            fields["duration"] = record.finished - record.started
    if record.exception is not None:
        fields["type"] = record.exception
        fields["note"] = record.note
    return fields


def _newer(record: JobRecord) -> dict[str, Any]:
    """The fields that give way to parameters and columns of their names."""
    job = record.job
    fields: dict[str, Any] = {"attempt": job.attempt, "replica": job.replica}
    if record.source is not None:
        fields["run"] = record.source.run
    if job.duration:
        fields["limit"] = job.duration
    if record.outcome == "success":
        fields["cause"] = record.cause or "exit"
    elif record.outcome is not None or record.exception is not None:
        fields["cause"] = record.why
    fields.update(record.result)
    return fields
