"""Checks the condition of a rule (``when``, ``crosses``).

Its names are those that the rule's trigger provides.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from ensemble_core.config.action_entries import (
    report_unlisted,
    warn_of_fields_meant,
)
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.statistic_names import scoped_names
from ensemble_core.config.trigger_entries import BoundTrigger
from ensemble_core.errors import EnsembleError, did_you_mean
from ensemble_core.metrics.store import AWAY, BACKLOG, FIRINGS, MetricPath
from ensemble_core.model import conditions
from ensemble_core.model.causes import CAUSES
from ensemble_core.model.conditions import Condition, contradiction, tautology
from ensemble_core.model.expressions import check_names
from ensemble_core.model.filters import split_name

#: Prefixes of gauges whose values are non-negative integers.
_COUNTED = (
    *("queue.", "waiting.", "pilots.ready", "pilots.waiting", "pilots.draining"),
    *(BACKLOG, AWAY, FIRINGS),
)


def bind_condition(
    context: Context, path: Path, spec: Mapping[str, Any], bound: BoundTrigger | None
) -> tuple[Condition | None, frozenset[str]]:
    """Return the checked condition, and the statistics in it, such as ``max.stress``."""
    key = "crosses" if "crosses" in spec else "when"
    place = (*path, key)
    scoped: frozenset[str] = frozenset()
    if key not in spec or not context.is_valid(place):
        return None, frozenset()
    when = spec[key]
    names = bound.matched.names if bound else None
    has_value = bound is None or bound.path is not None
    try:
        condition = conditions.parse(when, has_value=has_value, key=key)
        conditions.check_nan(condition, names or ())
        plain = condition.names
        if bound is not None:
            matched = bound.matched
            scopes = matched.over, matched.slices
            found = scoped_names(context, place, plain, names, *scopes, of_job=matched.of_job)
            if found is None:
                return None, frozenset()
            scoped = found
            plain -= scoped
            if report_unlisted(context, place, plain, bound.matched):
                return None, frozenset()
            if not bound.matched.job:
                _check_job_names(context, condition.text, plain - {*(names or plain)}, bound)
        if names is not None:
            check_names(condition.text, plain, {*names, "value"} if has_value else names)
    except EnsembleError as error:
        context.attach(error, place)
        return None, frozenset()
    lacks = bound.record.lacks if bound else {}
    for name in sorted(condition.names & lacks.keys()):
        context.report(
            place,
            f"{name!r} in {condition.text!r} is not a field of {spec['trigger']!r} events",
            hint=lacks[name],
            code="never-holds",
            where=context.document.at_text(place, name),
        )
    for text in sorted(condition.metrics):
        context.metric(text, place)
    if bound is not None and bound.path is not None:
        _check_possible(context, place, condition, bound.path)
    if bound is not None and not bound.matched.observed:
        check_causes(context, place, condition, bound.matched.group)
    check_sense(context, place, condition, scoped, bound)
    if bound is not None:
        context.warn_of_kinds(place, condition, bound.matched.group)
        if bound.matched.job:
            warn_of_fields_meant(context, place, condition.text, condition.names, bound.matched)
    return condition, scoped


def check_sense(
    context: Context,
    place: Path,
    condition: Condition,
    scoped: Collection[str],
    bound: BoundTrigger | None = None,
) -> None:
    """Warn about a condition that is always or never true, and report one on a statistic that is
    never nan.
    """
    if condition.tree is not None:
        impossible, certain = contradiction(condition.tree), tautology(condition.tree)
        if impossible is not None:
            context.warnings.append(f"{condition.text!r} is never true: {impossible}")
        elif certain is not None:
            context.warnings.append(
                f"{condition.text!r} is always true, because {certain} is; compare it with "
                'something, as in \'group in ("a", "b")\''
            )
    _check_nonfinite(context, place, condition, scoped, bound)


def _check_nonfinite(
    context: Context,
    path: Path,
    condition: Condition,
    scoped: Collection[str],
    bound: BoundTrigger | None,
) -> None:
    """Report a condition that is true only if a statistic that skips nan is nan."""
    for name in sorted(condition.must_be_nonfinite):
        if name == "value" and bound is not None and bound.path is not None:
            name = bound.path.text
        elif name not in scoped and name not in condition.metrics:
            continue
        statistic = split_name(name).path.partition(".")[0]
        spec = context.known.statistics.get(statistic)
        if spec is None or spec.accepts != "all":
            context.report(
                path,
                f"{condition.text!r} is never true: {statistic!r} skips values that are not finite",
                hint=conditions.NAN_HINT,
                code="never-holds",
            )


def _check_job_names(
    context: Context, text: str, unknown: Collection[str], bound: BoundTrigger
) -> None:
    """Report names of job values or columns if the trigger's events have neither a job nor a
    row.
    """
    matched, tables = bound.matched, context.known.tables
    groups = matched.over or tuple(context.known.groups)
    for name in sorted(unknown):
        ways = []
        having = [one for one in groups if name in (context.scoped_variables(one) or ())]
        if having:
            missing = "" if matched.over else f" and add 'name: {having[0]}'"
            ways.append(f"mean.{name} (over the jobs){missing}")
        for table in tables.values():
            columns = [name] if name in table.row_names else [*table.columns] if having else []
            ways += [f"mean.{table.name}.{column} (over a table)" for column in columns[:1]]
        if ways:
            raise EnsembleError(
                f"{name!r} in {text!r} belongs to one job or row, but the trigger "
                f"{matched.trigger!r} has neither",
                hint=f"write {', or write '.join(ways[:2])}",
                code="bad-condition",
            )


def _check_possible(context: Context, path: Path, condition: Condition, metric: MetricPath) -> None:
    """Report comparisons with a count that can never be true: counts are non-negative integers."""
    counts = metric.kind == "count" or metric.text.startswith(_COUNTED)
    if condition.comparison is None or not counts:
        return
    operator, number = condition.comparison
    reason = None
    if operator == "==" and number != int(number) if abs(number) < 1e300 else operator == "==":
        reason = "it is a whole number"
    elif (operator in ("==", "<=") and number < 0) or (operator == "<" and number <= 0):
        reason = "it is never below 0"
    elif operator in (">", ">=") and number > 1e300:
        reason = "it is a whole number"
    if reason is not None:
        context.report(
            path,
            f"{metric.text!r} can never be {operator} {number:g}: {reason}",
            hint="change the number: with this one, the rule would never fire",
            code="never-holds",
        )


def check_causes(context: Context, path: Path, condition: Condition, group: str | None) -> None:
    """Report comparisons of ``cause`` with a text that is not a cause."""
    if condition.tree is None or "cause" not in condition.names - context.parameters(group):
        return
    for node in ast.walk(condition.tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        if not any(isinstance(side, ast.Name) and side.id == "cause" for side in sides):
            continue
        lists = [side.elts for side in sides if isinstance(side, (ast.Tuple, ast.List))]
        for part in chain(sides, *lists):
            if not isinstance(part, ast.Constant) or part.value in CAUSES:
                continue
            listed = f"one of {', '.join(CAUSES)}"
            context.report(
                path,
                f"unknown cause {part.value!r} in {condition.text!r}",
                hint=did_you_mean(str(part.value), CAUSES, listed, cutoff=0.5),
                code="no-such-cause",
                where=context.document.at_text(path, str(part.value)),
            )
