"""Warns about rules that seem to mean rows, but use a name that is a ``result``.

In a statistic over several jobs, such a name covers the results of the jobs that are done, also if
the jobs print a column with this name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.metrics.store import ROWS, parse_path
from ensemble_core.model.filters import split_name
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.rules import BoundRule

#: Trigger events at which the results of the jobs are known. At all others, jobs may still run.
_AFTER_RESULTS = frozenset({"idle", "job-done", "job-lost", "end"})


def warn_of_rows_meant(context: Context, path: Path, rule: BoundRule) -> None:
    """Warn once about each name in the rule at this path that is both a column and a result, if the
    rule is considered while jobs run.
    """
    if rule.trigger.metric is None and _AFTER_RESULTS.issuperset(rule.trigger.events):
        return
    used: dict[str, dict[str, str]] = {}
    groups: dict[str, dict[str, None]] = {}
    for group, written, variable in _statistics(context, rule):
        parts = _parts(context, group)
        if any(variable in part.result for part in parts) and any(
            _prints(context, part, variable) for part in parts
        ):
            used.setdefault(variable, {}).setdefault(split_name(written).path, written)
            groups.setdefault(variable, {}).setdefault(group)
    for variable, names in used.items():
        first, written = next(iter(names.items()))
        leaf = next((place for place, text in _texts(path, rule.spec) if written in text), None)
        where = rule.location if leaf is None else context.document.at_text(leaf, written)
        whose = " and ".join(map(repr, groups[variable]))
        covers = "they cover" if len(names) > 1 else "it covers"
        rows = first.removesuffix(variable) + ROWS + variable
        context.warnings.append(
            (f"{where}: " if where else "")
            + f"rule {rule.id!r} uses {' and '.join(names)} while jobs run, but {variable!r} is a "
            f"result of {whose}: {covers} the results of done jobs, not the rows that jobs print. "
            f"If you mean the rows, write {rows}. If you mean the results, use a trigger such as "
            "job-done or idle, or give the result another name"
        )


def _statistics(context: Context, rule: BoundRule) -> Iterator[tuple[str, str, str]]:
    """Yield the statistics over several jobs in the rule: group, name as written, and variable."""
    groups = rule.groups or tuple(context.known.groups)
    texts: list[str] = []
    if rule.trigger.metric is not None:
        texts.append(rule.trigger.metric)
        watched = parse_path(texts[0], context.known.groups, context.known.statistics, None).group
        groups = (watched,) if watched else ()
    for written in sorted(rule.reads):
        whole, base, _ = split_name(written)
        if whole or rule.reads_of is not None or isinstance(rule.each, tuple):
            for group in groups:
                yield group, written, base.partition(".")[2]
    if rule.condition is not None:
        texts += sorted(rule.condition.metrics)
    for action in rule.actions:
        for each in action.flat():
            texts += sorted(each.metrics)
    for text in texts:
        metric = parse_path(text, context.known.groups, context.known.statistics, None)
        if metric.kind == "series" and metric.group:
            yield metric.group, text, metric.variable


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
            split_name(each).path.partition(".")[2].removeprefix(ROWS) == name
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
