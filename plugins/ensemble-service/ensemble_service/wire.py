"""Converts events, jobs and errors to messages of ``ensemble.v1`` and back.

Events and jobs are sent as JSON, so new fields need no change in this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import Any

from ensemble_core import (
    EnsembleError,
    Event,
    ExecutorError,
    ExecutorLost,
    Job,
    JobEvent,
    Observed,
    PluginEvent,
    Problem,
    ResizeOutcome,
    Resources,
)
from ensemble_service.proto import ensemble_pb2 as pb

#: Maximum number of jobs or events, of job ids, and of bytes in one message: well below what a
#: service accepts.
MOST_ITEMS, MOST_IDS, MOST_BYTES = 500, 2_000, 1_000_000
#: Length to which the texts of an event are shortened if the event is too long.
_LONGEST = 10_000
#: Limits of an event: characters of a name, entries of a mapping, nesting levels.
_MOST_NAME, _MOST_ENTRIES, _DEEPEST = 300, 1_000, 20
#: Length of the longest JSON that is parsed without checking its nesting first.
_SHORT = 200

_OUTCOMES = ("granted", "denied", "timeout", "undelivered")
#: The fields of a job event's context.
_TEXTS = ("type", "note", "cause", "workdir", "stdout", "stderr")


def clean(text: str, most: int = 2_000) -> str:
    """Return a text from a peer as one line of at most ``most`` characters.

    Control characters become spaces.
    """
    text = text[: most + 1]
    if not text.isprintable():
        text = "".join(each if each.isprintable() else " " for each in text)
        text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def from_event(event: Event) -> pb.Event:
    """Encode an event. Shorten long texts if the event does not fit in a message.

    Raises ``ValueError`` or ``TypeError`` if :func:`to_event` would reject the event.
    """
    _check(event)
    text = event.to_json()
    if len(text) > MOST_BYTES:
        text = json.dumps(_shorten(json.loads(text)))
    if len(text) > MOST_BYTES:
        raise ValueError(f"the event is too long: {len(text)} bytes, at most {MOST_BYTES}")
    return pb.Event(timestamp=event.timestamp, data=text)


def _shorten(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shorten(inner) for key, inner in value.items()}
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST else text[:_LONGEST]


def to_event(message: pb.Event) -> Event:
    """Decode an event. Raise ``ValueError``, ``TypeError`` or ``RecursionError`` if invalid."""
    data = {**_loads(message.data), "timestamp": message.timestamp}
    data.pop("origin", None)  # see event_delivery
    event = Event.from_dict(data)
    _check(event)
    return event


def _loads(data: str) -> Any:
    """Parse a member's JSON, within the limits of an event."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"the JSON text is too long: {len(data)} characters, at most {MOST_BYTES}")
    value = json.loads(data)
    if "\\u" in data and "\\ud" in data.lower():
        # A lone surrogate is valid in JSON, but nowhere else.
        text = json.dumps(value, ensure_ascii=False)
        value = json.loads(text.encode("utf-8", "replace"))
    # Short text cannot be nested too deeply.
    if len(data) > _SHORT and data.count("{") + data.count("[") > _DEEPEST:
        _check_depth(value, _DEEPEST)
    return value


def _check_depth(value: object, left: int) -> None:
    if isinstance(value, (dict, list)):
        if not left:
            raise ValueError(f"the JSON text is nested more than {_DEEPEST} levels deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, left - 1)


def _check(event: Event) -> None:
    """Raise ``ValueError`` or ``TypeError`` for an event that would harm its receiver."""
    if type(event) is JobEvent and _is_usual(event):
        return
    given: Any = event  # the types of the fields are unchecked here
    when = given.timestamp
    good = _is_number(when) and isfinite(when) and 0 <= when < 1e11
    if isinstance(event, JobEvent):
        context = given.context
        good = (
            good
            and _is_name(given.job)
            and _is_name(given.name)
            and type(given.ours) is bool
            and isinstance(context, Mapping)
            and (not context or _is_context(context))
        )
    elif isinstance(event, Resources):
        good = good and _are_values(given.values)
    elif isinstance(event, ResizeOutcome):
        size = given.size
        good = (
            good
            and _is_name(given.request)
            and given.outcome in _OUTCOMES
            and (size is None or (type(size) is int and abs(size) < 1e9))
            and isinstance(given.reason, str)
        )
    elif isinstance(event, Observed):
        good = (
            good
            and _is_name(given.job)
            and _is_name(given.observer)
            and _are_values(given.values)
            and (given.clock is None or _is_number(given.clock))
            and type(given.restarted) is bool
            and isinstance(given.unreadable, tuple)
            and all(isinstance(name, str) and name in given.values for name in given.unreadable)
        )
    elif isinstance(event, Problem):
        good = (
            good
            and isinstance(given.message, str)
            and given.level in ("info", "warning", "error")
            and isinstance(given.jobs, tuple)
            and all(_is_name(job) for job in given.jobs)
        )
    elif isinstance(event, ExecutorLost):
        texts = (given.executor, given.reason, given.hint)
        good = good and all(isinstance(text, str) for text in texts)
    elif isinstance(event, PluginEvent):
        good = (
            good
            and _is_name(given.name)
            and isinstance(given.data, Mapping)
            and (given.job is None or _is_name(given.job))
        )
    if not good:
        raise ValueError(f"not a valid event: {event!r:.200}")


def _is_usual(event: JobEvent) -> bool:
    """Return True for a job event that needs no closer check, as most do."""
    context = event.context
    return (
        type(event.timestamp) is float
        and 0 <= event.timestamp < 1e11
        and type(event.job) is str
        and type(event.name) is str
        and 0 < len(event.job) <= _MOST_NAME
        and 0 < len(event.name) <= _MOST_NAME
        and event.ours is True
        and (
            (not context and isinstance(context, Mapping))
            or (
                (type(context) is dict and len(context) == 1 and type(context.get("status")) is int)
                and -(2**63) <= context["status"] < 2**63
            )
        )
    )


def _is_number(value: object) -> bool:
    kind = type(value)
    if kind is float:
        return True
    if kind is int:
        return -(2**63) <= value < 2**63  # type: ignore[operator]  # it is an int
    return isinstance(value, Real) and kind is not bool


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME


def _are_values(values: object) -> bool:
    return (
        isinstance(values, Mapping)
        and len(values) <= _MOST_ENTRIES
        and all(_is_name(path) and _is_number(value) for path, value in dict(values).items())
    )


def _is_context(context: Mapping[str, Any]) -> bool:
    if len(context) > _MOST_ENTRIES or not all(isinstance(key, str) for key in context):
        return False
    for key in _TEXTS:
        if key in context and not isinstance(context[key], (str, type(None))):
            return False
    return all(
        key not in context or context[key] is None or _is_number(context[key])
        for key in ("status", "severity")
    )


def from_jobs(jobs: Iterable[Job]) -> list[pb.Job]:
    """Encode jobs, without the fields ``executor`` and ``observe``.

    Only the controller needs these: it chooses the member, and reads the jobs' output itself.
    """
    return [pb.Job(data=replace(job, executor=None, observe={}).to_json()) for job in jobs]


def to_jobs(messages: Iterable[pb.Job]) -> list[Job]:
    """Decode jobs. Raise ``ValueError`` or ``TypeError`` for invalid ones."""
    return [Job.from_dict(json.loads(message.data)) for message in messages]


def in_parts(jobs: Sequence[pb.Job]) -> Iterator[list[pb.Job]]:
    """Split jobs into parts that each fit in one message."""
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
    """Encode an executor's error."""
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
    """Decode a member's error, and add the member's name to it."""
    message = clean(fault.message)
    return ExecutorError(
        f"member {member}: {message}" if member else message,
        cause=clean(fault.cause) or None,
        hint=clean(fault.hint) or None,
        code=clean(fault.code, 100) or "error",
        transient=fault.transient,
    )
