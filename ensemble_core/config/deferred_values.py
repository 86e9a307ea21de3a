"""Schemas of options whose values are known only later: texts with placeholders, expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLACEHOLDER = r"\{[A-Za-z_][\w.]*(:[^{}\s]*)?\}"
#: Words of JSON Schema whose values are schemas, or mappings to schemas.
_INNER = ("items", "additionalProperties")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def relaxed(schema: Any, *, changes: bool) -> Any:
    """Return the schema of options that also accepts placeholders, and null for an option.

    With ``changes``, it accepts expressions as well.
    """
    if not isinstance(schema, Mapping):
        return schema
    whole = {**schema}
    for word in _NAMED:
        if word in whole:
            whole[word] = {k: _or_later(v, changes, null=True) for k, v in whole[word].items()}
    for word in _INNER:
        if word in whole:
            whole[word] = _or_later(whole[word], changes, null=changes)
    return whole


def _or_later(schema: Any, changes: bool, *, null: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    pattern = f"^=|{_PLACEHOLDER}" if changes else _PLACEHOLDER
    types = ["string", "null"] if null else ["string"]
    later: dict[str, Any] = {"type": types, "pattern": pattern}
    said = {"description": schema["description"]} if "description" in schema else {}
    return {**said, "if": later, "else": relaxed(schema, changes=changes)}
