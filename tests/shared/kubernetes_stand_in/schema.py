"""Structural schemas of custom resources: defaults, pruning and validation.

Covers the part of OpenAPI v3 that the MiniCluster's schema uses.
"""

from __future__ import annotations

import re
from typing import Any

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def complete(value: Any, schema: Schema) -> Any:
    """Return the value with defaults, and without fields that the schema does not define."""
    if isinstance(value, dict):
        return _complete_object(value, schema)
    if isinstance(value, list) and "items" in schema:
        return [complete(each, schema["items"]) for each in value]
    return value


def _complete_object(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    properties: dict[str, Schema] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    keeps = schema.get("x-kubernetes-preserve-unknown-fields", False)
    found = {}
    for key, each in value.items():
        if key in properties:
            # null means "not set" if the field has a default
            if each is None and "default" in properties[key]:
                continue
            found[key] = complete(each, properties[key])
        elif isinstance(others, dict):
            found[key] = complete(each, others)
        elif keeps or others is True:
            found[key] = each
    for key, part in properties.items():
        if key not in found and "default" in part:
            found[key] = complete(part["default"], part)
    return found


def unknown(value: Any, schema: Schema, path: str = "") -> list[str]:
    """Return the paths of the fields that :func:`complete` drops."""
    if isinstance(value, list) and "items" in schema:
        pairs = enumerate(value)
        return [p for i, each in pairs for p in unknown(each, schema["items"], f"{path}[{i}]")]
    if not isinstance(value, dict):
        return []
    properties: dict[str, Schema] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    keeps = schema.get("x-kubernetes-preserve-unknown-fields", False) or others is True
    found = []
    for key, each in value.items():
        where = f"{path}.{key}".lstrip(".")
        part = properties.get(key, others)
        if isinstance(part, dict):
            found += unknown(each, part, where)
        elif not keeps:
            found.append(where)
    return found


def errors(value: Any, schema: Schema, path: str = "") -> list[str]:
    """Return the errors of a value in the API server's format: ``path: Invalid value …``."""
    if schema.get("x-kubernetes-int-or-string"):
        wrong = isinstance(value, bool) or not isinstance(value, (int, str))
        return [f"{path}: Invalid value: must be an integer or a string"] if wrong else []
    kind = schema.get("type")
    if kind in _TYPES:
        right = isinstance(value, _TYPES[kind])
        if isinstance(value, bool) and kind in ("integer", "number"):
            right = False
        if not right:
            shown = type(value).__name__
            return [f'{path}: Invalid value: "{shown}": must be of type {kind}']
    found = _of_scalar(value, schema, path)
    if isinstance(value, dict):
        found += [
            f"{path}.{key}: Required value".lstrip(".")
            for key in schema.get("required", ())
            if key not in value
        ]
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for key, each in value.items():
            part = properties.get(key, others)
            if isinstance(part, dict):
                found += errors(each, part, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and "items" in schema:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{path}: Invalid value: {len(value)}: wrong number of items")
        for index, each in enumerate(value):
            found += errors(each, schema["items"], f"{path}[{index}]")
    return found


def _of_scalar(value: Any, schema: Schema, path: str) -> list[str]:
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: Unsupported value: {value!r}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{path}: Invalid value: {value}: out of range")
        if schema.get("format") == "int32" and not -(2**31) <= value < 2**31:
            found.append(f"{path}: Invalid value: {value}: must be of type int32")
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"{path}: Invalid value: {value!r}: should match {schema['pattern']!r}")
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            found.append(f"{path}: Invalid value: {value!r}: wrong length")
    return found
