"""Serialization for the wire: events, jobs and errors as messages of ``ensemble.v1``, and back.

Events and jobs are JSON inside the messages, encoded by the core: what is added to one arrives. The
messages of single kinds of events are read as members of version 1.0 send them. Called by the
member agent and by the executor ``remote``; the service in the middle looks into none of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from ensemble_core import (
    EnsembleError,
    Event,
    ExecutorError,
    Job,
    JobEvent,
    ResizeOutcome,
    Resources,
)
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

_OUTCOMES = ("granted", "denied", "timeout", "undelivered")


def from_event(event: Event) -> pb.Event:
    """An event as a message, with less of the longest in it where it is too long for one. Raises
    ``ValueError`` or ``TypeError`` for one that :func:`to_event` would not take."""
    _check(event)
    text = event.to_json()
    if len(text) > MOST_BYTES:
        text = json.dumps(_shortened(json.loads(text)))
    return pb.Event(timestamp=event.timestamp, other=pb.OtherEvent(data=text))


def _shortened(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST else text[:_LONGEST]


def to_event(message: pb.Event) -> Event:
    """The event of a message. Raises ``ValueError`` or ``TypeError`` for one that is none."""
    kind = message.WhichOneof("what")
    if kind == "other":
        event = Event.from_dict({**json.loads(message.other.data), "timestamp": message.timestamp})
    elif kind == "job":
        job = message.job
        context = json.loads(job.context) if job.context else {}
        event = JobEvent(message.timestamp, job.job, job.name, context, not job.stranger)
    elif kind is not None:  # the message's fields have the names of the event's
        data: dict[str, Any] = {"type": kind.replace("_", "-"), "timestamp": message.timestamp}
        part = getattr(message, kind)
        for field in part.DESCRIPTOR.fields:
            if not field.has_presence or part.HasField(field.name):
                value = getattr(part, field.name)
                data[field.name] = dict(value) if isinstance(value, Mapping) else value
        event = Event.from_dict(data)
    else:
        raise ValueError("an event of a kind that is not known here")
    _check(event)
    return event


def _check(event: Event) -> None:
    """Raise ``ValueError`` or ``TypeError`` for an event that would do harm where it arrives."""
    wanted: list[tuple[object, type]] = []
    if isinstance(event, JobEvent):
        wanted = [(event.job, str), (event.name, str), (event.context, Mapping)]
    elif isinstance(event, Resources):
        wanted = [(value, Real) for value in dict(event.values).values()]
    outcome = event.outcome if isinstance(event, ResizeOutcome) else "granted"
    if outcome not in _OUTCOMES or not all(isinstance(value, kind) for value, kind in wanted):
        raise ValueError(f"no event that can be sent on: {event!r:.200}")


def from_jobs(jobs: Iterable[Job]) -> list[pb.Job]:
    """Jobs as messages, without what only their controller needs: which member each goes to is
    settled, and its output is read where the run is."""
    return [pb.Job(data=replace(job, executor=None, observe={}).to_json()) for job in jobs]


def to_jobs(messages: Iterable[pb.Job]) -> list[Job]:
    """The jobs of messages. Raises ``ValueError`` or ``TypeError`` for what is no job."""
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
