"""Checks the section ``results:`` and creates a :class:`Table` for each entry."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path
from ensemble_core.config.statistic_names import (
    check_column,
    check_filter_names,
    check_order_free,
    check_table_name,
    report_per_value,
)
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import ROWS, USUAL_STATISTICS
from ensemble_core.model import conditions
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import Formula, expression
from ensemble_core.model.filters import filter_of, split_condition, split_name
from ensemble_core.model.formula_compiler import FUNCTIONS, refused
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.sweep_values import GivenBy
from ensemble_core.model.tables import (
    MOST_PIVOT_VALUES,
    OWN_NAMES,
    Table,
    table_column,
    value_order,
)
from ensemble_core.quick_dataclass import replace


def bind_tables(context: Context, given: object) -> dict[str, Table]:
    """Return the checked tables by name, and report errors."""
    specs = {
        name: spec
        for name, spec in (given.items() if isinstance(given, dict) else ())
        if isinstance(spec, dict) and _check_name(context, ("results", name), name)
    }
    # Collect all names first, because tables can refer to each other.
    for name, spec in specs.items():
        table = _shape(context, ("results", name), name, spec, specs)
        if table is not None:
            context.known.tables[name] = table
            _warn_of_size(context, ("results", name), table)
    for name, table in [*context.known.tables.items()]:
        bound = _bind_expressions(context, ("results", name), table, specs[name])
        context.known.tables[name] = bound
    _check_circles(context)
    return dict(context.known.tables)


#: Measured memory of a row of a table with ``by``, without its cells, and of a cell, in GB.
_ROW, _CELL = 1.1e-6, 0.7e-6


def _warn_of_size(context: Context, path: Path, table: Table) -> None:
    """Warn about a table with ``by`` that can need more than 1 GB of memory."""
    group = context.known.groups[table.of]
    if not table.by or group is None or group.size * (_ROW + _CELL) <= 1:
        return
    rows = math.prod(len(_values(group, name, table.only)) for name in table.by)
    rows, cells = (min(most, group.size) for most in (rows, rows * max(1, len(table.values))))
    if (size := rows * _ROW + cells * _CELL) > 1:
        where = context.document.at((*path, "by"))
        context.warnings.append(
            f"{f'{where}: ' if where else ''}the table {table.name!r} can have "
            f"{rows:,} rows, which need at least {size:.1f} GB of memory; remove a "
            f"parameter from 'by', or select jobs with of: {table.of}(CONDITION)"
        )


#: Names that no table can have, each with its other meaning.
_TAKEN = {
    "job": "'rows: job' means the rows that a job printed",
    "rows": "mean.rows.E is a statistic of the rows that jobs printed",
}


def _check_name(context: Context, path: Path, name: str) -> bool:
    if name in _TAKEN:
        context.report(
            path,
            f"a table cannot be named {name!r}: {_TAKEN[name]}",
            hint="rename the table",
            code="bad-name",
            where=context.document.at_key(path),
        )
    return name not in _TAKEN and context.is_valid(path)


def _shape(
    context: Context,
    path: Path,
    name: str,
    spec: Mapping[str, Any],
    tables: Collection[str],
) -> Table | None:
    """Return the table without its expressions, or ``None`` if its group is unknown.

    ``tables`` lists the names of all tables.
    """
    if not context.is_valid((*path, "of")):
        return None
    try:
        of, only = split_condition(str(spec.get("of")), "of")
    except EnsembleError as error:
        context.attach(error, (*path, "of"))
        return None
    if not context.group(of, (*path, "of")):
        return None
    group = context.known.groups[str(of)]
    if group is None:
        return None
    by = spec.get("by") or []
    by = by if isinstance(by, list) else [by]
    for place, parameter in enumerate(by):
        at = (*path, "by", place) if isinstance(spec.get("by"), list) else (*path, "by")
        if parameter not in group.names:
            context.unknown(at, "parameter", str(parameter), group.names)
    order = _column_name(spec.get("order") or "")
    top: Any = spec.get("top") if context.is_valid((*path, "top")) else None
    percent: float | None = None
    if isinstance(top, str):
        percent, top = float(top.removesuffix("%")), None
        if not 0 < percent <= 100:
            context.report(
                (*path, "top"),
                f"'top' is {spec['top']!r}, it must be more than 0% and at most 100%",
                code="out-of-range",
            )
    names = tuple(dict.fromkeys((*group.names, *_results(group))))
    if only:
        inner = {*OWN_NAMES, *names}
        check_filter_names(context, (*path, "of"), of, filter_of(only).names, inner, "job")
        context.warn_of_kinds((*path, "of"), filter_of(only).condition, group.name)
    pivot, values = _pivot(context, path, group, by, spec, only)
    return Table(
        name=name,
        of=group.name,
        only=only,
        pivot=pivot,
        values=values,
        per_value=_per_value(context, spec, pivot, tables) if pivot else frozenset(),
        by=tuple(map(str, by)),
        columns=dict.fromkeys(spec.get("columns") or {}, expression("0")),
        order=order.removeprefix("-") or None,
        descending=order.startswith("-"),
        top=top,
        percent=percent,
        plot=_plot(spec.get("plot") or {}),
        names=names,
    )


def _pivot(
    context: Context,
    path: Path,
    group: JobGroup,
    by: Collection[object],
    spec: Mapping[str, Any],
    only: str,
) -> tuple[str, tuple[Any, ...]]:
    """Return the ``pivot`` parameter, and its values in the file that pass the filter.

    Both are empty if the table has no pivot.
    """
    place = (*path, "pivot")
    if "pivot" not in spec or not context.is_valid(place):
        return "", ()
    pivot = str(spec["pivot"])
    if pivot not in group.names:
        context.unknown(place, "parameter", pivot, group.names)
    elif not by:
        context.report(
            place,
            "'pivot' cannot be used without 'by'",
            hint="add 'by: [PARAMETER]' to get one row per value of that parameter",
            code="bad-value",
        )
    elif pivot in by:
        context.report(
            place,
            f"{pivot!r} is in both 'by' and 'pivot'",
            hint="remove it from one of them",
            code="bad-value",
        )
    else:
        values = _values(group, pivot, only)
        if len(values) <= MOST_PIVOT_VALUES:
            return pivot, values
        context.report(
            place,
            f"{pivot!r} has {len(values)} values; 'pivot' allows at most {MOST_PIVOT_VALUES}",
            hint=f"select fewer with 'of: {group.name}({pivot} < …)', or move {pivot} to 'by'",
            code="out-of-range",
        )
    return "", ()


def _values(group: JobGroup, name: str, only: str) -> tuple[Any, ...]:
    """Return the values of a parameter that can pass the filter, in ascending order.

    Return an empty tuple if some values are not in the file.
    """
    found: dict[Any, None] = {}
    for entry in (group, *group.more):
        values = entry.parameters.get(name, entry.points.get(name, ()))
        if any(value is None or isinstance(value, GivenBy) for value in values):
            return ()
        found.update(dict.fromkeys(values))
    if only:
        verdict = filter_of(only).condition.verdict
        found = {
            each: None for each in found if verdict(None, {name: each}, _no_metric) is not False
        }
    return tuple(sorted(found, key=value_order))


def _no_metric(path: str) -> None:
    return None


def _per_value(
    context: Context, spec: Mapping[str, Any], pivot: str, tables: Collection[str]
) -> frozenset[str]:
    """Return the names of the per-value columns, which have a value for each value of the pivot.

    The formula of a per-value column uses a statistic of jobs, ``n``, ``reused``, the pivot, or
    another per-value column without an index.
    """
    found: set[str] = set()
    columns = spec.get("columns")
    for name, text in columns.items() if isinstance(columns, dict) else ():
        try:
            names = expression(str(text), texts=True).names
        except EnsembleError:
            continue  # the error is reported later
        by = {*(spec["by"] if isinstance(spec.get("by"), list) else [spec.get("by")])}
        for each in names - by:
            head, dot, _ = each.partition(".")
            of_jobs = dot and (head in context.known.statistics or head == "count")
            over_table = table_column(split_name(each).path, dict.fromkeys(tables))
            if each in (pivot, "n", "reused", *found) or (of_jobs and not over_table):
                found.add(name)
    return frozenset(found)


def _column_name(text: object) -> str:
    """Return the name of a column as in rows: ``U["hex"]`` becomes ``U[hex]``."""
    name, bracket, _ = str(text).partition("[")
    try:
        (found,) = expression(str(text).removeprefix("-")).names if bracket else (name,)
    except (EnsembleError, ValueError):
        return str(text)
    return "-" + found if bracket and name.startswith("-") else found


def _plot(spec: Mapping[str, Any]) -> dict[str, Any]:
    plot = dict(spec)
    for key, value in spec.items():
        if isinstance(value, list):
            plot[key] = [_column_name(each) for each in value]
        elif isinstance(value, dict):
            plot[key] = {_column_name(of): _column_name(one) for of, one in value.items()}
        elif isinstance(value, str):
            plot[key] = _column_name(value)
    return plot


def _results(group: JobGroup) -> Iterator[str]:
    for entry in (group, *group.more):
        yield from entry.result


def _bind_expressions(context: Context, path: Path, table: Table, spec: Mapping[str, Any]) -> Table:
    """Return the table with its valid expressions, and report the invalid ones."""
    reads: set[str] = set()
    others: set[str] = set()

    def checked(place: Path, parsed: Formula, above: Collection[str], column: str = "") -> bool:
        found = _formula_references(context, place, table, parsed, above, column)
        if found is not None:
            tables = context.known.tables
            others.update(name for name in found if table_column(split_name(name).path, tables))
            reads.update(found - others)
        return found is not None

    columns = dict(table.columns)  # includes invalid columns, so that references to them are valid
    above: list[str] = []
    for name, text in (spec.get("columns") or {}).items():
        place, right = (*path, "columns", name), False
        if context.is_valid(place):
            parsed = _try_parse(context, place, lambda text=text: expression(str(text), texts=True))
            if parsed is not None and checked(place, parsed, above, name):
                columns[name], right = parsed, True
        if not right or text != name:  # in a column ``x: x``, the second x is a value of the row
            above.append(name)
    where: Condition | None = None
    place = (*path, "where")
    if "where" in spec and context.is_valid(place):
        where = _try_parse(context, place, lambda: _parse_where(spec["where"], table))
        if where is not None and not checked(place, where, above):
            where = None
        if where is not None:
            context.warn_of_kinds(place, where, table.of, table.columns)
    if table.order is not None:
        check_column(context, (*path, "order"), table, table.order)
    _check_plot(context, (*path, "plot"), table)
    return replace(
        table, columns=columns, where=where, reads=frozenset(reads), others=frozenset(others)
    )


def _parse_where(text: str, table: Table) -> Condition:
    parsed = conditions.parse(text, has_value=False, key="where")
    conditions.check_nan(parsed, table.row_names)
    return parsed


def _try_parse(context: Context, path: Path, parse: Any) -> Any:
    try:
        return parse()
    except EnsembleError as error:
        context.attach(error, path)
        return None


def _formula_references(
    context: Context,
    path: Path,
    table: Table,
    formula: Formula,
    above: Collection[str],
    column: str,
) -> frozenset[str] | None:
    """Return the names ``STAT.NAME`` and ``STAT.TABLE.COLUMN`` in a formula.

    Return ``None`` after reporting an unknown name. ``column`` is the column with this formula, or
    empty for ``where``. ``above`` lists the columns that the formula may use.
    """
    if formula.metrics:
        path_of = min(formula.metrics)
        error = refused(
            f"{formula.text!r} uses the metric {path_of!r}, but a table can use only its rows",
            "for a statistic over another table write STAT.TABLE.COLUMN, such as mean.best.E",
        )
        context.attach(error, path)
        return None
    row = {*table.own_names}
    if table.pivot and column:
        row.add(table.pivot)
    found: set[str] = set()
    right = True
    for name in sorted(formula.names):
        base = table.per_value_of(name)
        if name in row:
            _warn_of_ambiguous_name(context, table, name, above, column)
        elif name in above or base in above:
            if not column or base:
                right &= check_column(context, path, table, name)
        elif table_column(split_name(name).path, context.known.tables):
            right &= check_table_name(context, path, name)
            found.add(name)
        elif table.by and _reads_rows(table, name, context.known.statistics):
            right &= _check_row_statistic(context, path, table, name, column)
            found.add(name)
        else:
            _report_name(context, path, table, name, row | {*above}, formula, column)
            right = False
    return frozenset(found) if right else None


def _warn_of_ambiguous_name(
    context: Context, table: Table, name: str, above: Collection[str], column: str
) -> None:
    """Warn about a name in a formula that is both a column and a parameter or value of the row."""
    if name in above:
        where = f"the column {column!r}" if column else "'where'"
        what = "parameter" if name in (*table.by, table.pivot) else "value"
        context.warnings.append(
            f"{name!r} in the table {table.name!r} is both a column and the row's {what}: {where} "
            f"uses the row's {what}; rename the column"
        )


def _reads_rows(table: Table, name: str, statistics: Collection[str]) -> bool:
    whole, base, _ = split_name(name)
    statistic, _, variable = base.partition(".")
    of_rows = statistic in statistics and variable in (*OWN_NAMES, *table.names)
    return not whole and (of_rows or base == "count.done")


def _check_row_statistic(
    context: Context, path: Path, table: Table, name: str, column: str
) -> bool:
    """Return False after reporting a statistic over a row's jobs that never has a value."""
    _, base, condition = split_name(name)
    if condition:
        try:
            names = filter_of(condition).names
        except EnsembleError as error:
            context.attach(error, path)
            return False
        inner = {*OWN_NAMES, *table.names}
        if not check_filter_names(context, path, base, names, inner, "job"):
            return False
    if table.pivot and not column:
        report_per_value(
            context, path, table, name, "define a column NAME with it, and use NAME[VALUE]"
        )
        return False
    return check_order_free(context, path, base)


def _report_name(
    context: Context,
    path: Path,
    table: Table,
    name: str,
    known: Collection[str],
    formula: Formula,
    column: str,
) -> None:
    what = f"unknown name {name!r} in the table {table.name!r}"
    inner = (*OWN_NAMES, *table.names)
    below = name if name in table.columns else name.partition("[")[0]
    if column and below in table.columns and below == column:
        what = f"the column {column!r} refers to itself"
        hint = "use names of the row, or columns above it"
    elif column and below in table.columns and below not in known:
        what, hint = f"{column!r} uses {below!r}, which is below it", f"move {below!r} above it"
    elif name.endswith("]") and table.by and not table.pivot and below in table.columns:
        hint = f"the column {below!r} has one value: write {below}, or add 'pivot:' to the table"
    elif not column and table.by and name in inner:
        what += ": its rows cover many jobs"
        condition = formula.text if formula.names <= {*inner} else "CONDITION"
        hint = f"write of: {table.of}({condition})"
    elif table.by and name in inner:
        hint = f"the table's rows cover many jobs: use a statistic such as mean.{name}"
    elif (parts := split_name(name).path.split(".", 1))[-1].startswith(ROWS):
        statistic, printed = parts[0], parts[-1].removeprefix(ROWS)
        free = printed if printed not in table.names else f"{printed}_{statistic}"
        used = f"mean.{free}" if table.by else free
        hint = (
            f"a table covers the results of jobs, not their rows: add 'result: "
            f"{{{free}: {statistic}.{printed}}}' to the job group {table.of!r}, and write {used}"
        )
    elif (count := split_name(name)).path.split(".")[0] == "count" and count.path.count(".") < 2:
        some = count.condition
        hint = f"write count.done({some})" if some else "write n, the number of the row's jobs"
        hint = hint if table.by else f"each row of the table is one job: add 'by', and {hint}"
    elif not table.by and name.partition(".")[2] in inner:
        hint = f"each row of the table is one job: write {name.partition('.')[2]}, or add 'by'"
    else:
        statistics = context.known.statistics
        head, _, variable = name.partition(".")
        variable = variable or name
        if table.by and head in USUAL_STATISTICS:
            head = USUAL_STATISTICS[head]
        offered = [*known, *FUNCTIONS]
        offered += [f"{each}.{one}" for each in statistics for one in inner if table.by]
        offered += [
            f"{head}.{other}.{column}"
            for other, there in context.known.tables.items()
            if other != table.name
            for column in there.row_names
        ]
        near = nearest(name, offered, 0.6)
        if head in statistics:  # the statistic exists, so the rest is misspelt
            start = f"{head}."
            rests = [each.removeprefix(start) for each in offered if each.startswith(start)]
            rest = nearest(variable, rests, 0.6)
            near = rest and start + rest
        listed = [*sorted(known)]
        if table.by:
            of_rows = head if head in statistics else "mean"
            listed += [f"{of_rows}.{one}" for one in table.names if one not in table.by]
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(listed)}"
        observed = context.variables(table.of)
        if not near and (observed is None or variable in observed):
            hint = (
                f"tables cannot use columns of output directly: add 'result: "
                f"{{{variable}: last.{variable}}}' to the job group {table.of!r}"
            )
    context.report(
        path,
        what,
        hint=hint,
        code="no-such-column",
        where=context.document.at_text(path, name),
    )


def _check_plot(context: Context, path: Path, table: Table) -> None:
    """Check that ``plot`` names only columns. (A per-value column gives a curve for each value.)"""
    plot = table.plot
    y = plot.get("y") or []
    drawn = {*table.row_names, *table.per_value}
    if "x" in plot and context.is_valid((*path, "x")):
        check_column(context, (*path, "x"), table, str(plot["x"]))
    named: list[tuple[Path, object]] = []
    if isinstance(y, list):
        named += [((*path, "y", place), one) for place, one in enumerate(y)]
    else:
        named.append(((*path, "y"), y))
    for of, error in (plot.get("errors") or {}).items():
        named += [((*path, "errors", of), error), ((*path, "errors", of), of)]
    for place, name in named:
        if context.is_valid(place) and name not in drawn:
            check_column(context, place, table, str(name))


def _check_circles(context: Context) -> None:
    """Report tables that refer to each other in a circle."""
    tables = context.known.tables
    over: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = (*way[way.index(name) :], name)
            path: Path = ("results", circle[0])
            context.report(
                path,
                f"tables refer to each other in a circle: {' -> '.join(circle)}",
                hint="remove one of the references",
                code="circle",
                where=context.document.at_key(path),
            )
            over.update(circle)
            return
        if name in over:
            return
        for text in sorted(tables[name].others):
            found = table_column(split_name(text).path, tables)
            if found is not None:
                follow(found[1], (*way, name))
        over.add(name)

    for name in tables:
        follow(name, ())
