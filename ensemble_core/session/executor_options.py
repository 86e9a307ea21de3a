"""Options of executors and resizers: from ``-o KEY=VALUE``, from flags and from a profile."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from ensemble_core.config.profile import Profile
    from ensemble_core.plugin.records import ExecutorPlugin, ResizerPlugin
    from ensemble_core.plugin.registry import Registry

_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "none", ""), None),
}


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


def _properties(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the options in a schema, and whether it rejects all others."""
    closed = not schema.get("additionalProperties") and not schema.get("patternProperties")
    return schema.get("properties") or {}, closed


def plugin_name(registry: Registry, kind: str, record: ExecutorPlugin | ResizerPlugin) -> str:
    """Return the name of an executor or resizer, with its plugin unless it is built in."""
    whose = registry.whose(record)
    return f"{kind} {record.name!r}" + (f" ({whose})" if whose else "")


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


def is_meant(registry: Registry, record: ExecutorPlugin, profile: Profile) -> bool:
    """Return True if the profile's options are for this executor."""
    return profile.executor is not None and registry.executors[profile.executor] is record
