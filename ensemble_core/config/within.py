"""Checks the key ``within`` of job groups: the environments in which commands start."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.schema import option_defaults
from ensemble_core.errors import EnsembleError
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.option_values import has_braces
from ensemble_core.plugin.hookspecs import EnvironmentPlugin

#: How many combinations of parameters are tried with the options at most.
_TRIED = 1000


def environment_name(entry: Mapping[str, Any], environments: Mapping[str, object]) -> str:
    """Return the name of the environment in an entry that has been checked."""
    return next(name for name in entry if name in environments)


def read_within(context: Context, path: Path, given: Any) -> tuple[dict[str, Any], ...] | None:
    """Return the entries with the defaults of their options, or ``None`` after reporting errors."""
    before = len(context.errors)
    known = context.registry.environments
    found = []
    for number, entry in enumerate(given if isinstance(given, list) else [given]):
        place = (*path, number) if isinstance(given, list) else path
        names = [name for name in entry if name in known]
        if len(names) == 1:
            for text, inner in _texts(entry, place):
                if "\0" in text:
                    what = "a NUL character cannot be passed to a program"
                    context.report(inner, what, code="bad-value")
            found.append(option_defaults(known[names[0]].options, entry))
        elif names:
            context.report(
                place,
                f"an entry of 'within' has several environments: {' and '.join(names)}",
                hint="write a list, the outermost first: "
                f"[{', '.join(f'{{{name}: …}}' for name in names)}]",
                code="bad-value",
            )
        else:
            name = next(iter(entry))
            context.report(
                (*place, name),
                f"there is no environment {name!r}",
                hint=context.registry.explain_missing("environment", name),
                code="no-such-environment",
                where=context.document.at_key((*place, name)),
            )
    return tuple(found) if len(context.errors) == before else None


def _texts(value: Any, path: Path) -> Iterator[tuple[str, Path]]:
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*path, key))


def check_within(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> None:
    """Report environments that do not exist, and those that jobs of the executor cannot have.

    Without an executor, or if the file is only shown, the former cause a warning.
    """
    if not group.within or spec.keys().isdisjoint(("within", "parameters", "points")):
        return
    executor, at = context.executor, (*path, "within") if "within" in spec else path
    if executor is not None and executor.unseen:
        context.report(
            at,
            f"'within' cannot be used with the executor {executor.name}: {executor.unseen}",
            hint="remove 'within' ('within: null' if a profile has it), and use an image that has "
            "the software",
            code="bad-value",
            where=context.document.at_key(at),
        )
        return
    if not context.known.reads or group.missing or (executor is not None and executor.members):
        return
    local = executor is not None and executor.name == "local"
    for number, entry in _filled(group):
        record = _checked(context, entry)
        if record is None or record.check is None:
            continue
        place = (*at, number) if isinstance(spec.get("within"), list) else at
        if "within" in spec:
            place = (*place, record.name)
        try:
            record.check(entry, local)
        except Exception as error:
            if not isinstance(error, EnsembleError):  # a bug in the plugin, reported as such
                context.failed(place, context.named(record, record.name), error)
                continue
            if executor is None:
                where = context.document.at(place)
                context.warnings.append(f"{where}: {error.what}" if where else error.what)
                continue
            error.hint = (
                f"{error.hint}; " if error.hint else ""
            ) + "if only the nodes have it, add 'check: false' to the entry"
            context.attach(error, place)


def _checked(context: Context, entry: Mapping[str, Any]) -> EnvironmentPlugin | None:
    """Return the environment of an entry, or ``None`` if the entry is not to be checked."""
    if entry.get("check") is False or has_braces(entry):
        return None
    environments = context.registry.environments
    return environments[environment_name(entry, environments)]


def _filled(group: JobGroup) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each entry with its number, once for each of its values."""
    seen: set[str] = set()
    many = itertools.islice(group.combinations(), _TRIED) if has_braces(group.within) else ({},)
    cwd = os.getcwd().replace("{", "{{").replace("}", "}}")
    for values in many:
        for number, entry in enumerate(group.job(0, {"cwd": cwd, **values}).within):
            if repr(entry) not in seen:
                seen.add(repr(entry))
                yield number, entry
