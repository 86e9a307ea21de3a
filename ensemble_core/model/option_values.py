"""Options and other mappings of a job group: how they are changed, filled in and converted.

The functions here hold for every mapping of a group, for each executor's options, at any depth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ensemble_core.model.numbers import as_text, whole
from ensemble_core.model.placeholders import fill, placeholders

_BOOLEANS = {"true": True, "false": False, 1: True, 0: False}


def nodes(value: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield the path and value of everything in a mapping, at any depth. Lists are values."""
    for key, inner in value.items():
        path = (*above, key)
        yield path, inner
        if isinstance(inner, Mapping):
            yield from nodes(inner, path)


def leaves(values: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the path and value of everything in a mapping that is not a mapping itself."""
    return ((path, value) for path, value in nodes(values) if not isinstance(value, Mapping))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with these changes (JSON Merge Patch, RFC 7396).

    Mappings are merged key by key, at any depth. ``None`` removes a key. Every other value, also a
    list, replaces the old one.

    >>> merged({"mem": "1G", "qos": "low", "shell": {"a": 1}}, {"qos": None, "shell": {"b": 2}})
    {'mem': '1G', 'shell': {'a': 1, 'b': 2}}
    """
    found = dict(base)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            old = found.get(key)
            found[key] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            found[key] = value
    return found


class OptionText(str):
    """An option with a placeholder, where the executor accepts other types than text.

    ``types`` has the types in words of JSON Schema; empty: any type.
    """

    __slots__ = ("types",)

    types: Collection[str]

    def __new__(cls, text: str, types: Collection[str]) -> OptionText:
        made = super().__new__(cls, text)
        made.types = types
        return made


def has_braces(value: Any) -> bool:
    """Return True if filling in may change one of these options."""
    if isinstance(value, str):
        return "{" in value
    if isinstance(value, Mapping):
        return any("{" in key or has_braces(inner) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(map(has_braces, value))


def fill_options(value: Any, values: Mapping[str, object]) -> Any:
    """Fill in the placeholders of all texts and keys in options.

    >>> fill_options({"mem": "{m}G", "nice": OptionText("{n}", ["integer"])}, {"m": 2.0, "n": 5})
    {'mem': '2G', 'nice': 5}
    """
    if isinstance(value, OptionText):
        only = next(placeholders(value), None)
        if only is not None and only.text == value and only.form is None and only.name in values:
            return converted(values[only.name], value.types)
        return converted(fill(value, values), value.types)
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, Mapping):
        return {fill(key, values): fill_options(inner, values) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [fill_options(inner, values) for inner in value]
    return value


def converted(value: Any, types: Collection[str]) -> Any:
    """Return a computed value as one of these types (of JSON Schema) if it can be, or unchanged.

    Whole floats become integers. An empty collection stands for any type.

    >>> converted(600.0, ["string", "integer"]), converted(2.0, ["string"])
    (600, '2')
    >>> converted("5", ["integer"]), converted("true", ["boolean"])
    (5, True)
    """
    value = whole(value)
    if not types or value is None or isinstance(value, (list, tuple, Mapping)):
        return value
    if isinstance(value, str) and "string" in types:
        return value
    if not isinstance(value, (str, bool)) and not {"number", "integer"}.isdisjoint(types):
        return value
    if "boolean" in types and value in _BOOLEANS:
        return _BOOLEANS[value]
    if "string" in types:
        return as_text(value)
    if isinstance(value, str) and not {"number", "integer"}.isdisjoint(types):
        try:
            return whole(float(value))
        except ValueError:
            return value
    return value
