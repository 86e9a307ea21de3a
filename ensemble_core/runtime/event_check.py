"""Checks incoming events: the engine handles only what the journal can reproduce.

Events come from executors, observers and users' functions. A timestamp that is text, for example,
could not be read back. :func:`usual` recognises normal events quickly; others are converted as the
journal would, corrected, or rejected. Called by the controller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
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

__all__ = ["Admission", "admitted", "usual"]

#: Seconds since the epoch beyond which no event happens (the year 5138).
_LATEST = 1e11
#: Characters of one event, and of one text that is not looked at more closely.
_LONGEST, _USUAL = 4 << 20, 1 << 16
#: Of numbers that are no more than usual; and how deep values may be inside one another.
_LARGEST, _DEEPEST = 1 << 64, 40
_SCALARS = frozenset({float, bool, NoneType})
#: Kinds of malformed events that are told of.
_MALFORMED = 100


class Admission:
    """The check of all that others' code sends to one run; ``put`` takes what is told of it, once
    of each kind."""

    def __init__(
        self, executor: str, put: Callable[[Sequence[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._executor = executor
        self._put = put
        self._clock = clock
        self._told: set[tuple[str, str]] = set()

    def admitted(self, event: Event) -> Event | None:
        """Return an event in the form that the journal can store; ``None`` if impossible."""
        if usual(event):
            return event
        found: Event | None = None
        try:
            if isinstance(event, Requested):
                raise ValueError("only a user may ask a run for an action")
            if isinstance(event, (Identified, LookedUp)):
                raise ValueError("only the run itself looks jobs up in earlier runs")
            found, wrong = admitted(event, self._clock())
        except Exception as error:  # of a plugin's own class, or deeper than Python goes
            wrong = str(error) or type(error).__name__
        kind = type(event).__name__
        if wrong and (kind, wrong) not in self._told and len(self._told) < _MALFORMED:
            self._told.add((kind, wrong))
            done = wrong if found is not None else f"{wrong}; it is dropped"
            message = (
                f"executor {self._executor} or a plugin sent a malformed event ({kind}): {done}; "
                "further ones like it are not reported"
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
        if type(event.job) is not str or type(event.observer) is not str or event.anew is not False:
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
    """The event as the journal gives it back, with what was wrong with it and is done about that,
    if anything was.

    Raises ``ValueError`` with what is wrong with one that cannot be kept.
    """
    if not isinstance(event, Event):
        raise ValueError(f"{type(event).__name__} is not an event")
    mended = ""
    time: object = event.timestamp
    if isinstance(time, bool) or not (isinstance(time, (int, float)) and -_LATEST < time < _LATEST):
        mended = f"a time of type {type(time).__name__} that is none; the time it came is taken"
        event = replace(event, timestamp=now)
    text = event.to_json()
    if len(text) > _LONGEST:
        raise ValueError(f"it is {len(text) >> 20} MiB long, of {_LONGEST >> 20} that are kept")
    again = Event.from_dict(json.loads(text))
    for name, hint in _hints(type(again)):
        value = getattr(again, name)
        if not _fits(value, hint):
            raise ValueError(f"its {name!r} is of type {type(value).__name__}")
        inner = [*value] if type(value) is tuple else [value]
        if value is NOTHING or name == "timestamp":
            continue
        if not _plain(inner, _LONGEST, _DEEPEST):
            raise ValueError(f"its {name!r} has numbers or depths that are not kept")
    if isinstance(again, JobEvent) and again.name == "finish" and not _has_status(again.context):
        mended = mended or "a finish without 'status', a wait status; the job counts as failed"
    return again, mended


def _has_status(context: Mapping[str, Any]) -> bool:
    return type(context.get("status")) is int


def _plain(values: dict[Any, Any] | list[Any], longest: int, depth: int) -> bool:
    """True if there is nothing but what JSON gives back as it is, within bounds."""
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


def _hints_of(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls)
    return tuple((each.name, hints[each.name]) for each in fields(cls))


_hints = cast(Callable[[type[Any]], tuple[tuple[str, Any], ...]], cache(_hints_of))


def _fits(value: object, hint: Any) -> bool:
    """True if a value that came out of JSON is of a field's type."""
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
