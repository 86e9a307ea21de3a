"""Checks the section ``generators:`` and creates a :class:`GeneratorSpec` for each entry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from ensemble_core.config.action_entries import MatchContext, OptionCheck
from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path, shown
from ensemble_core.config.group_entries import check_used
from ensemble_core.config.search_space import earlier_points, read_first_points, read_variables
from ensemble_core.config.statistic_names import scoped_names
from ensemble_core.config.sweeps import MOST_JOBS
from ensemble_core.errors import EnsembleError, Location
from ensemble_core.metrics.store import generator_gauge
from ensemble_core.model import conditions
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import check_names
from ensemble_core.model.generators import (
    Constraint,
    Generator,
    GeneratorSpec,
    Goal,
    Prune,
    Variable,
    Vocs,
)
from ensemble_core.model.job_group import JobGroup
from ensemble_core.plugin.distributions import known_provider
from ensemble_core.plugin.hookspecs import GeneratorPlugin
from ensemble_core.plugin.untrusted_code import Purpose, build_generator, named_classes

_CONSTRAINT = re.compile(r"\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*")
#: Limits that can end a run whose generator never finishes.
_ENDS = frozenset({"jobs", "core_hours", "node_hours", "gpu_hours", "wall"})


def give_parameters(data: Mapping[str, Any]) -> None:
    """Add each generator's variables to its job group as parameters with the value null.

    Call this before all other checks.
    """
    jobs, generators = data.get("jobs"), data.get("generators")
    entries = [one for one in jobs if isinstance(one, dict)] if isinstance(jobs, list) else []
    names = {str(one.get("name")) for one in entries}
    for spec in generators if isinstance(generators, list) else ():
        if not isinstance(spec, dict) or not isinstance(spec.get("variables"), dict):
            continue
        named = str(spec.get("group"))
        meant = named if named in names else nearest(named, names)
        for group in (one for one in entries if one.get("name") == meant):
            parameters = group.get("parameters")
            if parameters is None:
                parameters = group["parameters"] = {}
            if isinstance(parameters, dict):
                for name in spec["variables"]:
                    parameters.setdefault(name, None)


def bind_generators(context: Context, given: object) -> dict[str, GeneratorSpec]:
    """Return the valid generators by name. Report the errors of the others."""
    known = context.known.generators
    entries = given if isinstance(given, list) else []
    places: dict[str, Path] = {}
    for index, spec in enumerate(entries):
        name = spec.get("name") if isinstance(spec, dict) else None
        if not isinstance(name, str):
            continue
        path: Path = ("generators", index)
        if name in places:
            context.report(
                (*path, "name"),
                f"duplicate generator {name!r}; the first is at "
                f"{context.document.at(places[name])}",
                hint="rename one of them",
                code="duplicate-name",
            )
            continue
        for others, what, why in (
            (context.known.tables, "a table under 'results'", "'ensemble results' shows"),
            (context.known.instances, "an instance under 'use'", "'switch' accepts"),
        ):
            if name in others:
                context.report(
                    (*path, "name"),
                    f"the name {name!r} is already used by {what}",
                    hint=f"{why} both by name: rename one of them",
                    code="duplicate-name",
                )
        places[name] = (*path, "name")
        known[name] = None
    for index, spec in enumerate(entries):
        name = spec.get("name") if isinstance(spec, dict) else None
        if isinstance(name, str) and places.get(name) == ("generators", index, "name"):
            known[name] = _bind_entry(context, ("generators", index), spec)
    for index, spec in enumerate(entries):
        bound = known.get(str(spec.get("name"))) if isinstance(spec, dict) else None
        for text in sorted({*bound.reads, *bound.metrics}) if bound is not None else ():
            if generator_gauge(text) is not None:  # the gauge may be that of a later generator
                context.metric(text, ("generators", index, "until"))
    return {name: spec for name, spec in known.items() if spec is not None}


def _bind_entry(context: Context, path: Path, spec: Mapping[str, Any]) -> GeneratorSpec | None:
    """Return the checked form of one entry, or ``None`` after reporting errors."""
    before = len(context.errors)
    use = spec.get("use")
    if not context.is_valid(path) or not isinstance(use, str):
        return None
    if use not in context.registry.generators:
        return None
    record: GeneratorPlugin = context.registry.generators[use]
    if not context.group(spec.get("group"), (*path, "group")):
        return None
    group = context.known.groups[spec["group"]]
    variables = read_variables(context, (*path, "variables"), spec["variables"])
    if group is None or len(context.errors) > before:
        return None
    _check_group(context, path, spec, group)
    _check_size(context, path, spec, group)
    check_used(context, group.name)
    _check_conditional(context, path, variables, record)
    prune = _prune(context, path, spec, record)
    vocs = Vocs(
        variables=variables,
        objectives=_objectives(context, (*path, "objectives"), spec["objectives"], group),
        constraints=_constraints(context, (*path, "constraints"), spec, group),
        prunes=prune is not None,
    )
    given = {*spec["objectives"], *(spec.get("constraints") or {})}
    if given - {*vocs.outputs}:
        return None  # their errors have been reported
    until, reads = _bind_until(context, (*path, "until"), spec, group)
    failed = _bind_failed_values(context, (*path, "failed"), spec.get("failed"), vocs)
    options = OptionCheck(context, record.options, MatchContext()).options(
        (*path, "with"), spec.get("with") or {}
    )
    timeout = context.duration((*path, "timeout"), spec.get("timeout", 600), above=0)
    if len(context.errors) > before:
        return None
    shown_as = context.named(record, use)
    classes = tuple(path for _, path, _ in named_classes(record.options, options))
    if context.known.reads:
        try:
            if record.check is not None:
                record.check(vocs, options)
            if classes and context.known.purpose == "run":
                build_generator(record, vocs, options, "run")
        except Exception as error:  # a bug in the plugin, reported as such
            place = _option(spec.get("with") or {}, str(error), (*path, "with"))
            context.failed(place or (*path, "use"), shown_as, error)
    finite = record.finite is not None and bool(
        context.build((*path, "use"), shown_as, lambda: record.finite and record.finite(options))
    )
    limits = context.document.data.get("limits") if isinstance(context.document.data, dict) else {}
    wanted = earlier_points(spec["name"], spec.get("first"))
    first = read_first_points(context, (*path, "first"), spec.get("first"), vocs, wanted)
    once = vocs.size is not None or "first" in spec or any(each.when for each in variables)
    repeat = bool(spec.get("repeat", not once))
    finite = finite or (not repeat and vocs.size is not None)
    if until is None and not finite and not _ENDS & {*(limits or {})}:
        context.report(
            path,
            f"the generator {spec['name']!r} would never end",
            hint="add 'until: count.done >= 60', or a limit: 'limits: {jobs: 60}'",
            code="no-end",
        )
    if len(context.errors) > before:
        return None
    return GeneratorSpec(
        name=spec["name"],
        use=use,
        group=group.name,
        vocs=vocs,
        build=partial(_build, record, vocs, options, context.document.at((*path, "use"))),
        given=dict(spec),
        classes=classes,
        replicas=spec.get("replicas"),
        at_once=spec.get("at_once", 1),
        until=until,
        repeat=repeat,
        failed=failed,
        first=first,
        first_from=None if first else wanted,
        prune=prune,
        timeout=timeout or 600.0,
        enabled=spec.get("enabled", True),
        reads=reads,
        metrics=until.metrics if until is not None else frozenset(),
    )


def _build(
    record: GeneratorPlugin,
    vocs: Vocs,
    options: Mapping[str, Any],
    where: Location | None,
    purpose: Purpose,
) -> Generator:
    """Build the generator. Its errors are reported at ``where``, its position in the file."""
    try:
        return build_generator(record, vocs, options, purpose)
    except EnsembleError as error:
        error.what = f"cannot be built ({where}): {error.what}"
        raise


def _option(given: Mapping[str, Any], message: str, path: Path) -> Path | None:
    """Return the path of the option that a plugin's message mentions first, by its name or
    value.
    """
    found = ((message.find(f"'{word}'"), place) for word, place in _mentions(given, path) if word)
    named = [each for each in found if each[0] >= 0]
    return min(named, key=itemgetter(0))[1] if named else None


def _mentions(given: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Path]]:
    """Yield each word by which a message may mention an option, with the option's path."""
    for name, value in given.items():
        place = (*path, name)
        yield name, place
        if isinstance(value, Mapping):
            yield from _mentions(value, place)
        else:
            yield f"{value}", place
            yield f"{value}".rpartition(".")[0], place  # the module of a class


def _report(context: Context, path: Path, what: str, hint: str, *, code: str = "bad-value") -> None:
    context.report(path, what, hint=hint, code=code)


def _check_conditional(
    context: Context, path: Path, variables: Sequence[Variable], record: GeneratorPlugin
) -> None:
    """Report a variable with a condition that the generator cannot have."""
    conditional = next((each for each in variables if each.when), None)
    if conditional is not None and not record.conditional:
        can = [name for name, each in context.registry.generators.items() if each.conditional]
        context.report(
            (*path, "variables", conditional.name, "when"),
            f"the generator {record.name!r} cannot have variables with 'when'",
            hint=f"use one of {', '.join(sorted(can))}, or a generator for each case",
            code="bad-value",
        )


def _check_size(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> None:
    """Report a generator whose open points have more jobs than one submit allows."""
    replicas = spec.get("replicas", group.count)
    jobs = spec.get("at_once", 1) * replicas
    if jobs > MOST_JOBS:
        key = next((key for key in ("at_once", "replicas") if spec.get(key, 1) > 1), "group")
        _report(
            context,
            (*path, key),
            f"{spec['name']!r} would have {jobs} jobs at once; the limit is {MOST_JOBS}",
            "use fewer points at once, or fewer replicas",
            code="out-of-range",
        )


def _check_group(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> None:
    """Report parameters of the generator's group that have no value."""
    for name in group.missing:
        if name not in spec["variables"]:
            context.report(
                (*path, "variables"),
                f"the parameter {name!r} of {group.name!r} is null but not a variable of this "
                "generator",
                hint=f"make it a variable, or give it a value in {group.name!r}",
                code="no-value",
            )
    for name in spec["variables"]:
        if any(name in entry.points for entry in (group, *group.more)):
            context.report(
                (*path, "variables", name),
                f"the variable {name!r} is also a column of the points of {group.name!r}",
                hint="remove the column, or rename the variable",
                code="duplicate-name",
                where=context.document.at_key((*path, "variables", name)),
            )


def _result_names(group: JobGroup) -> list[str]:
    return [name for entry in (group, *group.more) for name in entry.result]


def _written_results(context: Context, group: JobGroup) -> Iterator[Mapping[str, Any]]:
    """Yield the results of a group as written in the file, including invalid ones."""
    data = context.document.data
    jobs = data.get("jobs") if isinstance(data, dict) else None
    for entry in jobs if isinstance(jobs, list) else ():
        if isinstance(entry, dict) and entry.get("name") == group.name:
            written = entry.get("result")
            if isinstance(written, dict):
                yield written


def _is_result(context: Context, path: Path, name: str, group: JobGroup) -> bool:
    """Return True if the group has this result; otherwise report an error."""
    names = _result_names(group)
    if name in names:
        return True
    if any(name in written for written in _written_results(context, group)):
        return False  # its error was already reported
    near = nearest(name, names)
    if near:
        hint = f"did you mean {near!r}?"
    elif names:
        hint = f"its results are {', '.join(names)}"
    else:
        hint = f"add a result to the group: {{{name}: last.{name}}}, for a column of an observer"
    context.report(
        path,
        f"the job group {group.name!r} has no result {name!r}",
        hint=hint,
        code="no-such-result",
        where=context.document.at_key(path),
    )
    return False


def _objectives(
    context: Context, path: Path, given: Mapping[str, Goal], group: JobGroup
) -> dict[str, Goal]:
    return {
        name: goal
        for name, goal in given.items()
        if _is_result(context, (*path, name), name, group)
    }


def _constraints(
    context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup
) -> dict[str, Constraint]:
    found = {}
    for name, text in (spec.get("constraints") or {}).items():
        place = (*path, name)
        parsed = _CONSTRAINT.fullmatch(text)
        if parsed is None:
            _report(
                context,
                place,
                f"the constraint on {name!r} is {shown(text)}, expected a comparison",
                'write <, <=, > or >= and a number: "< 2.5"',
            )
        elif _is_result(context, place, name, group):
            found[name] = Constraint(parsed[1], float(parsed[2]))
    return found


def _bind_until(
    context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup
) -> tuple[Condition | None, frozenset[str]]:
    if "until" not in spec:
        return None, frozenset()
    known = frozenset({"timestamp", "run"})
    try:
        condition = conditions.parse(spec["until"], has_value=False)
        scoped = scoped_names(context, path, condition.names, known, (group.name,))
        if scoped is None:
            return None, frozenset()
        check_names(condition.text, condition.names - scoped, known)
    except EnsembleError as error:
        context.attach(error, path)
        return None, frozenset()
    for text in sorted(condition.metrics):
        context.metric(text, path)
    return condition, scoped


def _bind_failed_values(
    context: Context, path: Path, given: object, vocs: Vocs
) -> dict[str, float] | None:
    if not isinstance(given, dict):
        return None
    for name in vocs.outputs:
        if name not in given:
            hint = f"write failed: {{{', '.join(f'{each}: …' for each in vocs.outputs)}}}"
            _report(context, path, f"'failed' has no value for {name!r}", hint)
    for name in given:
        if name not in vocs.outputs:
            context.unknown((*path, name), "objective", name, list(vocs.outputs))
    return {name: float(value) for name, value in given.items()}


def _prune(
    context: Context, path: Path, spec: Mapping[str, Any], record: GeneratorPlugin
) -> Prune | None:
    given = spec.get("prune")
    if not isinstance(given, dict):
        return None
    place = (*path, "prune")
    if not record.prunes:
        able = [name for name, each in context.registry.generators.items() if each.prunes]
        _, install = known_provider("generator", "optuna") or ("", "")
        context.report(
            place,
            f"'prune' is not possible: the generator {spec['use']!r} "
            "cannot use rows of running jobs",
            hint=f"{', '.join(able)} can" if able else f"{install} provides one that can",
            code="cannot-prune",
            where=context.document.at_key(place),
        )
        return None
    for key in ("value", "step"):
        name = given[key]
        hint = context.why_not_observed(spec["group"], name)
        if hint is not None and name != "clock":
            context.report(
                (*place, key),
                f"no observer of the job group {spec['group']!r} yields {name!r}",
                hint=hint or "add an observer that yields it ('observe:')",
                code="not-observed",
            )
    return Prune(given["value"], given["step"])
