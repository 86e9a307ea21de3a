"""Decorator ``dataclass`` whose classes compile their constructor when it is first called, and a
fast ``replace``.

Otherwise the classes are those of ``dataclasses.dataclass``, which compiles three methods for each
class that is imported. That took a fifth of the whole time of a run of one job, although most of
the classes were never instantiated. ``InitVar``, and a default of a field that is no parameter, are
not supported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

__all__ = ["dataclass", "replace"]

_Some = TypeVar("_Some")


def _set(self: Any, name: str, value: object) -> None:
    _check_not_frozen(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    _check_not_frozen(self, name, "delete")
    object.__delattr__(self, name)


def _check_not_frozen(self: Any, name: str, what: str) -> None:
    cls = type(self)
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what} field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


def _constructor(cls: type[Any], frozen: bool) -> Any:
    """Compile the constructor of a dataclass."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    by_place: list[str] = ["self"]
    by_name: list[str] = []
    lines: list[str] = []
    for each in fields(cls):
        if not each.init:
            continue
        name = value = each.name
        given = by_name if each.kw_only else by_place
        if each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            given.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif each.default is not MISSING:
            names[f"_default_{name}"] = each.default
            given.append(f"{name}=_default_{name}")
        else:
            given.append(name)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*by_place, *(["*", *by_name] if by_name else [])])
    made: dict[str, Any] = {}
    source = "\n ".join([f"def __init__({parameters}):", *(lines or ["pass"])])
    exec(source, names, made)  # noqa: S102  (names of the class's own fields)
    made["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return made["__init__"]


def _getter(cls: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    names = tuple(each.name for each in fields(cls) if each.init)
    return names, attrgetter(*names) if len(names) > 1 else lambda value: [
        getattr(value, name) for name in names
    ]


#: Function that returns the names of a class's parameters, and a function that reads their values.
_parameters = cast(
    Callable[[type[Any]], tuple[tuple[str, ...], Callable[[Any], Any]]], cache(_getter)
)


def replace(value: _Some, /, **changes: Any) -> _Some:
    """Return a copy with changed fields, as ``dataclasses.replace`` does.

    That function looks at each field in turn. For a class with fifty fields, it took a tenth of
    the time of a submit that changes one of them.
    """
    names, values = _parameters(type(value))
    return type(value)(**{**dict(zip(names, values(value), strict=True)), **changes})


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen=False, eq=True, slots=False, **options):
        """Return the decorator. The arguments are those of ``dataclasses.dataclass``."""

        def decorate(cls):
            if (frozen and eq) or "__init__" in vars(cls):  # needs a hash; has its own constructor
                return dataclasses.dataclass(cls, frozen=frozen, eq=eq, slots=slots, **options)
            bases = [vars(each).get("__dataclass_params__") for each in cls.__mro__[1:]]
            bases = [each for each in bases if each is not None]
            if any(each.frozen != frozen for each in bases):
                raise TypeError(f"{cls.__qualname__} and its bases: all or none must be frozen")
            # For a frozen class, the standard library would compile two methods that reject
            # changes; it rejects a class that is not frozen if its bases are.
            for each in bases:
                each.frozen = False
            try:
                made = dataclasses.dataclass(cls, init=False, eq=eq, slots=slots, **options)
            finally:
                for each in bases:
                    each.frozen = frozen
            made.__dataclass_params__.init = True
            made.__dataclass_params__.frozen = frozen
            if frozen:
                made.__setattr__, made.__delattr__ = _set, _delete
                if slots and "__getstate__" not in vars(made):
                    made.__getstate__, made.__setstate__ = _get_state, _set_state

            def __init__(self, *arguments, **named):  # noqa: N807
                made.__init__ = _constructor(made, frozen)
                made.__init__(self, *arguments, **named)

            made.__init__ = __init__
            return made

        return decorate
