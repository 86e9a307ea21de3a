"""Rules of custom resources (``x-kubernetes-validations``), checked if a CEL package exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["broken_rules"]

Schema = dict[str, Any]
_MISSING = object()


def broken_rules(value: Any, old: Any, schema: Schema, path: str = "") -> list[str]:
    """Return the errors of a value that violates rules. ``old`` is the previous value, if any."""
    try:
        import cel
    except ImportError:
        return []
    return list(_broken(cel.evaluate, value, _MISSING if old is None else old, schema, path))


def _broken(evaluate: Any, value: Any, old: Any, schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        known = {"self": value}
        if "oldSelf" in rule["rule"]:
            if old is _MISSING:
                continue
            known["oldSelf"] = old
        if not evaluate(rule["rule"], known):
            yield f"{path}: Invalid value: {rule.get('message') or rule['rule']}".lstrip(":")
    if isinstance(value, dict):
        for key, each in value.items():
            part = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(part, dict):
                before = old.get(key, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _broken(evaluate, each, before, part, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and "items" in schema:
        # Items of an atomic list have no previous value.
        for index, each in enumerate(value):
            yield from _broken(evaluate, each, _MISSING, schema["items"], f"{path}[{index}]")
