"""Rules of custom resources (``x-kubernetes-validations``), checked if a CEL package exists."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from typing import Any

__all__ = ["broken_rules"]

Schema = dict[str, Any]
_MISSING = object()


def broken_rules(value: Any, old: Any, schema: Schema, path: str = "") -> list[str]:
    """Return the errors of a value that violates rules. ``old`` is the previous value, if any."""
    if importlib.util.find_spec("cel") is None:
        return []
    return list(_broken(value, _MISSING if old is None else old, schema, path))


@cache
def _compiled(rule: str) -> Any:
    import cel

    return cel.compile(rule)


def _broken(value: Any, old: Any, schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        known = {"self": value}
        if "oldSelf" in rule["rule"]:
            if old is _MISSING:
                continue
            known["oldSelf"] = old
        if not _compiled(rule["rule"]).execute(known):
            yield f"{path}: Invalid value: {rule.get('message') or rule['rule']}".lstrip(":")
    if isinstance(value, dict):
        for key, each in value.items():
            part = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(part, dict):
                before = old.get(key, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _broken(each, before, part, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and "items" in schema:
        # Items of an atomic list have no previous value.
        for index, each in enumerate(value):
            yield from _broken(each, _MISSING, schema["items"], f"{path}[{index}]")
