"""Checks the content of incoming events, so that the journal can store them and read them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.events import (
    Event,
    Identified,
    JobEvent,
    LookedUp,
    Observed,
    Problem,
    Requested,
    Resources,
)
from ensemble_core.quick_dataclass import replace

#: Latest time that is accepted, in seconds since the epoch (in the year 5138).
_LATEST = 1e11
#: Maximum length of an event, and of a string in an event that needs no closer check.
_LONGEST, _USUAL = 4 << 20, 1 << 16
#: Largest integer, and maximum depth of nesting.
_LARGEST, _DEEPEST = 1 << 64, 40
_SCALARS = frozenset({float, bool, NoneType})
#: How many kinds of malformed events are reported at most.
_MALFORMED = 100


class Admission:
    """Checks all events that come from plugins, for one run.

    Each kind of malformed event is reported once.
    """

    def __init__(
        self, executor: str, put: Callable[[Sequence[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._executor = executor
        self._put = put
        self._clock = clock
        self._reported: set[tuple[str, str]] = set()

    def admitted(self, event: Event) -> Event | None:
        """Return an event in the form in which the journal would return it.

        If the journal cannot store the event, report this and return ``None``.
        """
        if usual(event):
            return event
        found: Event | None = None
        try:
            if isinstance(event, (Requested, Identified, LookedUp)):
                raise ValueError("only Ensemble itself can send events of this type")
            found, wrong = admitted(event, self._clock())
        except Exception as error:  # an error in a plugin's class, or a RecursionError
            wrong = str(error) or type(error).__name__
        kind = type(event).__name__
        if wrong and (kind, wrong) not in self._reported and len(self._reported) < _MALFORMED:
            self._reported.add((kind, wrong))
            done = wrong if found is not None else f"{wrong}; it is dropped"
            message = (
                f"executor {self._executor} or a plugin sent a malformed event ({kind}): {done}. "
                "Reported once"
            )
            self._put((Problem(self._clock(), message, "error"),))
        return found


def usual(event: Any) -> bool:
    """Return True if an event needs no closer check."""
    kind = type(event)
    if kind is JobEvent:
        values = event.context
        if type(event.job) is not str or type(event.name) is not str or event.ours is not True:
            return False
        if event.name == "finish" and (type(values) is not dict or not _has_status(values)):
            return False
    elif kind is Observed:
        values, clock = event.values, event.clock
        if (
            type(event.job) is not str
            or type(event.observer) is not str
            or event.restarted is not False
        ):
            return False
        if type(event.unreadable) is not tuple or event.unreadable:
            return False
        if clock is not None and type(clock) is not float:
            return False
    elif kind is Resources:
        values = event.values
    else:
        return False
    time = event.timestamp
    if type(time) is not float or not -_LATEST < time < _LATEST:
        return False
    if type(values) is dict:
        return not values or _plain(values, _USUAL, 8)
    return values is NOTHING


def admitted(event: object, now: float) -> tuple[Event, str]:
    """Return the event as the journal would return it, and its defect (``""`` if it has none).

    Raises ``ValueError`` if the event cannot be stored.
    """
    if not isinstance(event, Event):
        raise ValueError(f"{type(event).__name__} is not an event")
    mended = ""
    time: object = event.timestamp
    if isinstance(time, bool) or not (isinstance(time, (int, float)) and -_LATEST < time < _LATEST):
        mended = f"invalid time of type {type(time).__name__}; the time of arrival is used"
        event = replace(event, timestamp=now)
    text = event.to_json()
    if len(text) > _LONGEST:
        raise ValueError(f"the event has {len(text) >> 20} MiB; the limit is {_LONGEST >> 20} MiB")
    again = Event.from_dict(json.loads(text))
    for name, hint in _hints(type(again)):
        value = getattr(again, name)
        if not _fits(value, hint):
            raise ValueError(f"the field {name!r} has the wrong type {type(value).__name__}")
        inner = [*value] if type(value) is tuple else [value]
        if value is NOTHING or name == "timestamp":
            continue
        if not _plain(inner, _LONGEST, _DEEPEST):
            raise ValueError(
                f"the field {name!r} contains a number that is too large, or is nested too deeply"
            )
    if isinstance(again, JobEvent) and again.name == "finish" and not _has_status(again.context):
        mended = mended or "finish without a 'status' (a wait status); the job counts as failed"
    return again, mended


def _has_status(context: Mapping[str, Any]) -> bool:
    return type(context.get("status")) is int


def _plain(values: dict[Any, Any] | list[Any], longest: int, depth: int) -> bool:
    """Return True if JSON preserves all values and they are within the limits."""
    if type(values) is dict:
        for key in values:
            if type(key) is not str:
                return False
        items: Any = values.values()
    else:
        items = values
    for value in items:
        kind = type(value)
        if kind is str:
            if len(value) > longest:
                return False
        elif kind is int:
            if not -_LARGEST < value < _LARGEST:
                return False
        elif kind not in _SCALARS and not (
            (kind is dict or kind is list) and depth and _plain(value, longest, depth - 1)
        ):
            return False
    return True


def _field_types(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls)
    return tuple((each.name, hints[each.name]) for each in fields(cls))


_hints = cast(Callable[[type[Any]], tuple[tuple[str, Any], ...]], cache(_field_types))


def _fits(value: object, hint: Any) -> bool:
    """Return True if a value from JSON has the type of the field."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        return type(value) is tuple and all(_fits(item, parts[0]) for item in value)
    if origin is not None:
        return isinstance(value, Mapping)
    return type(value) is hint or (hint is float and type(value) is int)
