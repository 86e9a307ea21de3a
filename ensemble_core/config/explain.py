"""Schema errors in words that a user can act on: what was found, what was expected, and where.

Called by the checker with each error of jsonschema_rs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ensemble_core.config.document import Document, Path, shown
from ensemble_core.config.schema import Validators
from ensemble_core.errors import EnsembleError, Location, UsageError
from ensemble_core.plugin.registry import Kind, Registry

__all__ = ["explain"]

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


def explain(
    error: Any, document: Document, validators: Validators, base: Path = ()
) -> Iterator[tuple[Path, EnsembleError]]:
    """Our errors for one schema error, with the paths that are broken by them."""
    path: Path = (*base, *error.instance_path)
    kind = error.kind.name
    last = error.schema_path[-1] if error.schema_path else ""
    if last in ("additionalProperties", "unevaluatedProperties") and kind != "required":
        if kind == "falseSchema":
            path = path[:-1]
        if isinstance(document.get(path), dict):
            schema = validators.node(error.schema_path[:-1])
            yield from _unknown(
                path, document, schema if isinstance(schema, dict) else {}, validators
            )
            return
    if kind == "required":
        name = error.kind.property
        yield (
            (*path, name),
            UsageError(
                f"{_thing(path, document, validators)} has no {name!r}",
                where=document.at(path),
                hint=_example(name, document.get(path)),
                code="missing-key",
            ),
        )
        return
    if kind == "propertyNames":
        yield from _bad_names(path, document, validators.node(error.schema_path[:-2]) or {})
        return
    if kind in ("anyOf", "oneOf") and hasattr(error.kind, "context"):
        nested = [branch for branch in error.kind.context if branch]
        if nested:
            deepest = max(nested, key=lambda branch: max(len(e.instance_path) for e in branch))
            words = "; or ".join(str(branch[0].message) for branch in nested[:3])
            where = document.at((*base, *deepest[0].instance_path))
            yield (
                path,
                _error(f"{_named(path, document)} fits none of what it may be: {words}", where),
            )
            return
    value = document.get(path)
    if kind == "enum" and isinstance(value, str):
        noun = _noun(path, error.kind.options, validators.registry)
        if noun is not None:
            yield (
                path,
                UsageError(
                    f"there is no {noun} {shown(value)}",
                    where=document.at(path),
                    hint=validators.registry.explain_missing(noun, value),
                    code=f"no-such-{noun}",
                ),
            )
            return
    yield path, _of_value(kind, error, path, value, document)


def _noun(path: Path, options: Iterable[Any], registry: Registry) -> Kind | None:
    """What the value at this path names, if it names something that plugins offer."""
    key = path[-1] if path else ""
    if key == "trigger":
        return "trigger"
    if key == "executor":
        return "executor"
    if key == "statistic" and path[0] == "statistics":
        return "statistic"
    if key == "name" and set(options) == set(registry.actions):
        return "action"  # also one within another's options, whatever that is called
    return None


def _of_value(kind: str, error: Any, path: Path, value: Any, document: Document) -> EnsembleError:
    where, name, found = document.at(path), _named(path, document), shown(value)
    if kind == "type":
        return _wrong_type(list(error.kind.types), path, value, document)
    if kind in ("enum", "const"):
        options = list(error.kind.options) if kind == "enum" else [error.kind.expected_value]
        return _not_one_of(options, path, value, document)
    words = {
        "minimum": "at least {}",
        "exclusiveMinimum": "more than {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "less than {}",
    }
    if kind in words:
        limit = words[kind].format(f"{error.kind.limit:g}")
        return UsageError(
            f"{name} is {document.written(path, value)}, it must be {limit}"
            if len(found) < 60
            else f"{name} is out of range, it must be {limit}",
            where=where,
            code="out-of-range",
        )
    if kind in ("minItems", "minLength", "minProperties") and not value:
        return UsageError(f"{name} is empty", where=where, code="empty")
    if kind == "pattern" and path and path[-1] in ("name", "id"):
        return UsageError(
            f"{name} {found} may only have letters, digits, - and _",
            where=where,
            hint="and it does not begin with -",
            code="bad-name",
        )
    if kind == "falseSchema":
        hint = None
        if path and path[-1] in ("repetitions", "backoff"):
            hint, where = "write it on the rule, beside 'trigger'", document.at_key(path)
        return UsageError(f"{name} is not allowed here", where=where, hint=hint, code="unknown-key")
    if kind == "not":
        # What is refused may say in its schema why, and what to do instead.
        refused = error.kind.schema
        why = refused.get("description") if isinstance(refused, dict) else None
        return UsageError(
            f"{name} is {found}, which is not allowed", where=where, hint=why, code="bad-value"
        )
    message = str(error.message)
    return _error(f"{name}: {message if len(message) < 300 else message[:299] + '…'}", where)


def _error(what: str, where: Location | None) -> UsageError:
    return UsageError(what, where=where, code="bad-value")


def _named(path: Path, document: Document) -> str:
    for number in range(len(path) - 1, -1, -1):
        if isinstance(path[number], str):
            if number == len(path) - 1:
                return repr(path[number])
            item = path[number + 1]
            if isinstance(item, int):
                return f"item {item + 1} of {path[number]!r}"
    return f"item {int(path[0]) + 1}" if path else document.noun


def _thing(path: Path, document: Document, validators: Validators) -> str:
    data = document.get(path)
    if not path:
        return document.noun
    if path[0] == "jobs" and len(path) == 2:
        name = data.get("name") if isinstance(data, dict) else None
        return f"the job group {name!r}" if isinstance(name, str) else "the job group"
    if path[0] == "rules" and len(path) == 2:
        trigger = data.get("trigger") if isinstance(data, dict) else None
        return f"the {trigger!r} rule" if isinstance(trigger, str) else "the rule"
    if path[0] != "jobs" and isinstance(data, dict) and "trigger" not in data:
        name = data.get("name")
        if isinstance(name, str) and name in validators.registry.actions:
            return f"the action {name!r}"
    return _named(path, document)


def _example(name: str, around: Any) -> str | None:
    near = get_close_matches(name, around, 1, 0.7) if isinstance(around, dict) else []
    if near:
        return f"is {near[0]!r} meant to be {name!r}?"
    return {
        "jobs": "jobs: [{name: hello, command: echo hello}]",
        "rules": "rules: [{trigger: start, action: {name: submit, label: hello}}]",
        "command": "command: echo hello",
        "trigger": "trigger: start",
        "action": "action: {name: submit, label: GROUP}",
        "label": "label: the name of the job group (or function) that is meant",
    }.get(name)


def _unknown(
    path: Path, document: Document, schema: Mapping[str, Any], validators: Validators
) -> Iterator[tuple[Path, EnsembleError]]:
    data = document.get(path)
    known = list(schema.get("properties") or {})
    open_patterns = schema.get("patternProperties") or {}
    for key in data:
        if key in known or ("^x-" in open_patterns and key.startswith("x-")):
            continue
        inner = (*path, key)
        if _is_observer_or_executor(path):
            noun: Kind = "observer" if path[-1] == "observe" else "executor"
            yield (
                inner,
                UsageError(
                    f"there is no {noun} {shown(key)}",
                    where=document.at_key(inner),
                    hint=validators.registry.explain_missing(noun, key),
                    code=f"no-such-{noun}",
                ),
            )
            continue
        what = f"unknown key {shown(key)} in {_thing(path, document, validators)}"
        absent = [name for name in known if name not in data]
        near = get_close_matches(key, absent, 1, 0.55) or get_close_matches(key, known, 1, 0.55)
        if near:
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known are {', '.join(known)}" if known else "none can stand here"
        yield inner, UsageError(what, where=document.at_key(inner), hint=hint, code="unknown-key")


def _is_observer_or_executor(path: Path) -> bool:
    return bool(path) and (
        path[-1] == "observe" or (path[-1] == "options" and path[0] in ("jobs", "rules"))
    )


def _bad_names(
    path: Path, document: Document, schema: Mapping[str, Any]
) -> Iterator[tuple[Path, EnsembleError]]:
    import re

    pattern = (schema.get("propertyNames") or {}).get("pattern", "")
    data = document.get(path)
    for key in data if isinstance(data, dict) else ():
        if not re.search(pattern, key):
            inner = (*path, key)
            yield (
                inner,
                UsageError(
                    f"{shown(key)} cannot be a name in {_named(path, document)}",
                    where=document.at_key(inner),
                    hint="use letters, digits and _, and begin with a letter",
                    code="bad-name",
                ),
            )


def _wrong_type(types: list[str], path: Path, value: Any, document: Document) -> EnsembleError:
    expected = [_TYPES[name] for name in types if name != "null"]
    written = document.spelled.get(path)
    hint = None
    if isinstance(value, bool):
        written = written or shown(value)
        found = f"{written} (a boolean)"
        if "string" in types:
            hint = f'quote it: "{written}"'
    elif value is None:
        found = "empty"
        hint = "leave the key out, or give it a value" if path else None
    elif isinstance(value, (int, float)):
        found = f"the number {written}" if written else f"the number {shown(value)}"
        if "string" in types:
            hint = f'quote it: "{written or shown(value)}"'
    elif isinstance(value, str):
        found = f"the string {shown(value)}"
        if {"number", "integer"} & set(types):
            bare = value.strip().lstrip("0").replace("_", "")
            if bare.isascii() and bare.isdigit():
                hint = f"write {bare}"
        elif "array" in types and "object" not in types:
            hint = "write a list: [" + (value if len(value) < 30 else "…") + "]"
    else:
        found = shown(value)
        if isinstance(value, dict) and "array" in types:
            hint = "begin each entry of the list with '- '"
    return UsageError(
        f"{_named(path, document)} is {found}, expected {' or '.join(expected) or 'nothing'}",
        where=document.at(path),
        hint=hint,
        code="wrong-type",
    )


def _not_one_of(options: list[Any], path: Path, value: Any, document: Document) -> EnsembleError:
    where = document.at(path)
    names = [option for option in options if isinstance(option, str)]
    near = get_close_matches(value, names, 1, 0.5) if isinstance(value, str) else []
    known = ", ".join(map(str, options[:15])) + (" …" if len(options) > 15 else "")
    hint = f"did you mean {near[0]!r}?" if near else None
    if isinstance(value, bool) and document.written(path, value) in names:
        hint = f'quote it: "{document.written(path, value)}"'
    found = document.written(path, shown(value))
    return UsageError(
        f"{_named(path, document)} is {found}, expected one of {known}",
        where=where,
        hint=hint,
        code="bad-value" if isinstance(value, str) else "wrong-type",
    )
