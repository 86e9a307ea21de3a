"""Schemas of plugins' options: which keywords and ``x-ensemble`` annotations they may have."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ensemble_core.errors import PluginError, kind_of

#: Values of ``x-ensemble`` in an option schema: what the option names, or how it is parsed.
ANNOTATIONS = frozenset(
    {
        "action", "class", "duration", "expression", "fields", "function", "generator", "group",
        "instance", "mail", "message", "metric", "parameters", "phase", "rows", "rule", "variable",
    }
)  # fmt: skip
#: Keywords that are allowed in the schema of an object. Any other key is probably an option that is
#: one level too high, where it would never be checked.
_KEYWORDS = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "additionalProperties", "allOf", "anyOf", "default",
        "definitions", "dependentRequired", "dependentSchemas", "deprecated", "description",
        "else", "examples", "if", "maxProperties", "minProperties", "not", "oneOf",
        "patternProperties", "properties", "propertyNames", "required", "then", "title", "type",
        "unevaluatedProperties",
    }
)  # fmt: skip
#: Keys of an ``x-ensemble-flag`` mapping, with the types of their values.
_FLAG: Mapping[str, type] = {
    "commands": Collection, "help": str, "instead_of": Collection, "metavar": str, "path": bool,
}  # fmt: skip


def check_option_schema(schema: object, shown: str) -> str:
    """Check that an option schema is a JSON Schema of an object, without external references.

    Return the schema as JSON text, which is faster to search. Raises :class:`PluginError`.
    """
    if not isinstance(schema, Mapping):
        raise PluginError(f"{shown}: 'options' is {kind_of(schema)}, expected a JSON Schema")
    if not schema:
        return ""
    try:
        text = json.dumps(plain(schema), allow_nan=False)
        copied: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginError(f"{shown}: the schema of its options is not JSON: {error}") from error
    if copied.get("type", "object") != "object":
        raise PluginError(
            f"{shown}: the schema of its options has the type {copied['type']!r}, expected 'object'"
        )
    strange = [key for key in copied if key not in _KEYWORDS and not key.startswith("x-")]
    if strange:
        raise PluginError(
            f"{shown}: {strange[0]!r} is not a keyword of JSON Schema; define options under "
            "'properties': {'type': 'object', 'properties': {'NAME': {…}}}"
        )
    searched = ('"$ref"', '"$dynamicRef"', '"x-ensemble"')
    parts = list(_mappings(copied)) if any(word in text for word in searched) else []
    references = [part.get(word) for part in parts for word in ("$ref", "$dynamicRef")]
    if any(isinstance(each, str) and not each.startswith("#") for each in references):
        raise PluginError(
            f"{shown}: the schema of its options refers to another document, which is not supported"
        )
    for kind in (part.get("x-ensemble") for part in parts):
        # If the value is a mapping, it is the schema of an option that is called "x-ensemble".
        if not (kind is None or isinstance(kind, dict) or kind in ANNOTATIONS):
            known = ", ".join(sorted(ANNOTATIONS))
            raise PluginError(
                f"{shown}: the annotation 'x-ensemble' has the unknown value {kind!r}; known "
                f"values: {known}"
            )
    import jsonschema_rs

    try:
        jsonschema_rs.Draft202012Validator(copied)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise PluginError(f"{shown}: the schema of its options is not valid: {reason}") from error
    properties = copied.get("properties", {})
    for key in copied.get("required", ()):
        if key not in properties:
            raise PluginError(
                f"{shown}: the schema of its options lists {key!r} under 'required' but does not "
                "define it under 'properties'"
            )
    return text


def check_classes(schema: Mapping[str, Any], shown: str) -> None:
    """Check that only top-level options name classes, because the core loads no others."""
    properties = schema.get("properties", {}).values()
    marked = [each for each in _mappings(plain(schema)) if each.get("x-ensemble") == "class"]
    at_top = [each for each in map(plain, properties) if each in marked]
    for each in marked:
        if each not in at_top or each.get("type") != "string":
            raise PluginError(
                f"{shown}: only a top-level option of type 'string' can have the annotation "
                "'x-ensemble' with the value 'class'"
            )
        if not isinstance(each.get("x-ensemble-base"), str):
            raise PluginError(
                f"{shown}: an option names a class, but 'x-ensemble-base' does not give the "
                "required base class as 'MODULE.CLASS'"
            )


def check_compared(schema: Mapping[str, Any], shown: str) -> None:
    """Check the annotations of options that ``--reuse`` compares."""
    for name, option in schema.get("properties", {}).items():
        annotation = (
            option.get("x-ensemble-compared", True) if isinstance(option, Mapping) else True
        )
        if not isinstance(annotation, bool):
            raise PluginError(
                f"{shown}: option {name!r}: 'x-ensemble-compared' is {kind_of(annotation)}, "
                "expected true or false"
            )


def check_flags(schema: Mapping[str, Any], shown: str) -> None:
    """Check the annotations that turn options of an executor into flags of commands."""
    for name, option in schema.get("properties", {}).items():
        annotation = option.get("x-ensemble-flag", True) if isinstance(option, Mapping) else True
        where = f"{shown}: option {name!r}: 'x-ensemble-flag'"
        if not isinstance(annotation, Mapping):
            if not isinstance(annotation, bool):
                raise PluginError(
                    f"{where} is {kind_of(annotation)}, expected true, false or a mapping"
                )
            continue
        for key, value in annotation.items():
            if not isinstance(value, _FLAG.get(key, ())):
                known = ", ".join(_FLAG)
                raise PluginError(f"{where}: {key!r} is unknown or invalid; known: {known}")
        unknown = set(annotation.get("commands", ())) - {"run", "resume", "cancel"}
        if unknown:
            raise PluginError(
                f"{where}: executors cannot add flags to the command {min(unknown)!r}; "
                "expected run, resume or cancel"
            )


def required_options(schema: Mapping[str, Any]) -> list[str]:
    """Return the required options that have no default, so the user has to set them."""
    properties = schema.get("properties", {})
    return [
        key
        for key in schema.get("required", ())
        if not (isinstance(properties.get(key), Mapping) and "default" in properties[key])
    ]


def plain(value: Any) -> Any:
    """Convert mappings and sequences of any class to dicts and lists, as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def _mappings(value: object) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a schema, including the schema itself."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mappings(inner)
