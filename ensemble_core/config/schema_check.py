"""Checks an ensemble file against its JSON Schema, and reports errors with their positions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from math import ceil, floor, isfinite
from pathlib import PurePath
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Document, Path, shown
from ensemble_core.config.limits import hours_hint
from ensemble_core.config.observer_fields import may_rename, renamed, turned_round
from ensemble_core.config.yaml_reader import read_document
from ensemble_core.errors import closest, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.plugin.registry import Kind, Registry

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
#: Parts that a process usually reads once, for which the complete schema would be slow.
_READ_ONCE = ("", "config", "profile")
#: More errors are not listed: a file with thousands of errors has one cause.
_MOST_ERRORS = 100
#: A text that an item of a list in brackets can be without quotes.
_PLAIN = late_pattern(r"[\w/.$~][\w/.$~ +@%-]*")
_OFTEN = "use repetitions: unlimited for no limit; enabled: false switches a rule off"
_OBSERVE = "write observe: {{{}: {{}}}}"
_EXAMPLES = {
    "jobs": "jobs: [{name: hello, command: echo hello}]",
    "rules": "rules: [{trigger: start, action: {name: submit, label: hello}}]",
    "command": "command: echo hello",
    "trigger": "trigger: start",
    "action": "action: {name: submit, label: GROUP}",
    "label": "label: the name of the job group (or function)",
}


#: Keys that would name code.
_CODE = {"custom", "functions", "plugin", "plugins"}
#: Keys with which other tools say that a group waits for another one.
_AFTER = {
    *("after", "depends", "depends_on", "dependencies", "dependency", "dependson", "needs"),
    *("requires", "wait_for"),
}
#: Keys that users write for the number of values of a range or for its step.
_STEPS = {"steps", "num", "number", "n", "points"}


def check_shape(context: Context, part: str = "", at: Path = ()) -> None:
    """Report all schema errors of the document.

    If ``part`` is given, check only the value at the path ``at``, against the definition
    ``$defs/PART``.
    """
    data, file = context.document.data, context.document.file
    try:
        if part in _READ_ONCE and context.validators.hold(context.document.get(at), part):
            return
        # A file with at least one of our keys is treated as an ensemble file.
        ours = context.validators.schema["properties"]
        if not part and isinstance(data, dict) and "tasks" in data and not data.keys() & ours:
            context.report(
                at,
                "this is a jobspec, not an ensemble file",
                hint=f"write 'jobs: [{{jobspec: {PurePath(file).name}}}]' in an ensemble file "
                f"next to it, or run it directly: ensemble jobspec run {file}",
                code="missing-key",
            )
            return
        found = list(context.validators.errors(context.document.get(at), part))
    except (ValueError, UnicodeError) as error:
        # Before it validates, jsonschema_rs rejects data that JSON cannot express.
        context.report(
            at,
            f"this value cannot be checked, because JSON cannot express it: {error}",
            code="bad-value",
        )
        return
    unknown = {
        (*one.instance_path, key) for one in found for key in getattr(one.kind, "unexpected", ())
    }
    explained: set[Path] = set()
    for one in found:
        _explain(context, one, at, unknown, explained)
        if len(context.errors) >= _MOST_ERRORS:
            context.errors[-1].what += f" (only the first {_MOST_ERRORS} errors are listed)"
            return


def _explain(
    context: Context, error: Any, at: Path, unknown: Collection[Path], explained: set[Path]
) -> None:
    """Report one schema error.

    ``unknown`` has the keys that no definition allows, and ``explained`` the mappings whose unknown
    keys have been reported: the schema reports each of these keys separately.
    """
    document, registry = context.document, context.registry
    path: Path = (*at, *error.instance_path)
    kind = error.kind.name
    last = error.schema_path[-1] if error.schema_path else ""
    if last in ("additionalProperties", "unevaluatedProperties") and kind != "required":
        around = path[:-1] if kind == "falseSchema" else path
        if isinstance(document.get(around), dict):
            schema = context.validators.node(error.schema_path[:-1])
            if around not in explained:
                explained.add(around)
                _unknown_keys(context, around, schema if isinstance(schema, dict) else {})
            return
    value = document.get(path)
    if kind == "required":
        name = error.kind.property
        near = closest(name, value, 0.7) if isinstance(value, dict) else None
        if near and (*error.instance_path, near) in unknown:
            return
        context.report(
            (*path, name),
            f"{_mapping_noun(path, document, registry)} has no {name!r}",
            hint=(_EXAMPLES.get(name) if name != "jobs" or not path else None)
            or _expected_description(context, error, name, "properties", name),
            broken=True,
            code="missing-key",
            where=document.at(path),
        )
    elif kind == "propertyNames":
        _report_bad_names(context, path, context.validators.node(error.schema_path[:-2]) or {})
    elif kind == "type":
        _report_wrong_type(context, path, value, list(error.kind.types), error)
    elif kind == "pattern" and error.kind.pattern == "^=":
        _report_wrong_type(context, path, value, ["integer"], error)
    elif kind in ("enum", "const"):
        options = list(error.kind.options) if kind == "enum" else [error.kind.expected_value]
        noun = _kind_at(path, options, registry) if isinstance(value, str) else None
        if noun is not None:
            _no_such(context, path, noun, value)
        else:
            _report_unknown_value(context, path, value, options)
    else:
        _report_bad_value(context, path, value, error)


def _no_such(context: Context, path: Path, noun: Kind, name: str, *, is_key: bool = False) -> None:
    context.report(
        path,
        f"there is no {noun} {shown(name)}",
        hint=context.registry.explain_missing(noun, name),
        broken=True,
        code=f"no-such-{noun}",
        where=context.document.at_key(path) if is_key else None,
    )


def _kind_at(path: Path, options: Iterable[Any], registry: Registry) -> Kind | None:
    """Return the kind of thing that the value at this path names (trigger, action …), or
    ``None``.
    """
    key = path[-1] if path else ""
    if key == "trigger":
        return "trigger"
    if key == "use" and path[0] == "generators":
        return "generator"
    if key == "executor":
        return "executor"
    if key == "statistic" and path[0] == "statistics":
        return "statistic"
    if key == "name" and set(options) == set(registry.actions):
        return "action"  # also a nested action, in an option with any name
    return None


def _report_bad_value(context: Context, path: Path, value: Any, error: Any) -> None:
    """Report a value that has the right type but violates another keyword of the schema."""
    document, kind = context.document, error.kind.name
    name, found, at = _value_name(path, document), shown(value), error.instance_path
    hint = where = None
    code = "bad-value"
    if kind in _LIMITS:
        is_ = f"is {document.written(path, value)}" if len(found) < 60 else "is out of range"
        what = f"{name} {is_}, it must be {_LIMITS[kind]} {error.kind.limit:g}"
        code = "out-of-range"
        if path and path[-1] == "repetitions":
            hint = _OFTEN
    elif kind in ("minItems", "minLength", "minProperties") and not value:
        what, code = f"{name} is empty", "empty"
    elif kind == "pattern" and path and path[-1] == "repetitions":
        what = f"{name} is {found}, expected a whole number or unlimited"
        hint = f"write {value}" if isinstance(value, str) and value.isdecimal() else _OFTEN
    elif kind == "pattern" and path and path[-1] == "top":
        what = f"{name} is {found}, expected a whole number, or a share such as 5%"
    elif kind == "pattern" and path and path[-1] == "order":
        what = f"{name} is {found}, expected the name of a column, or -NAME for the largest first"
    elif kind == "pattern" and path and path[-1] in ("name", "id"):
        what, code = f"{name} {found} may only have letters, digits, - and _", "bad-name"
        hint = "do not begin with -"
    elif kind in ("pattern", "not") and path and may_rename(_node_above(context, error)):
        what, code = f"{name} is {found}, which cannot be the name of a column", "bad-name"
        hint = renamed(document.get(path[:-1]), str(path[-2]))
    elif kind == "falseSchema":
        what, code = f"{name} is not allowed here", "unknown-key"
        if path and path[-1] in ("repetitions", "backoff"):
            hint, where = "write it on the rule, next to 'trigger'", document.at_key(path)
    elif kind == "not":
        # A schema that rejects a key may contain an explanation and a hint.
        refused = error.kind.schema
        what = f"{name} is {found}, which is not allowed"
        hint = refused.get("description") if isinstance(refused, dict) else None
    elif kind == "pattern" and "options" in path:
        what = f"{name} is {found}, which is not allowed"
        hint = _expected_description(context, error, name)
    else:
        branches = [branch for branch in getattr(error.kind, "context", ()) if branch]
        if branches:  # the schema has anyOf or oneOf
            words = next((e for branch in branches for e in branch if e.kind.name == "enum"), None)
            if isinstance(value, str) and words is not None and words.instance_path == at:
                kinds = [
                    e.kind.types for branch in branches for e in branch if e.kind.name == "type"
                ]
                also = "".join(f" or {_TYPES[name]}" for types in kinds for name in types)
                _report_unknown_value(context, path, value, list(words.kind.options), also)
                return
            deepest = max(branches, key=lambda branch: max(len(e.instance_path) for e in branch))
            why = "; or ".join(str(branch[0].message) for branch in branches[:3])
            what = f"{name} matches none of the allowed forms: {why}"
            above = path[: len(path) - len(at)]
            where = document.at((*above, *deepest[0].instance_path))
        else:
            message = str(error.message)
            what = f"{name}: {message if len(message) < 300 else message[:299] + '…'}"
    context.report(path, what, hint=hint, code=code, where=where, broken=True)


def _node_above(context: Context, error: Any) -> Mapping[str, Any] | None:
    """Return the schema of the list of which the value is an item, or ``None``."""
    where = list(error.schema_path)
    if "items" not in where:
        return None
    node = context.validators.node(where[: len(where) - 1 - where[::-1].index("items")])
    return node if isinstance(node, dict) else None


def _value_name(path: Path, document: Document) -> str:
    """Return what messages call a value: its key, or its number in a list."""
    for number in range(len(path) - 1, -1, -1):
        if isinstance(path[number], str):
            if number == len(path) - 1:
                return repr(path[number])
            item = path[number + 1]
            if isinstance(item, int):
                return f"item {item + 1} of {path[number]!r}"
    return f"item {int(path[0]) + 1}" if path else document.noun


def _mapping_noun(path: Path, document: Document, registry: Registry) -> str:
    """Return what messages call a mapping: a job group, a rule, an action …"""
    data = document.get(path)
    if not path:
        return document.noun
    if path[0] == "jobs" and len(path) == 2:
        entry = data if isinstance(data, dict) else {}
        source = next((key for key in entry if key in registry.sources), None)
        if source is not None and "name" not in entry:
            return f"the entry of {source!r}"
        name = entry.get("name")
        return f"the job group {name!r}" if isinstance(name, str) else "the job group"
    if path[0] == "rules" and len(path) == 2:
        trigger = data.get("trigger") if isinstance(data, dict) else None
        return f"the {trigger!r} rule" if isinstance(trigger, str) else "the rule"
    if path[0] == "profiles" and len(path) == 2:
        return f"profile {path[1]!r}"
    if path[0] != "jobs" and isinstance(data, dict) and "trigger" not in data:
        name = data.get("name")
        if isinstance(name, str) and name in registry.actions:
            return f"the action {name!r}"
    if path[-1] == "with":
        action = document.get(path[:-1])
        if isinstance(action, dict) and isinstance(action.get("label"), str):
            return f"the job group {action['label']!r}"
    return _value_name(path, document)


def _unknown_keys(context: Context, path: Path, schema: Mapping[str, Any]) -> None:
    document = context.document
    data = document.get(path)
    known = list(schema.get("properties") or {})
    extensions = "^x-" in (schema.get("patternProperties") or {})
    last = path[-1] if path else ""
    noun: Kind | None = None
    if last == "observe":
        noun = "observer"
    elif last == "options" and path[0] in ("jobs", "rules", "profiles"):
        noun = "executor"
    for key in data:
        if key in known or (extensions and key.startswith("x-")):
            continue
        if len(context.errors) >= _MOST_ERRORS:
            return
        inner = (*path, key)
        if noun is not None:
            _no_such(context, inner, noun, key, is_key=True)
            continue
        inside = context.validators.schema["$defs"]["job-fields"]["properties"]
        of_queue = len(path) > 1 and path[-2] == "options"
        near = closest(key, known, 0.8 if of_queue and "extra" in known else 0.55)
        if any(str(value).count("(") > str(value).count(")") for value in data.values()):
            hint = 'quote text that contains a comma: "= min(T, 3)"'
        elif key.lower() in _STEPS and {"step", "count"} <= {*known}:
            value = document.written(inner, data[key])
            hint = f"write 'count: {value}' for {value} values, or 'step: {value}' for the "
            hint += "distance from one value to the next"
        elif "with" in known and key in inside and "times" not in known:
            hint = f"put it under 'with:': with: {{{key}: …}}"
        elif {"command", "parameters"} <= {*known} and key in _parameters(context):
            hint = f"it is a parameter: write parameters.{key}=VALUE"
            if document.file:
                hint = f"it is a parameter: write 'parameters: {{{key}: …}}'"
        elif key.lower() in _AFTER and _is_group(path):
            other = data[key][0] if isinstance(data[key], list) and data[key] else data[key]
            hint = "a rule starts a group when another one is over: {trigger: idle, name: "
            hint += f"{other}, action: {{name: submit, label: {data.get('name')}}}}}"
        elif key in _CODE and path[:1] == ("profiles",):
            hint = "a profile names no code: write it in the ensemble file, or use --plugin"
        elif of_queue and (own := closest(key, inside, 1.0)):
            hint = f"it is a key of the job group: {own}"
        elif not closest(key, known, 1.0) and (queues := _queues_with(context, path, key)):
            write = f"options: {{{queues[0]}: {{{key}: …}}}}"
            hint = f"it is an option of {', '.join(queues)}: write {write!r}"
        elif near == "within" and key in context.registry.environments:
            hint = f"write 'within: {{{key}: …}}'"
        elif near:
            hint = f"did you mean {near!r}?"
        else:
            hint = f"known: {', '.join(known)}" if known else "no key is allowed here"
            if of_queue and "extra" in known:
                hint += f" ({schema['properties']['extra']['description'].rstrip('.')})"
        context.report(
            inner,
            f"unknown key {shown(key)} in {_mapping_noun(path, document, context.registry)}",
            hint=hint,
            broken=True,
            code="unknown-key",
            where=document.at_key(inner),
        )


def _parameters(context: Context) -> set[str]:
    """Return the parameters of all groups, also before the groups are read."""
    data = context.document.data
    entries = data.get("jobs") if isinstance(data, dict) else None
    written = [
        entry.get("parameters")
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
    ]
    return context.parameters(None).union(*(each for each in written if isinstance(each, dict)))


def _is_group(path: Path) -> bool:
    """Return True for the path of a job group, or of the defaults of all groups in a profile."""
    return path[-1:] == ("jobs",) or (path[:1] == ("jobs",) and len(path) == 2)


def _queues_with(context: Context, path: Path, key: str) -> list[str]:
    """Return the executors that have a job group's unknown key as an option of the group."""
    if not _is_group(path):
        return []
    executors = context.registry.executors.items()
    return [
        name
        for name, each in executors
        if ":" not in name and key in each.job_options.get("properties", {})
    ]


def _report_bad_names(context: Context, path: Path, schema: Mapping[str, Any]) -> None:
    pattern = (schema.get("propertyNames") or {}).get("pattern", "")
    data = context.document.get(path)
    hint = "use letters, digits and _, and begin with a letter"
    if isinstance(data, dict) and any("range(" in str(value) for value in data.values()):
        hint = "write a range as {from: 1, to: 4}, and add 'step' if it is not 1"
    elif isinstance(data, dict) and any(str(value).startswith("=") for value in data.values()):
        hint = 'quote text that contains a comma: "= min(T, 3)"'
    for key in data if isinstance(data, dict) else ():
        if not re.search(pattern, key):
            context.report(
                (*path, key),
                f"{shown(key)} cannot be a name in {_value_name(path, context.document)}",
                hint=(turned_round(key, data[key], str(path[-1])) if may_rename(schema) else None)
                or hint,
                broken=True,
                code="bad-name",
                where=context.document.at_key((*path, key)),
            )


def _fits(value: Any, types: list[str]) -> bool:
    """Return True if an item of a list may be what is expected instead of the list."""
    name = "object" if isinstance(value, dict) else "string" if isinstance(value, str) else "number"
    return name in types or (name == "number" and "integer" in types)


def _is_text(text: str) -> bool:
    """Return True if this text without quotes is read as a string."""
    return bool(read_document(f"[{text}]", "").data == [text])


def _report_wrong_type(
    context: Context, path: Path, value: Any, types: list[str], error: Any
) -> None:
    written = context.document.spelled.get(path) or shown(value)
    found, hint = shown(value), None
    finite = not isinstance(value, float) or isfinite(value)
    if isinstance(value, (bool, int, float)):
        found = f"{written} (a boolean)" if isinstance(value, bool) else f"the number {written}"
        if isinstance(value, float) and finite and "integer" in types:
            whole = [number for number in (floor(value), ceil(value)) if number > 0]
            hint = f"write {' or '.join(map(str, whole))}" if whole else None
        elif "string" in types:
            hint = f'quote it: "{written}"'
    elif value is None:
        hint = "remove the key, or give it a value" if path else None
    elif isinstance(value, str):
        found = f"the string {found}"
        if value.startswith("=") and "options" in path and "with" not in path:
            hint = "an expression may stand under 'with' of a rule or of 'retry'; here, write the "
            hint += "value, or a placeholder such as '{attempt}' or '{T}'"
        elif {"number", "integer"} & set(types):
            bare = value.strip().lstrip("0").replace("_", "")
            hint = f"write {bare}" if bare.isascii() and bare.isdigit() else hours_hint(path, value)
        elif "array" in types and "object" not in types:
            item = value if _PLAIN.fullmatch(value) and _is_text(value) else repr(value)
            hint = "write a list: [" + (item if len(value) < 30 else "…") + "]"
        elif path and path[-1] == "action":
            hint = f"write action: {{name: {value}}}"
        elif path and path[-1] == "observe":
            hint = _OBSERVE.format(value)
    elif path and path[-1] == "observe" and isinstance(value, list):
        hint = _OBSERVE.format(value[0] if value and isinstance(value[0], str) else "key-value")
    elif (
        isinstance(value, (list, dict)) and path and isinstance(path[-1], int) and "string" in types
    ):
        hint = f"quote it: {_quoted(value)}"
    elif isinstance(value, list) and len(value) == 1 and _fits(value[0], types):
        hint = f"leave the brackets out: {shown(value[0])}"
    elif isinstance(value, dict) and "array" in types:
        hint = "begin each entry of the list with '- '"
    if path and path[-1] == "repetitions":
        hint = _OFTEN
    if hint is None and type(value) in (int, float) and {*types} - {"null"} == {"object"}:
        schema = context.validators.node(error.schema_path[:-1])
        required = [*schema.get("required", ())] if isinstance(schema, dict) else []
        if path and len(required) == 1:
            hint = f"write {path[-1]}: {{{required[0]}: {written}}}"
    if hint is None and path:
        hint = _expected_description(context, error, path[-1])
    expected = " or ".join(_TYPES[name] for name in types if name != "null") or "nothing"
    if not finite:
        expected = expected.replace("a number", "a finite number")
    context.report(
        path,
        f"{_value_name(path, context.document)} is {found}, expected {expected}",
        hint=hint,
        broken=True,
        code="wrong-type",
    )


def _quoted(value: Any) -> str:
    """Return a list or mapping as quoted text, for YAML."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"'{text}'" if '"' in text else f'"{text}"'


def _expected_description(context: Context, error: Any, name: str | int, *below: str) -> str | None:
    """Return the description of the expected value in the schema."""
    schema = context.validators.node((*error.schema_path[:-1], *below))
    said = schema.get("description") if isinstance(schema, dict) else None
    return f"{name}: {said}" if said else None


def _report_unknown_value(
    context: Context, path: Path, value: Any, options: list[Any], also: str = ""
) -> None:
    document = context.document
    names = [option for option in options if isinstance(option, str)]
    known = ", ".join(map(str, options[:15])) + (" …" if len(options) > 15 else "")
    found = document.written(path, shown(value))
    hint = did_you_mean(value, names, None, cutoff=0.5) if isinstance(value, str) else None
    if isinstance(value, bool) and found in names:
        hint = f'quote it: "{found}"'
    context.report(
        path,
        f"{_value_name(path, document)} is {found}, expected one of {known}{also}",
        hint=hint,
        broken=True,
        code="bad-value" if isinstance(value, str) else "wrong-type",
    )
