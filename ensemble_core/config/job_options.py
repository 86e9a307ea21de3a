"""Reads the options of executors in a job group, and converts and checks computed values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path, plain
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.numbers import whole
from ensemble_core.model.option_values import OptionText, converted, has_braces
from ensemble_core.plugin.registry import Registry
from ensemble_core.quick_dataclass import replace

#: How many combinations of parameters are tried with the options at most.
_TRIED = 1000


def read_options(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with texts marked that become other types when they are filled in."""

    def marked(value: Any, types: Collection[str]) -> Any:
        if isinstance(value, str) and "{" in value and {*types} != {"string"}:
            return OptionText(value, types)
        return whole(value)

    return _by_schema(context.registry, given, marked)


def convert_options(registry: Registry, options: Any) -> Any:
    """Return computed options, converted to the types that the executors accept."""
    return _by_schema(registry, options, converted) if isinstance(options, Mapping) else options


def check_filled_options(
    context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup
) -> None:
    """Report an option whose value does not fit for some values of the parameters."""
    if not has_braces(group.options) or spec.keys().isdisjoint(("options", "parameters", "points")):
        return
    tried: set[str] = set()
    started = replace(group, run="run", cwd="/run")
    for values in itertools.islice(group.combinations(), _TRIED):
        known = {n: value for n, value in values.items() if isinstance(value, (int, float, str))}
        options = plain(started.job(0, known).options)
        if repr(options) in tried:
            continue
        tried.add(repr(options))
        for error in context.validators.errors({"options": options}, "job-fields"):
            inner: Path = tuple(error.instance_path)
            value: Any = {"options": options}
            for step in inner:
                value = value[step]
            why, hint = error.message, "change the values of the parameters, or the option"
            if error.kind.name == "not" and isinstance(error.kind.schema, dict):
                why = "it is not allowed"
                hint = error.kind.schema.get("description", hint)
            given = ", ".join(f"{name}={each}" for name, each in known.items())
            given = given and f" with {given}"
            context.report(
                (*path, *inner) if "options" in spec else path,
                f"{'.'.join(map(str, inner))} is {value!r}{given}: {why}",
                hint=hint,
                code="bad-value",
            )
            return


def _by_schema(
    registry: Registry, options: Mapping[str, Any], leaf: Callable[[Any, Collection[str]], Any]
) -> dict[str, Any]:
    found = {}
    for name, given in options.items():
        schema = registry.executors[name].job_options if name in registry.executors else {}
        found[name] = _walk(given, schema, schema, leaf)
    return found


def _walk(
    value: Any, schema: Any, root: Mapping[str, Any], leaf: Callable[[Any, Collection[str]], Any]
) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#/$defs/"):
        schema = root.get("$defs", {}).get(target.removeprefix("#/$defs/"), {})
    if isinstance(value, Mapping):
        inner, others = schema.get("properties", {}), schema.get("additionalProperties")
        return {k: _walk(v, inner.get(k, others), root, leaf) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(each, schema.get("items"), root, leaf) for each in value]
    return leaf(value, [*_types(schema)])


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    given = schema.get("type")
    if given is not None:
        yield from [given] if isinstance(given, str) else given
    elif "enum" in schema:
        kinds = {str: "string", bool: "boolean", int: "number", float: "number"}
        yield from {kinds[type(one)] for one in schema["enum"] if type(one) in kinds}
