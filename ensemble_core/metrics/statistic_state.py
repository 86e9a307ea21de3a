"""Converts the state of a statistic to plain data, for a snapshot, and back.

A resume first builds the statistic as at the start of a run, and then sets the attributes that had
changed since. Changed attributes must be plain data, or objects to which the same applies.
Otherwise, the statistic needs ``__getstate__`` and ``__setstate__``.
"""

from __future__ import annotations

import copyreg
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

_SCALARS = (bool, int, float, str, bytes, type(None))


class NoState(TypeError):
    """Error: a statistic's state is not plain data."""


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, deque)):
        known = type(value) in (list, tuple, set, deque)
        return known and all(map(_plain, value))
    if type(value) is dict:
        return all(map(_plain, value)) and all(map(_plain, value.values()))
    return type(value) in _SCALARS


def _are_equal(one: Any, other: Any) -> bool:
    """Return True if two constructor arguments are the same function or equal objects."""
    if isinstance(one, partial) and isinstance(other, partial):
        parts = zip((one.func, *one.args), (other.func, *other.args), strict=False)
        alike = len(one.args) == len(other.args) and one.keywords == other.keywords
        return alike and all(_are_equal(*pair) for pair in parts)
    return one is other or (type(one) is type(other) and bool(one == other))


def _constructor_and_state(statistic: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the constructor arguments and the state from which ``copy`` would rebuild an object.

    The state is a mapping of attributes, or the result of ``__getstate__``.
    """
    cls = type(statistic)
    made, arguments, state, items, pairs = (*statistic.__reduce_ex__(2), None, None, None)[:5]
    if made is not copyreg.__newobj__ or items or pairs:  # type: ignore[attr-defined]
        raise NoState(f"{cls.__name__} has state besides its attributes")
    if hasattr(cls, "__setstate__"):
        return arguments, state
    both = state if isinstance(state, tuple) else (state,)
    return arguments, {name: value for part in both for name, value in (part or {}).items()}


def state_of(statistic: Any, fresh: Any) -> Any:
    """Return the state of ``statistic`` as plain data.

    ``fresh`` is a newly built statistic of the same kind. Attributes whose objects are equal in
    both are left out. Raises :class:`NoState`, and also any error in the statistic's own code.
    """
    (made_with, state), (fresh_with, at_first) = (
        _constructor_and_state(statistic),
        _constructor_and_state(fresh),
    )
    if made_with != fresh_with:
        raise NoState(f"{type(statistic).__name__} is built with different arguments each time")
    if not hasattr(type(statistic), "__setstate__"):
        return list(_changes(statistic, state, at_first))
    if not _plain(state):
        raise NoState(f"__getstate__ of {type(statistic).__name__} does not return plain data")
    return state


def _changes(
    statistic: Any, state: dict[str, Any], fresh: dict[str, Any]
) -> Iterator[tuple[str, bool, Any]]:
    """Yield each changed attribute: its name, whether its value is itself an object with a state,
    and that state or else the value.
    """
    if fresh.keys() - state.keys():
        raise NoState(f"{type(statistic).__name__} has lost an attribute")
    for name, value in state.items():
        if _plain(value):
            yield name, False, value
        elif name not in fresh or type(fresh[name]) is not type(value):
            raise NoState(f"{type(statistic).__name__}.{name} is missing in a new object")
        elif not _are_equal(value, fresh[name]):
            yield name, True, state_of(value, fresh[name])


def put_state(statistic: Any, state: Any) -> None:
    """Restore a state that :func:`state_of` returned. ``statistic`` must be newly built."""
    if hasattr(type(statistic), "__setstate__"):
        statistic.__setstate__(state)
        return
    for name, has_state, value in state:
        if has_state:
            put_state(getattr(statistic, name), value)
        else:
            object.__setattr__(statistic, name, value)
