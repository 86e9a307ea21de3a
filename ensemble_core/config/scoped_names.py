"""Checks names of the form ``STAT.NAME`` (``max.stress``, ``count.done``) in rules.

Such a name is a statistic over the values of one job or of several jobs. ``all.max.stress`` always
covers the whole group. ``max.stress(T > 2)`` covers only the values that pass the filter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.table_references import check_filter_names, check_table_name
from ensemble_core.errors import EnsembleError, closest, did_you_mean
from ensemble_core.metrics.store import COUNTS, ROWS, USUAL_STATISTICS, is_gauge
from ensemble_core.model.filters import ATTEMPT_NAMES, filter_of, split_name
from ensemble_core.model.tables import table_column

#: Groups that ``STAT.NAME`` may cover (``None``: any group). Empty if such names are not allowed.
Over = tuple[str | None, ...]


def scoped_names(
    context: Context,
    path: Path,
    names: Collection[str],
    known: Collection[str] | None,
    over: Over,
    each: Sequence[str] = (),  # the parameters in the rule's ``each``
    *,
    of_job: bool = False,
) -> frozenset[str] | None:
    """Return the ``names`` of the form ``STAT.NAME``, or ``None`` after reporting an invalid one.

    Names of the event's fields (``known``) are left out, even if they contain a dot. ``of_job``:
    names without ``all.`` cover one job, so the name of a column means the job's rows.
    """
    found: set[str] = set()
    before = len(context.errors)
    for name in sorted(names):
        whole, base, condition = split_name(name)
        statistic, dot, variable = base.partition(".")
        if not dot or (known is not None and name in known):
            continue
        if is_gauge(name, context.known.groups, context.known.rules):
            if context.metric(name, path) is not None:
                found.add(name)
            continue
        if table_column(base, context.known.tables):
            check_table_name(context, path, name, () if whole else each)
            found.add(name)
            continue
        if statistic != "count" and statistic not in context.known.statistics:
            _check_statistic(context, path, base, known, over)
            continue
        found.add(name)
        if whole and (len(over) != 1 or over[0] is None):
            _report(
                context,
                path,
                name,
                "the trigger names no single group",
                _group_hint(context, path, base),
            )
        elif not over:
            _report(
                context,
                path,
                name,
                "the trigger has no job and names no single group",
                _group_hint(context, path, base),
            )
        elif statistic == "count":
            _check_count(context, path, base, variable)
        else:
            _check_variable(context, path, base, over)
            if whole or not of_job:
                _check_unreadable(context, path, base, over)
        if condition and over:
            _check_filter(context, path, base, condition, over, of_job=of_job and not whole)
    return None if len(context.errors) > before else frozenset(found)


def _check_filter(
    context: Context, path: Path, base: str, condition: str, over: Over, *, of_job: bool
) -> None:
    """Report an invalid filter, or names in it that jobs or rows do not have."""
    try:
        parsed = filter_of(condition)
        names = parsed.names
    except EnsembleError as error:
        context.attach(error, path)
        return
    statistic, _, variable = base.partition(".")
    known: set[str] = {*ATTEMPT_NAMES}
    for group in over:
        context.warn_of_kinds(path, parsed.condition, group)
        known |= context.parameters(group)
        if statistic == "count":
            continue
        results, columns = context.results(group), context.variables(group)
        printed = (columns is None or variable in columns) and of_job
        if variable == "duration" or (variable in results and not printed):
            known |= {*results, "duration"}
            lacking = [name for name in names if name not in known and name in (columns or ())]
            if variable in (columns or ()) and lacking:
                _report(
                    context,
                    path,
                    f"{base}({condition})",
                    f"{variable!r} is a result, but {lacking[0]!r} is a column of rows",
                    f"if you mean the rows, write {statistic}.{ROWS}{variable}({condition})",
                )
                return
        elif columns is None:
            return
        else:
            known |= columns
    if statistic == "count":
        known.discard("attempt")
    check_filter_names(context, path, base, names, known, "job")


def _group_hint(context: Context, path: Path, name: str) -> str:
    """Return a hint on how to say which group a ``STAT.NAME`` covers."""
    groups = context.known.groups
    statistic, _, variable = name.partition(".")
    counts = statistic == "count"
    inner = variable.rpartition(".")
    if inner[0] in groups and inner[2] in COUNTS:  # the group is named, but not in metric()
        return f"write metric({name!r})"
    known = {each: COUNTS if counts else context.scoped_variables(each) for each in groups}
    able = [each for each, names in known.items() if names is None or variable in names]
    joint = "." if counts else "-"
    if not able:
        for each, names in known.items():
            near = closest(variable, names or (), 0.5)
            if near:
                return f"did you mean metric('{statistic}.{each}{joint}{near}')?"
        what = f"there is no count {variable!r}" if counts else f"no job group has {variable!r}"
        return f"{what}; 'ensemble metrics' lists the metrics of a run"
    group = able[0] if len(groups) == 1 else "GROUP"
    written = f"use metric('{statistic}.{group}{joint}{variable}')"
    kind = context.document.get(path[:2])["trigger"] if path[0] == "rules" else ""
    trigger = context.registry.triggers.get(kind)
    if trigger is None or trigger.name_means not in ("group", "groups"):
        return f"{written} for a whole group"
    return f"give the trigger a group, 'name: {group}', or {written}"


def _check_statistic(
    context: Context, path: Path, name: str, known: Collection[str] | None, over: Over
) -> None:
    """Report a misspelt statistic, or one that names of this form cannot use."""
    statistic, _, variable = name.partition(".")
    unfit = context.known.unfit.get(statistic)
    if known is None or not over or (unfit is None and not _is_possible(context, variable, over)):
        return  # a column, or an unknown name that is reported elsewhere
    usual = USUAL_STATISTICS.get(statistic.lower())
    near = closest(statistic, [*context.known.statistics, "count"], 0.5)
    if unfit is not None:
        hint = unfit.hint and unfit.hint.replace("NAME", variable)
    elif usual or near:
        hint = f"did you mean '{usual or near}.{variable}'?"
    else:
        return
    why = unfit.what if unfit is not None else f"there is no statistic {statistic!r}"
    _report(context, path, name, why, hint)


def _is_possible(context: Context, variable: str, over: Over) -> bool:
    known = [context.scoped_variables(group) for group in over]
    return variable in COUNTS or any(names is None or variable in names for names in known)


def _check_count(context: Context, path: Path, name: str, counter: str) -> None:
    if counter in COUNTS:
        return
    group, dot, inner = counter.rpartition(".")
    if dot and inner in COUNTS and group in context.known.groups:
        hint = f"write metric({name!r}) for the whole group {group!r}"
    elif dot and (near := closest(group, context.known.groups, 0.5)):
        count = closest(inner, COUNTS, 0.5) or "done"
        hint = f"did you mean metric('count.{near}.{count}')?"
    else:
        listed, form = f"counts are {', '.join(COUNTS)}", "did you mean 'count.{}'?"
        hint = did_you_mean(counter, COUNTS, listed, cutoff=0.5, form=form)
    _report(context, path, name, f"there is no count {counter!r}", hint)


def _check_variable(context: Context, path: Path, name: str, over: Over) -> None:
    statistic, _, variable = name.partition(".")
    if variable in context.known.groups:  # mean.sim-E is parsed as a difference
        why = f"{variable!r} is a job group"
        hint = f"write metric('{name}-…') for the whole group; rename it if you mean a column"
        _report(context, path, name, why, hint)
        return
    variables: set[str] = set()
    rows, column = False, variable
    for group in over:
        rows, column = context.split_rows(group, variable)
        known = context.variables(group) if rows else context.scoped_variables(group)
        if known is None or column in known:
            return
        variables |= known
        # Mention the option that would make an observer yield the column.
        if context.left_out(column, group, path):
            return
    listed = f"known: {', '.join(sorted(variables)[:15])}"
    form = f"did you mean '{statistic}.{ROWS if rows else ''}{{}}'?"
    hint = did_you_mean(column, variables, listed, cutoff=0.5, form=form)
    whose = "any job group" if over == (None,) else " or ".join(map(repr, over))
    what = repr(column) if rows else f"or result {column!r}"
    _report(context, path, name, f"{whose} has no column {what}", hint)


def _check_unreadable(context: Context, path: Path, name: str, over: Over) -> None:
    """Report a statistic of unreadable values of a result, which always has a value."""
    statistic, _, variable = name.partition(".")
    spec = context.known.statistics.get(statistic)
    if spec is None or spec.accepts != "unreadable":
        return
    for group in over:
        if variable in context.results(group):
            why = f"{variable!r} is a result, and results are never unreadable"
            _report(context, path, name, why, f"write {statistic}.{ROWS}{variable}")
            return


def _report(context: Context, path: Path, name: str, why: str, hint: str | None) -> None:
    context.report(
        path,
        f"{name!r} can never have a value: {why}",
        hint=hint,
        code="no-such-metric",
        where=context.document.at_text(path, name),
    )
