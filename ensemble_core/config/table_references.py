"""Checks references to tables: columns, filters of rows, and names such as ``all.mean.curve.E``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import Series
from ensemble_core.model.filters import ALL, filter_of, split_condition, split_name
from ensemble_core.model.tables import Table, table_column


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
