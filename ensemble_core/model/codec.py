"""Serialization of events, decisions and jobs, derived from the fields of their dataclasses.

If you add a field to such a dataclass, the journal, the ledger and all messages include it.

- :meth:`Record.to_dict` returns all fields but rare ones, for users (``--json``, a function's
  ``event``).
- :meth:`Record.compact` returns only the fields that differ from their defaults, for storage and
  transport.
- :meth:`Record.from_dict` creates a record from either form. ``Event.from_dict`` and
  ``Decision.from_dict`` choose the subclass by the key ``type``.
- :meth:`Record.to_json` and :func:`dumps` return JSON text. They write nan and infinity as ``NaN``
  and ``Infinity``, which ``json.loads`` can read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from itertools import compress
from operator import attrgetter, is_not
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

#: Default value of fields that are mappings.
NOTHING: Mapping[str, Any] = MappingProxyType({})

_Some = TypeVar("_Some", bound="Record")

#: Maximum depth of a plugin event's content. Anything nested more deeply is not written.
_DEEPEST = 40


class Layout(NamedTuple):
    """Fields of a record class, in the form that encoders need."""

    #: The value of the key ``type``, or ``None`` if the base class has no other subclasses.
    kind: str | None
    names: tuple[str, ...]
    #: The default of each field, or ``MISSING``.
    defaults: tuple[Any, ...]
    #: A function that returns the values of a record's fields, in order.
    values: Callable[[Any], tuple[Any, ...]]
    #: The names of the fields that are tuples. If the items of a tuple are records, the second part
    #: is their class.
    tuples: tuple[tuple[str, type[Record] | None], ...]
    #: The fields that ``to_dict`` leaves out if they have their default.
    rare: tuple[tuple[str, Any], ...]


def _layout(cls: type[Any]) -> Layout:
    found = fields(cls)
    names = tuple(item.name for item in found)
    try:
        hints = get_type_hints(cls)
    except NameError:  # a plugin's subclass uses names that are defined for type checkers only
        hints = {}
    tuples = []
    for name in names:
        if get_origin(hints.get(name)) is tuple:
            item = get_args(hints[name])[0]
            records = isinstance(item, type) and issubclass(item, Record)
            tuples.append((name, item if records else None))
    defaults = tuple(
        item.default if item.default_factory is MISSING else item.default_factory()
        for item in found
    )
    given = dict(zip(names, defaults, strict=True))
    return Layout(
        getattr(cls, "type", None),
        names,
        defaults,
        attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),),
        tuple(tuples),
        tuple((name, given[name]) for name in cls.rare_fields),
    )


#: Function that returns the layout of a record class.
layout = cast(Callable[[type[Any]], Layout], cache(_layout))


class Record:
    """Base of frozen dataclasses that can be converted to plain data and back.

    The module's docstring describes the forms.
    """

    __slots__ = ()
    #: If this class is the base of several classes: its subclasses by their ``type``.
    #: (``slots=True`` creates every class twice; the second one replaces the first.)
    kinds: ClassVar[Mapping[str, type[Any]]]
    #: The fields that ``to_dict`` leaves out if they have their default, as nearly always.
    rare_fields: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON; :meth:`from_dict` reads it back."""
        kind, names, _, values, _, rare = layout(type(self))
        data: dict[str, Any] = {} if kind is None else {"type": kind}
        for name, value in zip(names, values(self), strict=True):
            if isinstance(value, Mapping):
                value = {
                    key: dict(inner) if isinstance(inner, Mapping) else inner
                    for key, inner in value.items()
                }
            elif isinstance(value, tuple):
                value = [item.to_dict() if isinstance(item, Record) else item for item in value]
            data[name] = value
        for name, default in rare:
            if getattr(self, name) == default:
                del data[name]
        return data

    def compact(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, for :func:`dumps`.

        Records within the values are not converted. :meth:`from_dict` reads the result back."""
        kind, names, defaults, values, _, _ = layout(type(self))
        data: dict[str, Any] = {} if kind is None else {"type": kind}
        mine = values(self)
        # Most values are the default itself, and need no comparison in Python.
        others = compress(zip(names, defaults, mine, strict=True), map(is_not, mine, defaults))
        data.update({name: value for name, default, value in others if value != default})
        return data

    def to_json(self) -> str:
        """Return :meth:`compact` as JSON text."""
        return dumps(self)

    @classmethod
    def from_dict(cls: type[_Some], data: Mapping[str, Any]) -> _Some:
        """Create a record from plain data.

        Raises ``ValueError`` for an unknown type and ``TypeError`` for unknown or missing fields.
        """
        values = {**data}
        kind = values.pop("type", None)
        if "kinds" in vars(cls):
            if kind not in cls.kinds:
                raise ValueError(f"unknown {cls.__name__.lower()} type {kind!r}")
            cls = cls.kinds[kind]
        for name, item in layout(cls).tuples:
            if name in values:
                given = values[name]
                values[name] = tuple(given if item is None else map(item.from_dict, given))
        return cls(**values)


# -- text ------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Convert an object of a type that JSON does not support to one that it does."""
    if isinstance(value, Record):
        return value.compact()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    item = getattr(value, "item", None)
    if callable(item):  # a numpy number
        number = item()
        if isinstance(number, (int, float, str, bool)):
            return number
    return str(value)


def _replace_unencodable(value: object, depth: int = 0) -> object:
    """Return a copy of the value in which text replaces everything that JSON cannot hold.

    Examples are keys that are not strings, cycles and arbitrary objects.
    """
    if isinstance(value, Record):
        value = value.compact()
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {
            key
            if isinstance(key, (str, int, float)) or key is None
            else str(key): _replace_unencodable(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        return [_replace_unencodable(item, depth + 1) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    try:
        plain = _plain(value)
    except Exception:  # an error in a plugin's class: write the journal anyway
        return f"<{type(value).__name__}>"
    return plain if isinstance(plain, (str, int, float, bool)) else f"<{type(value).__name__}>"


def _encoder() -> Callable[[object], str]:
    """Return a function that encodes plain data as JSON.

    In CPython, ``JSONEncoder.encode`` creates an encoder for each text: half of the time.
    """
    made = json.JSONEncoder(separators=(",", ":"), default=_plain, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another implementation of Python
        return made.encode
    escape = json.encoder.encode_basestring_ascii
    chunks = make(None, _plain, escape, None, ":", ",", False, False, True)
    return lambda value: "".join(chunks(value, 0))


_encode = _encoder()


def dumps(value: object) -> str:
    """Return plain data as JSON text in ASCII. The data may contain records."""
    try:
        return _encode(value)
    except Exception:  # a plugin's event has content that JSON cannot hold: write it as text
        return _encode(_replace_unencodable(value))
