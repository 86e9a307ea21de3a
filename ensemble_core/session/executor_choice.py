"""Chooses and builds the executor (or resizer) of a run, with options from the command line.

``--executor`` decides; otherwise the available executor of highest priority. Option texts are
parsed by the executor's JSON Schema.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError, call_plugin, did_you_mean, plugin_raised

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.model.jobs import Job
    from ensemble_core.plugin.executor import Executor
    from ensemble_core.plugin.records import ExecutorPlugin, ResizerPlugin
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.plugin.rendering import Rendered
    from ensemble_core.plugin.resizer import Resizer

__all__ = [
    "ExecutorChoice",
    "build_executor",
    "build_resizer",
    "check_environment",
    "choose_executor",
    "read_options",
    "rendered",
]

_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "none", ""), None),
}


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor of a run: its name, its record, and why it was chosen. ``options`` are those set
    for it."""

    name: str
    record: ExecutorPlugin
    detail: str
    why: str
    options: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        # What its record says of the surroundings is not what it was told to use instead.
        told = ", ".join(f"{name}={value}" for name, value in self.options.items())
        detail = f" ({told or self.detail})" if told or self.detail else ""
        return f"executor {self.name}{detail}: {self.why}"


def choose_executor(registry: Registry, name: str | None) -> ExecutorChoice:
    """Return the executor to use. Raises :class:`UsageError`, with reasons, if none is
    available."""
    if name is not None:
        record = registry.lookup("executor", name)
        works, detail = probe(record)
        # The user may know more than ``available``, and options may make it work. If not, ``open``
        # fails with the reason.
        return ExecutorChoice(name, record, detail if works else "", "chosen with --executor")
    asked: dict[str, tuple[ExecutorPlugin, bool, str]] = {}
    for each, record in registry.executors.items():
        # A record may be listed under more than one name: its shortest comes first.
        if all(record is not other for other, _, _ in asked.values()):
            asked[each] = (record, *probe(record))
    able = [each for each, (_, works, _) in asked.items() if works]
    if not able:
        reasons = "; ".join(f"{each}: {detail}" for each, (_, _, detail) in asked.items())
        raise UsageError(
            "no executor is available here",
            cause=reasons or "none is installed",
            hint="'ensemble plugins list' shows installed and broken plugins",
            code="no-executor",
        )
    best = max(able, key=lambda each: asked[each][0].priority)
    record, _, detail = asked[best]
    if len(able) == 1:
        others = ", ".join(
            f"{each}: {reason or 'not available'}"
            for each, (_, works, reason) in asked.items()
            # Leave out executors that only work when they are named.
            if not works and f"--executor {each}" not in reason
        )
        why = f"the only one available here ({others})" if others else "the only one installed"
    else:
        others = ", ".join(each for each in able if each != best)
        why = f"preferred to {others}; --executor chooses another"
    return ExecutorChoice(best, record, detail, why)


def build_executor(
    registry: Registry, record: ExecutorPlugin, options: Mapping[str, Any]
) -> Executor:
    """Build the executor with these options and its schema's defaults.

    Raises :class:`UsageError` if it rejects them.
    """
    from ensemble_core.config.schema import defaults
    from ensemble_core.plugin.discovery import looking_in
    from ensemble_core.plugin.executor import Executor

    with looking_in(registry), _options_of(registry, "executor", record):
        whose, given = _shown(registry, "executor", record), defaults(record.options, options)
        built: Executor = call_plugin(record.build, given, returns=Executor, whose=whose)
        return built


def build_resizer(registry: Registry, name: str, given: Iterable[str]) -> Resizer:
    """The resizer of this name with options from ``-o KEY=VALUE``. Raises :class:`UsageError` for
    options that it does not take, :class:`PluginError` where there is none or it is broken."""
    from ensemble_core.config.schema import defaults
    from ensemble_core.plugin.resizer import Resizer

    record = registry.lookup("resizer", name)
    options = defaults(record.options, read_options(record, given, {}))
    with _options_of(registry, "resizer", record):
        whose = _shown(registry, "resizer", record)
        built: Resizer = call_plugin(record.build, options, returns=Resizer, whose=whose)
        return built


def _shown(registry: Registry, kind: str, record: ExecutorPlugin | ResizerPlugin) -> str:
    whose = registry.whose(record)
    return f"{kind} {record.name!r}" + (f" ({whose})" if whose else "")


@contextlib.contextmanager
def _options_of(
    registry: Registry, kind: str, record: ExecutorPlugin | ResizerPlugin
) -> Iterator[None]:
    """Reports an error that a plugin raises while it is built: as one of its options, or as the
    plugin's fault."""
    try:
        yield
    except EnsembleError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{kind} {record.name!r} rejects these options",
            cause=str(error),
            hint=f"'ensemble plugins show {kind} {record.name}' describes them",
            code="bad-option",
        ) from error
    except Exception as error:
        raise plugin_raised(f"cannot build {_shown(registry, kind, record)}", error) from error


def rendered(record: ExecutorPlugin, job: Job, options: Mapping[str, Any]) -> Rendered:
    """Return what the executor would hand to its queue for a job. Raises :class:`PluginError` if
    its ``render`` is at fault."""
    from ensemble_core.plugin.rendering import Rendered

    assert record.render is not None
    whose = f"executor {record.name!r}"
    failed = f"{whose} cannot show what it submits for {job.id}"
    made: Rendered = call_plugin(
        record.render, job, options, returns=Rendered, method="render", whose=whose, failed=failed
    )
    return made


def probe(record: ExecutorPlugin) -> tuple[bool, str]:
    if record.available is None:
        return True, ""
    try:
        works, detail = record.available()
    except Exception as error:  # a plugin's fault is a reason not to use it, not to fail
        return False, f"{type(error).__name__}: {error}"
    return bool(works), str(detail or "")


def read_options(
    record: ExecutorPlugin | ResizerPlugin, given: Iterable[str], named: Mapping[str, object]
) -> dict[str, Any]:
    """Parse the options of an executor or resizer from ``-o KEY=VALUE`` and from its flags.

    Raises :class:`UsageError` for what its schema rejects.
    """
    from ensemble_core.plugin.records import ExecutorPlugin
    from ensemble_core.plugin.validation import plain

    whose = f"{'executor' if isinstance(record, ExecutorPlugin) else 'resizer'} {record.name!r}"
    schema = plain(record.options)
    properties: Mapping[str, Any] = schema.get("properties") or {}
    # As the options of all plugins: closed, unless the schema itself says what else there may be.
    closed = not schema.get("additionalProperties") and not schema.get("patternProperties")
    options: dict[str, Any] = {}
    for name, value in named.items():
        if value is None:
            continue
        # Flags that several executors share are untyped, so they are read here.
        options[name] = _read(value, properties.get(name)) if isinstance(value, str) else value
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip()
        if key not in properties and key.replace("-", "_") in properties:
            key = key.replace("-", "_")
        if not equals or not key or (closed and key not in properties):
            right = equals and key
            raise UsageError(
                f"{whose} has no option {key!r}"
                if right
                else f"option {text!r} is not of the form KEY=VALUE",
                hint=_offer(key, properties),
                code="unknown-option" if right else "bad-option",
            )
        if key in options:
            raise UsageError(f"option {key!r} is given twice", code="bad-option")
        options[key] = _read(value, properties.get(key))
    _check(whose, schema, options)
    return options


def _offer(name: str, properties: Mapping[str, Any]) -> str:
    if not properties:
        return "it has no options"
    listed = f"its options are {', '.join(properties)}"
    return did_you_mean(name.replace("-", "_"), properties, listed)


def _read(text: str, schema: Any) -> object:
    """The first of the values that a text may stand for which the schema allows; else the text."""
    if not schema or not isinstance(schema, Mapping):
        return text
    import jsonschema_rs

    def parts(text: str) -> object:
        return [_read(part.strip(), schema.get("items")) for part in text.split(",")]

    validator = jsonschema_rs.validator_for(dict(schema))
    near: list[object] = []
    for reading in (_word, int, float, json.loads, str, parts):
        try:
            value: object = reading(text)
            wrong = {error.kind.name for error in validator.iter_errors(value)}
        except (KeyError, ValueError):  # it cannot be read so
            continue
        if not wrong:
            return value
        if "type" not in wrong:  # but it is too large, or not one of those that there are
            near.append(value)
    return near[0] if near else text


def _word(text: str) -> bool | None:
    return _WORDS[text.strip().lower()]


def _check(whose: str, schema: Any, options: dict[str, Any]) -> None:
    if not schema:
        return
    import jsonschema_rs

    problems = []
    for error in jsonschema_rs.validator_for(schema).iter_errors(options):
        path = ".".join(str(part) for part in error.instance_path)
        problems.append(f"{path}: {error.message}" if path else error.message)
    if problems:
        shown = whose.replace("'", "")
        raise UsageError(
            f"wrong options for {whose}",
            cause="; ".join(sorted(problems)),
            hint=f"'ensemble plugins show {shown}' describes them",
            code="bad-option",
        )


def webhook_errors(ensemble: Ensemble) -> list[UsageError]:
    """Return an error for each webhook whose variable is not set here, or has no safe URL."""
    from ensemble_core.model.notification_addresses import addresses, webhook_of
    from ensemble_core.runtime.webhooks import webhook_url

    found: dict[str, UsageError] = {}
    for rule in ensemble.rules:
        flat = (each for action in rule.actions for each in action.flat())
        named = [addresses(each.options["to"]) for each in flat if each.name == "notify"]
        for hook in filter(None, (webhook_of(address) for one in named for address in one)):
            name = hook[0]
            try:
                webhook_url(name, os.environ)
            except ValueError as error:
                hint = f"export {name}=https://… in this shell and repeat the command"
                found[name] = UsageError(
                    str(error), where=rule.location, hint=hint, code="no-variable"
                )
    return [*found.values()]


def check_environment(ensemble: Ensemble, warn: Callable[[str], None] | None = None) -> None:
    """Raise :class:`UsageError` where a variable that jobs are to inherit is not set here, or one
    with the URL of a webhook; with ``warn``, the latter is only a warning."""
    for error in webhook_errors(ensemble):
        if warn is None:
            raise error
        warn(str(error))
    missing: dict[str, list[str]] = {}
    for group in ensemble.groups.values():
        for name in group.environment_from:
            if name not in os.environ:
                missing.setdefault(name, []).append(group.name)
    if missing:
        told = (f"{name} (for {', '.join(groups)})" for name, groups in missing.items())
        raise UsageError(
            f"the environment lacks {', '.join(told)}",
            cause="jobs inherit it from here by 'environment_from'",
            hint=f"export {next(iter(missing))}=… in this shell and repeat the command",
            code="no-variable",
        )
