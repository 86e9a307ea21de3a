"""Checks names of statistics in rules: ``STAT.NAME`` (``max.stress``, ``count.done``), and columns
and rows of tables (``all.mean.curve.E``).

``STAT.NAME`` is a statistic over the values of one job or of several jobs. ``all.max.stress``
always covers the whole group. ``max.stress(T > 2)`` covers only the values that pass the filter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.errors import EnsembleError, closest, did_you_mean
from ensemble_core.metrics.series import Series
from ensemble_core.metrics.store import COUNTS, ROWS, USUAL_STATISTICS, is_gauge
from ensemble_core.model.filters import ALL, ATTEMPT_NAMES, filter_of, split_condition, split_name
from ensemble_core.model.tables import Table, table_column

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


def report_per_value(context: Context, path: Path, table: Table, name: str, hint: str) -> None:
    """Report a column that has several values in a row, where one is expected."""
    context.report(
        path,
        f"{name!r} has one value per {table.pivot}, expected one per row",
        hint=hint,
        code="bad-value",
        where=context.document.at_text(path, name),
    )


def check_column(
    context: Context, path: Path, table: Table, name: str, written: str = "'NAME'"
) -> bool:
    """Return False after reporting a column that the table does not have.

    Warn about a pivot value that is not in the file.
    """
    if name in table.row_names:
        return True
    base = table.per_value_of(name)
    if base:
        if table.values:
            value = name[len(base) + 1 : -1]
            known = ", ".join(map(str, table.values[:15]))
            context.warnings.append(f"{table.pivot} has no value {value}; known: {known}")
        return True
    if name in table.per_value:
        value = table.values[0] if table.values else "VALUE"
        quoted = f'"{value}"' if isinstance(value, str) and table.values else value
        better = written.strip("'").replace("NAME", f"{name}[{quoted}]")
        report_per_value(context, path, table, name, f"write {better}")
        return False
    context.unknown(path, "column", name, table.row_names, written=written)
    return False


def check_filter_names(
    context: Context,
    path: Path,
    base: str,
    names: Iterable[str],
    known: Collection[str],
    what: str,
) -> bool:
    """Check the ``names`` that the filter of ``base`` uses. If one is unknown, report it and return
    False.

    ``known`` has the names that a filter can use. ``what`` says what the filter selects, for
    messages: job or row.
    """
    right = True
    for name in names:
        if name in known:
            continue
        right = False
        head, dot, _ = name.removeprefix(ALL).partition(".")
        where = context.document.at_text(path, name)
        if dot and (head in context.known.statistics or head == "count"):
            context.report(
                path,
                f"a filter is checked for each {what}, so it cannot use the statistic {name!r}",
                hint=f"known: {', '.join(sorted(known)[:15])}",
                code="bad-condition",
                where=where,
            )
            continue
        said = f"unknown name {name!r} in the filter of {base!r}"
        context.unknown(path, "column", name, [*known], what=said, where=where)
    return right


def check_rows(context: Context, path: Path, text: str) -> Table | None:
    """Return the table that ``rows: all.TABLE(CONDITION)`` names.

    Return ``None`` after reporting an unknown table or an invalid filter.
    """
    try:
        name, condition = split_condition(text, "rows")
    except EnsembleError as error:
        context.attach(error, path)
        return None
    name = name.removeprefix(ALL)
    table = context.known.tables.get(name)
    if table is None:
        context.unknown(path, "table", name, [*context.known.tables, "job"])
    elif condition and not _check_table_filter(context, path, table, name, condition):
        return None
    return table


def _check_table_filter(
    context: Context, path: Path, table: Table, base: str, condition: str
) -> bool:
    """Return False after reporting an invalid filter of the rows of a table."""
    try:
        names = filter_of(condition).names
    except EnsembleError as error:
        context.attach(error, path)
        return False
    right = True
    unknown = []
    for name in names:
        if name in table.per_value or table.per_value_of(name):
            right &= check_column(context, path, table, name)
        elif name not in table.row_names:
            unknown.append(name)
    return check_filter_names(context, path, base, unknown, table.row_names, "row") and right


def check_order_free(context: Context, path: Path, name: str) -> bool:
    """Return False after reporting a statistic that depends on when its values arrived."""
    spec = context.known.statistics.get(name.partition(".")[0])
    if spec is None or not spec.timed:
        return True
    context.report(
        path,
        f"a table cannot use {name!r}, because it depends on when its values arrived",
        hint="use a statistic that does not depend on time, such as mean",
        code="bad-value",
        where=context.document.at_text(path, name),
    )
    return False


def check_table_name(context: Context, path: Path, name: str, each: Sequence[str] = ()) -> bool:
    """Return False after reporting an ``all.STAT.TABLE.COLUMN(CONDITION)`` that never has a value.

    ``each`` lists the parameters of the rule's slices, if any.
    """
    _, base, condition = split_name(name)
    found = table_column(base, context.known.tables)
    assert found is not None
    statistic, table, column = found
    where = context.document.at_text(path, base)
    known = (*context.known.statistics, "count")
    if statistic not in known:
        what = f"{name!r} can have no value: there is no statistic {statistic!r}"
        written = f"'NAME.{table}.{column}'"
        context.unknown(
            path, "statistic", statistic, known, what=what, written=written, where=where
        )
        return False
    of = context.known.tables[table]
    if column in of.per_value or of.per_value_of(column):
        if not check_column(context, path, of, column, f"'{statistic}.{table}.NAME'"):
            return False
    elif column not in of.row_names:
        what = f"{name!r} can have no value: the table {table!r} has no column {column!r}"
        written = f"'{statistic}.{table}.NAME'"
        names = of.row_names
        context.unknown(path, "column", column, names, what=what, written=written, where=where)
        return False
    if condition and not _check_table_filter(context, path, of, base, condition):
        return False
    if each and not _check_in_slice(context, path, name, each, of, statistic, column):
        return False
    return check_order_free(context, path, base)


def _check_in_slice(
    context: Context,
    path: Path,
    name: str,
    each: Sequence[str],
    table: Table,
    statistic: str,
    column: str,
) -> bool:
    """Return False after reporting a statistic that never has a value within a slice.

    Warn about a statistic over a parameter of the slice.
    """
    group = context.known.groups.get(table.of)
    lacks = [] if group is None else sorted({*each} - {*group.names})
    single = bool(table.by) and {*table.by} <= {*each} and _needs_two(context, statistic)
    if lacks or single:
        why = "within a slice ('each'), the table has too few rows"
        if lacks:
            why = f"'each' has the parameter {lacks[0]!r}, which jobs of {table.of!r} do not have"
        context.report(
            path,
            f"{name!r} can never have a value: {why}",
            hint=f"write {ALL}{name}",
            code="no-value",
            where=context.document.at_text(path, split_name(name).path),
        )
        return False
    own = column in each and column in table.by and column not in table.columns
    if own and statistic not in ("count", "sum"):
        context.warnings.append(
            f"within a slice, {name!r} is just {column}; write {ALL}{name} for the whole table"
        )
    return True


def _needs_two(context: Context, statistic: str) -> bool:
    """Return True if a statistic needs at least two values."""
    spec = context.known.statistics.get(statistic)
    if spec is None:
        return False
    series = Series([spec])
    series.record(1.0, 0.0)
    return series.scoped(statistic, 0.0) is None
