"""Warns about rules that use a name with two meanings: a printed column and a ``result``.

In a rule, a statistic with this name covers the rows that the jobs print. In a table, it covers the
results of the jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.metrics.store import parse_path
from ensemble_core.model.filters import split_name
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.rules import BoundRule

__all__ = ["warn_of_two_meanings"]


def warn_of_two_meanings(context: Context, path: Path, rule: BoundRule) -> None:
    """Warn once about each name in the rule at this path that is both a column and a result."""
    used: dict[str, dict[str, str]] = {}
    groups: dict[str, dict[str, str]] = {}
    for group, written, statistic, variable in _statistics(context, rule):
        formula = _differing_result(context, group, statistic, variable)
        if formula is not None:
            used.setdefault(variable, {}).setdefault(split_name(written).path, written)
            groups.setdefault(variable, {}).setdefault(group, formula)
    for variable, names in used.items():
        first, written = next(iter(names.items()))
        leaf = next((place for place, text in _texts(path, rule.spec) if written in text), None)
        where = rule.location if leaf is None else context.document.at_text(leaf, written)
        whose = " and ".join(map(repr, groups[variable]))
        formula = next(iter(groups[variable].values()))
        cover = "they cover" if len(names) > 1 else "it covers"
        context.warnings.append(
            (f"{where}: " if where else "")
            + f"rule {rule.id!r} uses {' and '.join(names)}: in a rule, {cover} all rows that the "
            f"jobs of {whose} print; in a table, {cover} the results of the jobs. Rename the "
            f"result, as in '{variable}_result: {formula}', and write {first}_result for the "
            "results"
        )


def _statistics(context: Context, rule: BoundRule) -> Iterator[tuple[str, str, str, str]]:
    """Yield the statistics of groups in the rule: group, name as written, statistic and variable.

    A statistic of a single job is left out: a job has only one result, so only its rows can be
    meant.
    """
    groups = rule.groups or tuple(context.known.groups)
    texts: list[str] = []
    if rule.trigger.metric is not None:
        texts.append(rule.trigger.metric)
        watched = parse_path(texts[0], context.known.groups, context.known.statistics, None).group
        groups = (watched,) if watched else ()
    for written in sorted(rule.reads):
        whole, base, _ = split_name(written)
        statistic, _, variable = base.partition(".")
        if whole or rule.reads_of is not None or isinstance(rule.each, tuple):
            for group in groups:
                yield group, written, statistic, variable
    if rule.condition is not None:
        texts += sorted(rule.condition.metrics)
    for action in rule.actions:
        for each in action.flat():
            texts += sorted(each.metrics)
    for text in texts:
        metric = parse_path(text, context.known.groups, context.known.statistics, None)
        if metric.kind == "series" and metric.group:
            yield metric.group, text, metric.statistic, metric.variable


def _differing_result(context: Context, group: str, statistic: str, variable: str) -> str | None:
    """Return the formula of the result with this name if the jobs also print such a column.

    Return ``None`` if the statistic has the same value for the rows as for the results.
    """
    parts = _parts(context, group)
    texts = (part.result[variable].text for part in parts if variable in part.result)
    # The last row of a job can be its result.
    formula = next((one for one in texts if (statistic, one) != ("last", f"last.{variable}")), None)
    return formula if any(_prints(context, part, variable) for part in parts) else None


def _prints(context: Context, part: JobGroup, name: str) -> bool:
    """Return True if the jobs print this column.

    If an observer cannot list its columns, those count that the results use.
    """
    for observer, options in part.observe.items():
        columns = context.yields(context.registry.observers[observer], options)
        if columns is not None:
            if name in columns:
                return True
        elif any(
            split_name(each).path.partition(".")[2] == name
            for formula in part.result.values()
            for each in formula.names
        ):
            return True
    return False


def _parts(context: Context, group: str) -> tuple[JobGroup, ...]:
    known = context.known.groups.get(group)
    return () if known is None else (known, *known.more)


def _texts(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    """Yield the texts in a part of the file with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts((*path, key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts((*path, number), inner)
