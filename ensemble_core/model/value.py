"""Base class for frozen dataclasses, with comparison, hash and repr by their fields.

Subclasses use ``@dataclass(eq=False, repr=False)``, so that importing them does not generate and
compile these methods for each class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, cast

__all__ = ["Value"]


def _value_getter(cls: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    names = tuple(item.name for item in fields(cls))
    return names, attrgetter(*names) if names else lambda value: ()


#: Function that returns the names of a class's fields, and a function that reads their values.
_values = cast(
    Callable[[type[Any]], tuple[tuple[str, ...], Callable[[Any], Any]]], cache(_value_getter)
)


class Value:
    """Base class with comparison, hash and repr by the fields of a dataclass."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in _values(type(self))[0])
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        _, values = _values(type(self))
        return (values(self),) == (values(other),)

    def __hash__(self) -> int:
        _, values = _values(type(self))
        return (values(self),).__hash__()
