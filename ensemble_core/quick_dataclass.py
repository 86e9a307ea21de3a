"""Decorator ``dataclass`` whose classes compile their constructor when it is called for the third
time and share their other methods, and the functions ``field``, ``fields`` and ``replace``.

Otherwise the classes are those of ``dataclasses``. That module compiles up to six methods for each
class that is imported, and imports ``inspect``: it took a quarter of the whole time of a run of one
job, although most of the classes were never instantiated. ``InitVar``, ``KW_ONLY``, a default of a
field that is no parameter, and the options ``order`` and ``unsafe_hash`` are not supported. A
subclass that inherits these methods compares and shows its own fields, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

if TYPE_CHECKING:
    from dataclasses import MISSING, Field, dataclass, field, fields

__all__ = ["MISSING", "dataclass", "field", "fields", "replace"]

_Some = TypeVar("_Some")

#: How many objects of a class are made before its constructor is compiled, which takes as long as
#: twenty of them. In a run of one job, three classes of four have no more.
_UNCOMPILED = 2
#: Attributes of a decorated class, named as in the standard library.
_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"

if not TYPE_CHECKING:

    class _Missing:
        def __repr__(self):
            return "MISSING"

    #: Default of a field that has none.
    MISSING = _Missing()

    class Field:
        """A field of a class, with the attributes of ``dataclasses.Field``."""

        __slots__ = (
            *("name", "type", "default", "default_factory"),
            *("init", "repr", "hash", "compare", "kw_only"),
        )

        def __init__(self, default, default_factory, init, repr, hash, compare, kw_only):  # noqa: A002
            self.default, self.default_factory = default, default_factory
            self.init, self.repr, self.hash, self.compare = init, repr, hash, compare
            self.kw_only = kw_only

    def field(
        *,
        default=MISSING,
        default_factory=MISSING,
        init=True,
        repr=True,  # noqa: A002
        hash=None,  # noqa: A002
        compare=True,
        kw_only=MISSING,
    ):
        """Return the value that describes a field in the body of a class."""
        return Field(default, default_factory, init, repr, hash, compare, kw_only)

    def fields(of):
        """Return the fields of a class or of an object, also of the standard library's."""
        return (*_fields_by_name(of if isinstance(of, type) else type(of)).values(),)


@cache
def _fields_by_name(cls: type[Any]) -> dict[str, Field[Any]]:
    held = next((vars(each)[_FIELDS] for each in cls.__mro__ if _FIELDS in vars(each)), None)
    if held is None:
        raise TypeError(f"{cls.__qualname__} is no dataclass")
    if isinstance(held, _StandardFields):
        return held.own
    from dataclasses import fields as standard

    found = {each.name: _own_field(each) for each in standard(cls)}
    for each in standard(cls):
        found[each.name].name, found[each.name].type = each.name, each.type
    return found


def _own_field(standard: Any) -> Field[Any]:
    """Return a field of the standard library as one of ours."""
    import dataclasses

    given = {name: getattr(standard, name) for name in _ATTRIBUTES}
    own: Field[Any] = field(**{k: v for k, v in given.items() if v is not dataclasses.MISSING})
    return own


_ATTRIBUTES = ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")


class _StandardFields:
    """Attribute ``__dataclass_fields__``. The fields of the standard library are made when it, or a
    subclass that it makes, needs them.
    """

    def __init__(self, own: dict[str, Field[Any]]) -> None:
        self.own = own
        self._made: dict[str, Any] | None = None

    def __get__(self, instance: object, owner: type[Any]) -> dict[str, Any]:
        if self._made is None:
            import dataclasses

            entries = []
            for each in self.own.values():
                given = {name: getattr(each, name) for name in _ATTRIBUTES}
                given = {name: value for name, value in given.items() if value is not MISSING}
                entries.append((each.name, object, dataclasses.field(**given)))
            # Without a constructor, the order of the fields does not matter.
            options: dict[str, Any] = {"init": False, "repr": False, "eq": False}
            options["namespace"] = {"__doc__": "Otherwise, its signature is computed."}
            made = dataclasses.make_dataclass("_Fields", entries, **options).__dict__[_FIELDS]
            for each in self.own.values():
                made[each.name].type = each.type
            self._made = made
        return self._made


def _set(self: Any, name: str, value: object) -> None:
    _check_not_frozen(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    _check_not_frozen(self, name, "delete")
    object.__delattr__(self, name)


def _check_not_frozen(self: Any, name: str, what: str) -> None:
    cls = type(self)
    if _FIELDS in vars(cls) or name in [each.name for each in fields(cls)]:
        from dataclasses import FrozenInstanceError

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


if not TYPE_CHECKING:

    def dataclass(*, frozen=False, eq=True, slots=False, repr=True, kw_only=False):  # noqa: A002
        """Return the decorator. The arguments are those of ``dataclasses.dataclass``."""

        def decorate(cls):
            own = vars(cls)
            if frozen and ("__setattr__" in own or "__delattr__" in own):
                raise TypeError(f"{cls.__qualname__} is frozen, so it has no method for changes")
            by_name, defaults = {}, {}
            for base in cls.__mro__[-1:0:-1]:
                if _FIELDS in vars(base):
                    if vars(base)[_PARAMS].frozen != frozen:
                        raise TypeError(
                            f"{cls.__qualname__} and its bases: all or none must be frozen"
                        )
                    by_name.update(_fields_by_name(base))
            for name, annotation in own.get("__annotations__", {}).items():
                if _is_of_class(annotation):
                    continue
                default = own.get(name, MISSING)
                if type(default) is Field:
                    each = default
                elif type(default).__name__ == "Field":
                    each = _own_field(default)
                else:
                    each = field(default=default)
                if each.kw_only is MISSING:
                    each.kw_only = kw_only
                if each.default.__class__.__hash__ is None:
                    raise ValueError(
                        f"the default of the field {name!r} can be changed: give a default_factory"
                    )
                each.name, each.type = name, annotation
                defaults[name] = each.default
                by_name[name] = each
            made = {
                _FIELDS: _StandardFields(by_name),
                _PARAMS: SimpleNamespace(
                    init=True, repr=repr, eq=eq, order=False, unsafe_hash=False, frozen=frozen
                ),
                "__match_args__": tuple(
                    [e.name for e in by_name.values() if e.init and not e.kw_only]
                ),
            }
            if repr and "__repr__" not in own:
                made["__repr__"] = _repr_of_fields
            if eq:
                # A class that defines only __eq__ has the hash None.
                hashed = own.get("__hash__") or ("__hash__" in own and "__eq__" not in own)
                if not hashed:
                    made["__hash__"] = _hash_of_fields if frozen else None
                if "__eq__" not in own:
                    made["__eq__"] = _equal_fields
            if frozen:
                made["__setattr__"], made["__delattr__"] = _set, _delete
                if slots and "__getstate__" not in own:
                    made["__getstate__"], made["__setstate__"] = _get_state, _set_state
            if "__init__" not in own:
                uncompiled = iter(range(_UNCOMPILED))

                def __init__(self, *arguments, **named):  # noqa: N807
                    if next(uncompiled, None) is None or not _fill(cls, self, arguments, named):
                        cls.__init__ = _constructor(cls, frozen)
                        cls.__init__(self, *arguments, **named)

                made["__init__"] = __init__
            if slots:
                inherited = {name for base in cls.__mro__[1:] for name in _slots_of(base)}
                body = {name: value for name, value in own.items() if name not in by_name}
                body.pop("__dict__", None), body.pop("__weakref__", None)
                body["__slots__"] = tuple([name for name in by_name if name not in inherited])
                name = cls.__qualname__
                cls = type(cls)(cls.__name__, cls.__bases__, {**body, **made})
                cls.__qualname__ = name
                return cls
            for name, default in defaults.items():
                if default is not MISSING:
                    made[name] = default
                elif name in own:
                    delattr(cls, name)
            for name, value in made.items():
                setattr(cls, name, value)
            return cls

        return decorate

    def _slots_of(base):
        slots = vars(base).get("__slots__", ())
        return (slots,) if isinstance(slots, str) else slots

    def _is_of_class(annotation):
        """Return whether an attribute belongs to the class, and is no field of objects."""
        if isinstance(annotation, str):
            return annotation.partition("[")[0].endswith("ClassVar")
        return annotation is ClassVar or getattr(annotation, "__origin__", None) is ClassVar
