"""Checks plugins' records, so that an invalid record is rejected when it is loaded."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from types import FunctionType
from typing import Any

from ensemble_core.errors import PluginError, closest, kind_of
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import GAUGES
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import JOB_EVENTS
from ensemble_core.plugin.hookspecs import (
    ActionPlugin,
    AlgorithmPlugin,
    EnvironmentPlugin,
    ExecutorPlugin,
    GeneratorPlugin,
    ObserverPlugin,
    ResizerPlugin,
    SourcePlugin,
    StatisticPlugin,
    TriggerPlugin,
)
from ensemble_core.plugin.records import ABOUT

__all__ = [
    "ANNOTATIONS",
    "CAPABILITIES",
    "CORE_EVENTS",
    "HOOKS",
    "check_record",
    "check_records",
    "plain",
    "probable_event",
    "required_options",
]

#: All capabilities that an executor can have.
CAPABILITIES = frozenset({"submit", "cancel", "avoid", "resize", "signal", "reattach", "detach"})
#: Values of ``x-ensemble`` in an option schema: what the option names, or how it is parsed.
ANNOTATIONS = frozenset(
    {
        "action", "class", "duration", "expression", "fields", "function", "generator", "group",
        "instance", "mail", "message", "metric", "parameters", "phase", "rows", "rule", "variable",
    }
)  # fmt: skip
#: For each hook, the kind of the records that it returns, and their class.
HOOKS: Mapping[str, tuple[str, type[Any]]] = {
    "ensemble_executors": ("executor", ExecutorPlugin),
    "ensemble_triggers": ("trigger", TriggerPlugin),
    "ensemble_actions": ("action", ActionPlugin),
    "ensemble_statistics": ("statistic", StatisticPlugin),
    "ensemble_observers": ("observer", ObserverPlugin),
    "ensemble_resizers": ("resizer", ResizerPlugin),
    "ensemble_sources": ("source", SourcePlugin),
    "ensemble_algorithms": ("algorithm", AlgorithmPlugin),
    "ensemble_generators": ("generator", GeneratorPlugin),
    "ensemble_environments": ("environment", EnvironmentPlugin),
}

#: The functions in each kind of record, with the names of the arguments that they get.
_FUNCTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "executor": {
        "build": ("options",),
        "available": (),
        "render": ("job", "options"),
        "never": ("group", "options"),
        "never_here": ("group", "options"),
        "check_kind": ("name", "options"),
        "virtual": ("options", "wait", "steered"),
        "status": ("folder",),
        "remains": ("tag", "folder", "end"),
        "inside": (),
    },
    "trigger": {"build": ("name", "options"), "needs_variables": ("options",)},
    "action": {"run": ("context",), "plan": ("firing", "options")},
    "statistic": {"build": ("options",), "timed_when": ("options",)},
    "observer": {"build": ("job", "options"), "variables": ("options",), "unasked": ("options",)},
    "resizer": {"build": ("options",)},
    "source": {"expand": ("options", "view")},
    "algorithm": {"build": ("options", "view")},
    "generator": {
        "build": ("vocs", "options"),
        "check": ("vocs", "options"),
        "finite": ("options",),
    },
    "environment": {"wrap": ("job", "options"), "check": ("options", "local")},
}

#: Names of the core's event types. An event of a plugin has the name of its trigger.
CORE_EVENTS = frozenset(
    {
        "start", "heartbeat", "observed", "resize-granted", "resize-denied", "resize-timeout",
        "job-sched", "job-run", "job-cleanup", "job-inactive", "job-success", "job-fail",
        "job-cancel", "job-done", "job-lost", "idle", "silent", "limit", "generator-best",
        "generator-exhausted", "bad-node", "end",
        *(f"job-{event}" for event in JOB_EVENTS),
    }
)  # fmt: skip

_NAME = late_pattern(r"[a-z][a-z0-9-]*")
_STATISTIC = late_pattern(r"[A-Za-z0-9_-]+")
#: First words of metric paths that are not names of statistics.
_TAKEN = frozenset({"count", "generator", *(gauge.partition(".")[0] for gauge in GAUGES)})
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


def check_records(returned: object, hook: str, *, thorough: bool = True) -> tuple[Any, ...]:
    """Check and return the records that a hook has returned. Raises :class:`PluginError`.

    If ``thorough`` is false, only the classes and names of the records are checked.
    """
    kind, record_class = HOOKS[hook]
    wanted = f"expected a list of {record_class.__name__} records"
    if isinstance(returned, record_class):
        raise PluginError(f"{hook} returned one {record_class.__name__}, {wanted}")
    if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
        if inspect.iscoroutine(returned):
            returned.close()
        raise PluginError(f"{hook} returned {kind_of(returned)}, {wanted}")
    records: list[Any] = []
    names: set[str] = set()
    for record in returned:
        if not isinstance(record, record_class):
            raise PluginError(f"{hook} returned {kind_of(record)} in its list, {wanted}")
        if thorough:
            check_record(record)
        if record.name in names:
            raise PluginError(f"{hook} returned two {kind}s named {record.name!r}")
        names.add(record.name)
        records.append(record)
    return tuple(records)


def check_record(record: Any) -> None:
    """Check one record of any kind. Raises :class:`PluginError`."""
    kind = next((kind for kind, cls in HOOKS.values() if isinstance(record, cls)), None)
    if kind is None:
        raise PluginError(f"{kind_of(record)} is not a plugin record (for example an ActionPlugin)")
    shown = f"{kind} {record.name!r}"
    _check_name(record.name, kind)
    summary: object = record.summary
    if not isinstance(summary, str) or not summary.strip() or "\n" in summary.strip():
        raise PluginError(f"{shown}: the summary is not one line of text")
    if '"x-ensemble": "class"' in check_schema(record.options, shown) and kind != "generator":
        raise PluginError(
            f"{shown}: only generators may have an option with the annotation 'x-ensemble: class'"
        )
    if isinstance(record, ActionPlugin) and (record.run is None) == (record.plan is None):
        count = "both" if record.run else "neither"
        raise PluginError(
            f"{shown} defines {count} of the functions 'run' and 'plan'; define exactly one of them"
        )
    for name, arguments in _FUNCTIONS[kind].items():
        function: object = getattr(record, name)
        if name in ("build", "expand", "wrap") and not callable(function):
            raise PluginError(f"{shown}: {name!r} is {kind_of(function)}, expected a function")
        _check_call(function, arguments, f"{shown}: {name!r}")
    if isinstance(record, ActionPlugin):
        _check_capabilities(record.needs, f"{shown}: 'needs'")
    elif isinstance(record, ExecutorPlugin):
        _check_flags(record.options, shown)
        if record.job_options:
            check_schema(record.job_options, f"{shown}: job_options")
            _check_compared(record.job_options, f"{shown}: job_options")
        if record.kinds:
            check_schema(record.kinds, f"{shown}: 'kinds'")
        _check_capabilities(record.capabilities, f"{shown}: 'capabilities'")
        if isinstance(record.priority, bool) or not isinstance(record.priority, int):
            raise PluginError(
                f"{shown}: 'priority' is {kind_of(record.priority)}, expected an integer"
            )
    elif isinstance(record, TriggerPlugin):
        if record.name_means not in (None, "group", "groups", "metric", "generator"):
            raise PluginError(
                f"{shown}: 'name_means' is {record.name_means!r}, expected 'group', "
                "'groups', 'metric', 'generator' or None"
            )
        if record.about not in ABOUT:
            known = ", ".join(map(repr, ABOUT))
            raise PluginError(f"{shown}: 'about' is {record.about!r}, expected one of {known}")
        _check_names(record.fields, f"{shown}: 'fields'")
        observer: object = record.needs_observer
        if observer is not None and not isinstance(observer, str):
            raise PluginError(f"{shown}: 'needs_observer' is {kind_of(observer)}, expected a name")
        lacks: object = record.lacks
        if not isinstance(lacks, Mapping):
            raise PluginError(
                f"{shown}: 'lacks' is {kind_of(lacks)}, expected a mapping of names to hints"
            )
    elif isinstance(record, AlgorithmPlugin):
        _check_capabilities(record.needs, f"{shown}: 'needs'")
        _check_names(record.supports, f"{shown}: 'supports'")
    elif isinstance(record, GeneratorPlugin):
        _check_classes(record.options, shown)
    elif isinstance(record, EnvironmentPlugin):
        if record.name not in record.options.get("properties", {}):
            raise PluginError(
                f"{shown}: the schema of its options does not define {record.name!r}, the key of "
                "an entry under 'within:'"
            )
    elif isinstance(record, SourcePlugin):
        if record.name in {each.name for each in fields(JobGroup)}:
            raise PluginError(
                f"{shown}: job groups already have a key of this name; choose another name"
            )
    elif isinstance(record, StatisticPlugin) and record.default:
        missing = required_options(record.options)
        if missing:
            raise PluginError(
                f"{shown}: 'default' is true, so every run uses this statistic, but its option "
                f"{missing[0]!r} is required: remove 'default', or give the option a default value"
            )


def probable_event(name: str) -> str | None:
    """Return the event type of the core that a misspelt name probably means, or ``None``."""
    if name in CORE_EVENTS:
        return None
    for prefix in ("job-", "resize-"):
        if prefix + name in CORE_EVENTS:
            return prefix + name
    return closest(name.lower().replace("_", "-"), CORE_EVENTS, 0.85)


def required_options(schema: Mapping[str, Any]) -> list[str]:
    """Return the required options that have no default, so the user has to set them."""
    properties = schema.get("properties", {})
    return [
        key
        for key in schema.get("required", ())
        if not (isinstance(properties.get(key), Mapping) and "default" in properties[key])
    ]


def _check_name(name: object, kind: str) -> None:
    pattern = _STATISTIC if kind == "statistic" else _NAME
    if not isinstance(name, str) or not pattern.fullmatch(name):
        allowed = (
            "letters, digits, - and _"
            if kind == "statistic"
            else "a lower-case letter, then lower-case letters, digits and -"
        )
        raise PluginError(f"{name!r} cannot be the name of a {kind}: expected {allowed}")
    if kind == "statistic" and name in _TAKEN:
        raise PluginError(
            f"{name!r} cannot be the name of a statistic: metric paths that begin with it have "
            "another meaning"
        )


def check_schema(schema: object, shown: str) -> str:
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


#: Keys of an ``x-ensemble-flag`` mapping, with the types of their values.
_FLAG: Mapping[str, type] = {
    "commands": Collection, "help": str, "instead_of": Collection, "metavar": str, "path": bool,
}  # fmt: skip


def _check_classes(schema: Mapping[str, Any], shown: str) -> None:
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


def _check_compared(schema: Mapping[str, Any], shown: str) -> None:
    """Check the annotations of options that ``--reuse`` compares."""
    for name, option in schema.get("properties", {}).items():
        mark = option.get("x-ensemble-compared", True) if isinstance(option, Mapping) else True
        if not isinstance(mark, bool):
            raise PluginError(
                f"{shown}: option {name!r}: 'x-ensemble-compared' is {kind_of(mark)}, expected "
                "true or false"
            )


def _check_flags(schema: Mapping[str, Any], shown: str) -> None:
    """Check the annotations that turn options of an executor into flags of commands."""
    for name, option in schema.get("properties", {}).items():
        mark = option.get("x-ensemble-flag", True) if isinstance(option, Mapping) else True
        shown_mark = f"{shown}: option {name!r}: 'x-ensemble-flag'"
        if not isinstance(mark, Mapping):
            if not isinstance(mark, bool):
                raise PluginError(
                    f"{shown_mark} is {kind_of(mark)}, expected true, false or a mapping"
                )
            continue
        for key, value in mark.items():
            if not isinstance(value, _FLAG.get(key, ())):
                known = ", ".join(_FLAG)
                raise PluginError(f"{shown_mark}: {key!r} is unknown or invalid; known: {known}")
        unknown = set(mark.get("commands", ())) - {"run", "resume", "cancel"}
        if unknown:
            raise PluginError(
                f"{shown_mark}: executors cannot add flags to the command {min(unknown)!r}; "
                "expected run, resume or cancel"
            )


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


def _check_capabilities(value: object, shown: str) -> None:
    _check_names(value, shown)
    assert isinstance(value, Collection)
    unknown = sorted(set(value) - CAPABILITIES)
    if unknown:
        raise PluginError(
            f"{shown} contains the unknown capability {unknown[0]!r}; "
            f"known: {', '.join(sorted(CAPABILITIES))}"
        )


def _check_names(value: object, shown: str) -> None:
    if isinstance(value, str) or not isinstance(value, (frozenset, set)):
        raise PluginError(f"{shown} is {kind_of(value)}, expected a set of names")
    wrong = [name for name in value if not isinstance(name, str)]
    if wrong:
        raise PluginError(f"{shown} contains {wrong[0]!r}, which is not a name")


def _is_plain(function: object, count: int) -> bool:
    """Return True for a function with just this number of parameters, which most have.

    This takes a tenth of the time of a signature.
    """
    if type(function) is not FunctionType or vars(function):
        return False
    code = function.__code__
    others = inspect.CO_COROUTINE | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return not code.co_flags & others and (code.co_argcount, code.co_kwonlyargcount) == (count, 0)


def _check_call(function: object, arguments: tuple[str, ...], shown: str) -> None:
    """Raise :class:`PluginError` if a function cannot be called with these arguments.

    ``None`` is valid.
    """
    if function is None or _is_plain(function, len(arguments)):
        return
    takes = f"it is called with ({', '.join(arguments)})"
    if not callable(function):
        raise PluginError(f"{shown} is {kind_of(function)}, expected a function; {takes}")
    if inspect.iscoroutinefunction(function):
        raise PluginError(f"{shown} is 'async', which is not supported; {takes}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function without a signature, for example in C
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise PluginError(f"{shown}: {error}; {takes}") from error
