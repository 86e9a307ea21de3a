"""Chooses a run's executor, reads its options, and builds executors and resizers.

Without ``--executor``, the available executor with the highest priority is used. Options are given
with ``-o KEY=VALUE``, with flags, or by a profile.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError, call_plugin, did_you_mean, plugin_raised
from ensemble_core.quick_dataclass import dataclass, replace

if TYPE_CHECKING:
    from ensemble_core.config.profile import Profile
    from ensemble_core.model.jobs import Job
    from ensemble_core.plugin.executor import Executor, Rendered
    from ensemble_core.plugin.records import ExecutorPlugin, ResizerPlugin
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.plugin.resizer import Resizer


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor of a run: its name, its record, its options, and why it was chosen."""

    name: str
    record: ExecutorPlugin
    detail: str
    why: str
    options: Mapping[str, object] = field(default_factory=dict)
    profile: Profile | None = None
    #: False if neither the user nor a profile named the executor.
    named: bool = True

    def __str__(self) -> str:
        # Options take precedence over the environment, which the record describes.
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        detail = f" ({options or self.detail})" if options or self.detail else ""
        return f"executor {self.name}{detail}: {self.why}"


def choose_executor(
    registry: Registry, name: str | None, profile: Profile | None = None
) -> ExecutorChoice:
    """Return the executor to use: the one with this name, that of the profile, or the best one.

    Raises :class:`UsageError` with the reasons if none is available.
    """
    choice = _choose(registry, name, profile)
    if profile is None:
        return choice
    why = f"{choice.why}; profile {profile.name}"
    if name is None and profile.executor is not None:
        why = f"profile {profile.name}{_surroundings(registry, choice.record)}"
    elif profile.options and not is_meant(registry, choice.record, profile):
        why += f" without its options, which are for {profile.executor}"
    return replace(choice, why=why, profile=profile)


def _choose(registry: Registry, name: str | None, profile: Profile | None) -> ExecutorChoice:
    if name is None and profile is not None:
        name = profile.executor
    if name is not None:
        record = registry.lookup("executor", name)
        works, detail = probe(record)
        # Use it even if ``available`` returned false, because options may make it work. If they do
        # not, ``open`` fails.
        why = "chosen with --executor" + _surroundings(registry, record)
        return ExecutorChoice(name, record, detail if works else "", why)
    probed: dict[str, tuple[ExecutorPlugin, bool, str]] = {}
    for each, record in registry.executors.items():
        # A record may have several names; the shortest comes first.
        if all(record is not other for other, _, _ in probed.values()):
            probed[each] = (record, *probe(record))
    able = [each for each, (_, works, _) in probed.items() if works]
    if not able:
        reasons = "; ".join(f"{each}: {detail}" for each, (_, _, detail) in probed.items())
        raise UsageError(
            "no executor is available on this machine",
            cause=reasons or "no executor is installed",
            hint="'ensemble plugins list' shows installed and broken plugins",
            code="no-executor",
        )
    best = max(able, key=lambda each: probed[each][0].priority)
    record, _, detail = probed[best]
    if own := _inside(record):
        here = "" if "local" not in able else "--executor local runs them on this node; "
        raise UsageError(
            f"this is {own}: the jobs would go to the queue, not into it",
            cause="they may have to wait until it ends, so the run would wait for itself",
            hint=f"{here}--executor {best} submits them to the queue",
            code="inside-queue",
        )
    if len(able) == 1:
        others = ", ".join(
            f"{each}: {reason or 'not available'}"
            for each, (_, works, reason) in probed.items()
            # Leave out executors that work only if the user names them.
            if not works and f"--executor {each}" not in reason
        )
        why = f"the only one available here ({others})" if others else "the only one installed"
    else:
        others = ", ".join(each for each in able if each != best)
        why = f"preferred to {others}; --executor chooses another"
    return ExecutorChoice(best, record, detail, why + _surroundings(registry, record), named=False)


def _inside(record: ExecutorPlugin) -> str:
    """Return the job of the executor's queue in which this process runs, or an empty text."""
    if record.inside is None:
        return ""
    try:
        found: object = record.inside()
        return found if isinstance(found, str) else ""
    except Exception:  # a bug in a plugin must not prevent a run with another executor
        return ""


def _surroundings(registry: Registry, chosen: ExecutorPlugin) -> str:
    """Return a remark about the job of a queue in which this process runs."""
    if own := _inside(chosen):
        return f"; this is {own}: jobs go to the queue, not into it"
    around = next(filter(None, map(_inside, registry.executors.values())), "")
    if not around:
        return ""
    # The executor of this machine is the only one that can use no other node.
    idle = ": only this node is used" if chosen.name == "local" and "nodes" in around else ""
    return f"; this is {around}{idle}"


def build_executor(
    registry: Registry, record: ExecutorPlugin, options: Mapping[str, Any]
) -> Executor:
    """Build the executor with these options and with the defaults in its schema.

    Raises :class:`UsageError` if the executor rejects the options.
    """
    from ensemble_core.config.schema import option_defaults
    from ensemble_core.plugin.discovery import use_registry
    from ensemble_core.plugin.executor import Executor

    with use_registry(registry), _convert_build_errors(registry, "executor", record):
        whose, given = (
            plugin_name(registry, "executor", record),
            option_defaults(record.options, options),
        )
        built: Executor = call_plugin(record.build, given, returns=Executor, whose=whose)
        return built


def build_resizer(registry: Registry, name: str, given: Iterable[str]) -> Resizer:
    """Build the resizer with this name, with options from ``-o KEY=VALUE``.

    Raises :class:`UsageError` if the resizer rejects the options, and :class:`PluginError` if it
    does not exist or is broken.
    """
    from ensemble_core.config.schema import option_defaults
    from ensemble_core.plugin.resizer import Resizer

    record = registry.lookup("resizer", name)
    options = option_defaults(record.options, read_options(record, given, {}))
    with _convert_build_errors(registry, "resizer", record):
        whose = plugin_name(registry, "resizer", record)
        built: Resizer = call_plugin(record.build, options, returns=Resizer, whose=whose)
        return built


@contextlib.contextmanager
def _convert_build_errors(
    registry: Registry, kind: str, record: ExecutorPlugin | ResizerPlugin
) -> Iterator[None]:
    """Convert exceptions of a plugin's ``build`` to errors about its options or about the
    plugin.
    """
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
        raise plugin_raised(f"cannot build {plugin_name(registry, kind, record)}", error) from error


def rendered(record: ExecutorPlugin, job: Job, options: Mapping[str, Any]) -> Rendered:
    """Return what the executor would submit for a job.

    Raises :class:`PluginError` if the executor's ``render`` fails.
    """
    from ensemble_core.plugin.executor import Rendered

    assert record.render is not None
    whose = f"executor {record.name!r}"
    failed = f"{whose} cannot show what it submits for {job.id}"
    made: Rendered = call_plugin(
        record.render, job, options, returns=Rendered, method="render", whose=whose, failed=failed
    )
    return made


def probe(record: ExecutorPlugin) -> tuple[bool, str]:
    """Return whether an executor is available here, and why."""
    if record.available is None:
        return True, ""
    try:
        works, detail = record.available()
    except Exception as error:  # an error in a plugin only means that it is not available
        return False, f"{type(error).__name__}: {error}"
    return bool(works), str(detail or "")


def plugin_name(registry: Registry, kind: str, record: ExecutorPlugin | ResizerPlugin) -> str:
    """Return the name of an executor or resizer, with its plugin unless it is built in."""
    whose = registry.whose(record)
    return f"{kind} {record.name!r}" + (f" ({whose})" if whose else "")


def profile_options(
    registry: Registry, record: ExecutorPlugin, profile: Profile | None
) -> dict[str, Any]:
    """Return the options that a profile sets for this executor: none if it names another one.

    Raises :class:`FileErrors` if the executor rejects options.
    """
    from ensemble_core.errors import FileErrors
    from ensemble_core.plugin.option_schemas import plain

    if profile is None or not is_meant(registry, record, profile):
        return {}
    schema = plain(record.options)
    properties, closed = _properties(schema)
    whose = f"executor {record.name!r}"
    errors = [
        UsageError(
            f"{whose} has no option {key!r}",
            where=profile.at("options", key),
            hint=_offer(key, properties),
            code="unknown-option",
        )
        for key in profile.options
        if closed and key not in properties
    ]
    import jsonschema_rs

    known = {key: value for key, value in profile.options.items() if key in properties}
    for error in jsonschema_rs.validator_for({**schema, "required": []}).iter_errors(known):
        path = [str(part) for part in error.instance_path]
        errors.append(
            UsageError(
                f"invalid option {'.'.join(path)!r} for {whose}",
                where=profile.at("options", *path),
                cause=error.message,
                hint=f"'ensemble plugins show executor {record.name}' describes it",
                code="bad-option",
            )
        )
    if errors:
        raise FileErrors(errors)
    return dict(profile.options)


def is_meant(registry: Registry, record: ExecutorPlugin, profile: Profile) -> bool:
    """Return True if the profile's options are for this executor."""
    return profile.executor is not None and registry.executors[profile.executor] is record


def read_options(
    record: ExecutorPlugin | ResizerPlugin, given: Iterable[str], named: Mapping[str, object]
) -> dict[str, Any]:
    """Parse the options of an executor or resizer from ``-o KEY=VALUE`` and from its flags.

    Raises :class:`UsageError` if the schema rejects an option.
    """
    from ensemble_core.plugin.option_schemas import plain
    from ensemble_core.plugin.records import ExecutorPlugin

    whose = f"{'executor' if isinstance(record, ExecutorPlugin) else 'resizer'} {record.name!r}"
    schema = plain(record.options)
    properties, closed = _properties(schema)
    options: dict[str, Any] = {}
    for name, value in named.items():
        if value is None:
            continue
        # Flags that several executors share have no type, so their texts are parsed here.
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


_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "none", ""), None),
}


def _properties(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the options in a schema, and whether it rejects all others."""
    closed = not schema.get("additionalProperties") and not schema.get("patternProperties")
    return schema.get("properties") or {}, closed


def _offer(name: str, properties: Mapping[str, Any]) -> str:
    if not properties:
        return "it has no options"
    listed = f"its options are {', '.join(properties)}"
    return did_you_mean(name.replace("-", "_"), properties, listed)


def _read(text: str, schema: Any) -> object:
    """Return the first interpretation of a text that the schema allows, or the text itself."""
    if not schema or not isinstance(schema, Mapping):
        return text
    import jsonschema_rs

    def parts(text: str) -> object:
        return [_read(part.strip(), schema.get("items")) for part in text.split(",")]

    validator = jsonschema_rs.validator_for(dict(schema))
    near: list[object] = []
    for reading in (_parse_bool, int, float, json.loads, str, parts):
        try:
            value: object = reading(text)
            wrong = {error.kind.name for error in validator.iter_errors(value)}
        except (KeyError, ValueError):  # not of this type
            continue
        if not wrong:
            return value
        if "type" not in wrong:  # the type is right, but the value is not allowed
            near.append(value)
    return near[0] if near else text


def _parse_bool(text: str) -> bool | None:
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
            f"invalid options for {whose}",
            cause="; ".join(sorted(problems)),
            hint=f"'ensemble plugins show {shown}' describes them",
            code="bad-option",
        )
