"""State of a statistic as plain data, and back upon one that was built anew.

A snapshot holds no code and names no class of a plugin: a statistic is built by its plugin, as at
the start of a run, and is given what values made of it. Which attributes those are follows from the
object; one that holds anything but plain data says itself what to keep, by ``__getstate__`` and
``__setstate__``. Used by snapshots of the engine, and by statistics that hold others.
"""

from __future__ import annotations

import copyreg
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

__all__ = ["NoState", "put_state", "state_of"]

_SCALARS = (bool, int, float, str, bytes, type(None))


class NoState(TypeError):
    """A statistic's state is not plain data."""


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, deque)):
        known = type(value) in (list, tuple, set, deque)
        return known and all(map(_plain, value))
    if type(value) is dict:
        return all(map(_plain, value)) and all(map(_plain, value.values()))
    return type(value) in _SCALARS


def _same(one: Any, other: Any) -> bool:
    """True if both are what a statistic is built with: the same function or object."""
    if isinstance(one, partial) and isinstance(other, partial):
        parts = zip((one.func, *one.args), (other.func, *other.args), strict=False)
        alike = len(one.args) == len(other.args) and one.keywords == other.keywords
        return alike and all(_same(*pair) for pair in parts)
    return one is other or (type(one) is type(other) and bool(one == other))


def _kept(statistic: Any) -> tuple[tuple[Any, ...], Any]:
    """The parts of an object that Python itself would copy: its constructor's arguments and its
    state (attributes by name, or what ``__getstate__`` gives)."""
    cls = type(statistic)
    made, arguments, state, items, pairs = (*statistic.__reduce_ex__(2), None, None, None)[:5]
    if made is not copyreg.__newobj__ or items or pairs:  # type: ignore[attr-defined]
        raise NoState(f"{cls.__name__} is more than its attributes")
    if hasattr(cls, "__setstate__"):
        return arguments, state
    both = state if isinstance(state, tuple) else (state,)
    return arguments, {name: value for part in both for name, value in (part or {}).items()}


def state_of(statistic: Any, fresh: Any) -> Any:
    """The state of ``statistic`` as plain data, relative to ``fresh``, which was built a moment
    ago. Raises :class:`NoState`, and whatever the objects raise."""
    (made_with, state), (fresh_with, at_first) = _kept(statistic), _kept(fresh)
    if made_with != fresh_with:
        raise NoState(f"{type(statistic).__name__} is built otherwise each time")
    if not hasattr(type(statistic), "__setstate__"):
        return list(_changes(statistic, state, at_first))
    if not _plain(state):
        raise NoState(f"what __getstate__ of {type(statistic).__name__} gives is not plain data")
    return state


def _changes(
    statistic: Any, state: dict[str, Any], fresh: dict[str, Any]
) -> Iterator[tuple[str, bool, Any]]:
    """Each attribute's name, whether its value is an object with a state, and that or the value."""
    if fresh.keys() - state.keys():
        raise NoState(f"{type(statistic).__name__} has lost an attribute")
    for name, value in state.items():
        if _plain(value):
            yield name, False, value
        elif name not in fresh or type(fresh[name]) is not type(value):
            raise NoState(f"{type(statistic).__name__}.{name} was not there when it was built")
        elif not _same(value, fresh[name]):
            yield name, True, state_of(value, fresh[name])


def put_state(statistic: Any, state: Any) -> None:
    """Give a statistic that was built a moment ago the state that :func:`state_of` told."""
    if hasattr(type(statistic), "__setstate__"):
        statistic.__setstate__(state)
        return
    for name, has_state, value in state:
        if has_state:
            put_state(getattr(statistic, name), value)
        else:
            object.__setattr__(statistic, name, value)
