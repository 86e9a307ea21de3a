"""Events, jobs and errors as the messages of ``ensemble.v1``, and back.

Called by the member agent and by the executor ``remote``; the service in the middle hands messages
on and looks into none of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

from ensemble_core.errors import EnsembleError, ExecutorError
from ensemble_core.model.events import (
    Event,
    ExecutorLost,
    JobEvent,
    Problem,
    ResizeOutcome,
    Resources,
    event_from_dict,
)
from ensemble_core.model.jobs import Job
from ensemble_service.proto import ensemble_pb2 as pb

__all__ = [
    "MOST_BYTES",
    "MOST_IDS",
    "MOST_ITEMS",
    "from_error",
    "from_event",
    "from_jobs",
    "in_parts",
    "to_error",
    "to_event",
    "to_jobs",
]

#: Jobs or events in one message, job ids in one, and bytes in one: well below what a service takes.
MOST_ITEMS, MOST_IDS, MOST_BYTES = 500, 10_000, 1_000_000
#: The longest text that an event may carry where the event as a whole is too long.
_LONGEST = 10_000

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_dumps = json.JSONEncoder(separators=(",", ":"), default=dict).encode
_OUTCOMES = ("granted", "denied", "timeout", "undelivered")


def from_event(event: Event) -> pb.Event:
    """An event as a message. Raises ``TypeError`` or ``ValueError`` for what JSON cannot hold."""
    if isinstance(event, JobEvent):
        context = _dumps(event.context) if event.context else ""
        if len(context) > MOST_BYTES:
            context = _dumps({key: _shortened(value) for key, value in event.context.items()})
        return pb.Event(
            timestamp=event.timestamp,
            job=pb.JobEvent(
                job=event.job, name=event.name, context=context, stranger=not event.ours
            ),
        )
    message = pb.Event(timestamp=event.timestamp)
    if isinstance(event, Resources):
        message.resources.values.update(event.values)
    elif isinstance(event, ResizeOutcome):
        outcome = message.resize_outcome
        outcome.request, outcome.outcome, outcome.reason = (
            event.request,
            event.outcome,
            event.reason,
        )
        if event.size is not None:
            outcome.size = event.size
    elif isinstance(event, Problem):
        message.problem.message = event.message[:_LONGEST]
        message.problem.level = event.level
    elif isinstance(event, ExecutorLost):
        lost = message.executor_lost
        lost.executor, lost.reason, lost.hint = event.executor, event.reason, event.hint
    else:
        message.other.data = _dumps(event.to_dict())
    return message


def _shortened(value: object) -> object:
    text = value if isinstance(value, str) else _dumps(value)
    return value if len(text) <= _LONGEST else text[:_LONGEST]


def to_event(message: pb.Event) -> Event:
    """The event of a message. Raises ``ValueError`` or ``TypeError`` for one that is none."""
    kind = message.WhichOneof("what")
    when = message.timestamp
    if kind == "job":
        job = message.job
        context = json.loads(job.context) if job.context else _NOTHING
        if not isinstance(context, Mapping):
            raise ValueError(f"the context of an event is no object: {job.context[:80]}")
        return JobEvent(when, job.job, job.name, context, not job.stranger)
    if kind == "resources":
        return Resources(when, dict(message.resources.values))
    if kind == "resize_outcome":
        outcome = message.resize_outcome
        if outcome.outcome not in _OUTCOMES:
            raise ValueError(f"no outcome of a resize: {outcome.outcome!r}")
        return ResizeOutcome(
            when,
            outcome.request,
            cast(Any, outcome.outcome),
            outcome.size if outcome.HasField("size") else None,
            outcome.reason,
        )
    if kind == "problem":
        level: Literal["warning", "error"] = (
            "error" if message.problem.level == "error" else "warning"
        )
        return Problem(when, message.problem.message, level)
    if kind == "executor_lost":
        lost = message.executor_lost
        return ExecutorLost(when, lost.executor, lost.reason, lost.hint)
    if kind == "other":
        return event_from_dict(json.loads(message.other.data))
    raise ValueError("an event of a kind that is not known here")


def from_jobs(jobs: Iterable[Job]) -> list[pb.Job]:
    """Jobs as messages, without what only their controller needs."""
    return [pb.Job(data=_dumps(_bare(job))) for job in jobs]


def _bare(job: Job) -> dict[str, object]:
    data = job.compact()
    # Which member it goes to is settled, and its output is read where the run is.
    data.pop("executor", None)
    data.pop("observe", None)
    return data


def to_jobs(messages: Iterable[pb.Job]) -> list[Job]:
    """The jobs of messages. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no
    job."""
    return [Job.from_dict(json.loads(message.data)) for message in messages]


def in_parts(jobs: Sequence[pb.Job]) -> Iterator[list[pb.Job]]:
    """Jobs in parts of which each fits into one message."""
    part: list[pb.Job] = []
    size = 0
    for job in jobs:
        length = len(job.data)
        if part and (len(part) >= MOST_ITEMS or size + length > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(job)
        size += length
    if part:
        yield part


def from_error(error: BaseException) -> pb.Fault:
    """What an executor raised, as a message."""
    if isinstance(error, EnsembleError):
        return pb.Fault(
            message=error.what[:_LONGEST],
            cause=(error.cause or "")[:_LONGEST],
            hint=(error.hint or "")[:_LONGEST],
            code=error.code,
            transient=error.transient,
        )
    return pb.Fault(message=f"{type(error).__name__}: {error}"[:_LONGEST], code="fault")


def to_error(fault: pb.Fault, member: str = "") -> ExecutorError:
    """What a member raised, as an error that says where."""
    return ExecutorError(
        f"member {member}: {fault.message}" if member else fault.message,
        cause=fault.cause or None,
        hint=fault.hint or None,
        code=fault.code or "error",
        transient=fault.transient,
    )
