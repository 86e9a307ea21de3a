"""Checks plugins' records, so that an invalid record is rejected when it is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
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
from ensemble_core.plugin.option_schemas import (
    check_classes,
    check_compared,
    check_flags,
    check_option_schema,
    required_options,
)
from ensemble_core.plugin.records import ABOUT

#: All capabilities that an executor can have.
CAPABILITIES = frozenset({"submit", "cancel", "avoid", "resize", "signal", "reattach", "detach"})
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
    if (
        '"x-ensemble": "class"' in check_option_schema(record.options, shown)
        and kind != "generator"
    ):
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
        check_flags(record.options, shown)
        if record.job_options:
            check_option_schema(record.job_options, f"{shown}: job_options")
            check_compared(record.job_options, f"{shown}: job_options")
        if record.kinds:
            check_option_schema(record.kinds, f"{shown}: 'kinds'")
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
        check_classes(record.options, shown)
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
