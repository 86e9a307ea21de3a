"""Decorator ``dataclass`` whose classes compile their constructor when it is called for the third
time and share their other methods, and a fast ``replace``.

Otherwise the classes are those of ``dataclasses.dataclass``, which compiles up to six methods for
each class that is imported, and parses the annotation of each field. That took a quarter of the
whole time of a run of one job, although most of the classes were never instantiated. ``InitVar``,
a default for a field with ``init=False``, and the options ``order`` and ``unsafe_hash`` are not
supported. A subclass that inherits these methods compares and shows its own fields, too.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

__all__ = ["dataclass", "replace"]

_Some = TypeVar("_Some")

#: How many objects of a class are made before its constructor is compiled, which takes as long as
#: twenty of them. In a run of one job, three classes of four have no more.
_UNCOMPILED = 2


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


_Reader = Callable[[type[Any]], tuple[tuple[str, ...], Callable[[Any], Any]]]


def _reader(use: str) -> _Reader:
    """Return a function that returns the names of the fields that a class uses for ``repr``,
    ``compare`` or ``hash``, and a function that reads their values.
    """

    def reader(cls: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
        uses = ((each, getattr(each, use)) for each in fields(cls))
        names = tuple(each.name for each, used in uses if (each.compare if used is None else used))
        return names, attrgetter(*names) if names else lambda value: ()

    return cast(_Reader, cache(reader))


_shown, _compared, _hashed = map(_reader, ("repr", "compare", "hash"))


@recursive_repr()
def _repr_of_fields(self: Any) -> str:
    """Return the class's name and its fields, as the method of a dataclass does."""
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in _shown(type(self))[0])
    return f"{type(self).__qualname__}({values})"


def _equal_fields(self: Any, other: object) -> Any:
    """Compare the fields of two instances of a class, as the method of a dataclass does."""
    if type(other) is not type(self):
        return NotImplemented
    values = _compared(type(self))[1]
    return (values(self),) == (values(other),)


def _hash_of_fields(self: Any) -> int:
    """Return the hash of the fields."""
    return (_hashed(type(self))[1](self),).__hash__()


def _is_special(annotation: object) -> bool:
    """Return whether an annotation may be one that makes no field, or one that is no text."""
    words = ("ClassVar", "InitVar", "KW_ONLY")
    return not isinstance(annotation, str) or any(word in annotation for word in words)


def _opened(cls: type[Any]) -> type[Any]:
    """Return a subclass of a frozen class whose instances can be changed.

    CPython assigns slots directly only if the class inherits both methods from ``object``.
    """
    plain = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type("_Open", (cls,), {"__slots__": (), **plain})


#: Function that makes only one subclass of each class.
_open = cast(Callable[[type[Any]], type[Any]], cache(_opened))


def _fill(
    cls: type[Any], made: Any, arguments: Sequence[object], named: Mapping[str, object]
) -> bool:
    """Assign the fields as the constructor does. Return False if the arguments do not fit."""
    given = [each for each in fields(cls) if each.init]
    places = [each.name for each in given if not each.kw_only]
    values = {**dict(zip(places, arguments, strict=False)), **named}
    if len(values) < len(arguments) + len(named):
        return False
    assign = object.__setattr__ if cls.__dataclass_params__.frozen else setattr
    for each in given:
        if each.name in values:
            value = values.pop(each.name)
        elif each.default is not MISSING:
            value = each.default
        elif each.default_factory is not MISSING:
            value = each.default_factory()
        else:
            return False
        assign(made, each.name, value)
    if values:
        return False
    if hasattr(cls, "__post_init__"):
        made.__post_init__()
    return True


def _constructor(cls: type[Any], frozen: bool) -> Any:
    """Compile the constructor of a dataclass.

    For a frozen class, it switches the object to a subclass that is not frozen, assigns the fields,
    and switches back. This takes a quarter of the time of ``object.__setattr__``.
    """
    switch: Any = object.__dict__["__class__"]
    names: dict[str, Any] = {"_missing": MISSING, "_switch": switch.__set__, "_open": _open}
    by_place: list[str] = ["self"]
    by_name: list[str] = []
    lines: list[str] = []
    for each in fields(cls):
        if not each.init:
            continue
        name = value = each.name
        given = by_name if each.kw_only else by_place
        default = each.default
        if each.default_factory is not MISSING and frozen:
            made = each.default_factory()
            # One that cannot be changed is shared.
            default = made if type(made) is MappingProxyType else default
        if default is not MISSING:
            names[f"_default_{name}"] = default
            given.append(f"{name}=_default_{name}")
        elif each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            given.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            given.append(name)
        lines.append(f"self.{name} = {value}")
    if frozen:
        names |= {"_own": cls, "_own_open": _open(cls)}
        given_class = "_class = self.__class__"
        opened = "_switch(self, _own_open if _class is _own else _open(_class))"
        lines = [given_class, opened, *lines, "self.__class__ = _class"]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*by_place, *(["*", *by_name] if by_name else [])])
    compiled: dict[str, Any] = {}
    source = "\n ".join([f"def __init__({parameters}):", *(lines or ["pass"])])
    exec(source, names, compiled)  # noqa: S102  (names of the class's own fields)
    compiled["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled["__init__"]


def _getter(cls: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    names = tuple(each.name for each in fields(cls) if each.init)
    return names, attrgetter(*names) if len(names) > 1 else lambda value: [
        getattr(value, name) for name in names
    ]


#: Function that returns the names of a class's parameters, and a function that reads their values.
_parameters = cast(_Reader, cache(_getter))


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
    _lock = threading.Lock()

    def dataclass(*, frozen=False, eq=True, slots=False, **options):
        """Return the decorator. The arguments are those of ``dataclasses.dataclass``."""

        def decorate(cls):
            own = vars(cls)
            if "__init__" in own:
                return dataclasses.dataclass(cls, frozen=frozen, eq=eq, slots=slots, **options)
            if frozen and ("__setattr__" in own or "__delattr__" in own):
                raise TypeError(f"{cls.__qualname__} is frozen, so it has no method for changes")
            bases = [vars(each).get("__dataclass_params__") for each in cls.__mro__[1:]]
            bases = [each for each in bases if each is not None]
            if any(each.frozen != frozen for each in bases):
                raise TypeError(f"{cls.__qualname__} and its bases: all or none must be frozen")
            # For a frozen class, the standard library would compile two methods that reject
            # changes; it rejects a class that is not frozen if its bases are.
            given = {**options, "init": False, "eq": False, "repr": False, "slots": slots}
            # It would parse each annotation that is a string. Hide those that cannot be special.
            annotations = own.get("__annotations__", {})
            texts = {name: text for name, text in annotations.items() if not _is_special(text)}
            with _lock:  # another thread may import a module with a class of the same bases
                for each in bases:
                    each.frozen = False
                annotations.update(dict.fromkeys(texts, object))
                try:
                    made = dataclasses.dataclass(cls, **given)
                finally:
                    annotations.update(texts)
                    for each in bases:
                        each.frozen = frozen
            for name, text in texts.items():
                made.__dataclass_fields__[name].type = text
            made.__dataclass_params__.init = True
            made.__dataclass_params__.frozen = frozen
            made.__dataclass_params__.eq = eq
            made.__dataclass_params__.repr = options.get("repr", True)
            if made.__dataclass_params__.repr and "__repr__" not in own:
                made.__repr__ = _repr_of_fields
            if eq:
                # A class that defines only __eq__ has the hash None.
                hashed = own.get("__hash__") or ("__hash__" in own and "__eq__" not in own)
                if not hashed:
                    made.__hash__ = _hash_of_fields if frozen else None
                if "__eq__" not in own:
                    made.__eq__ = _equal_fields
            if frozen:
                made.__setattr__, made.__delattr__ = _set, _delete
                if slots and "__getstate__" not in vars(made):
                    made.__getstate__, made.__setstate__ = _get_state, _set_state

            uncompiled = iter(range(_UNCOMPILED))

            def __init__(self, *arguments, **named):  # noqa: N807
                if next(uncompiled, None) is None or not _fill(made, self, arguments, named):
                    made.__init__ = _constructor(made, frozen)
                    made.__init__(self, *arguments, **named)

            made.__init__ = __init__
            return made

        return decorate
