"""Tables of results: the semantic checks of the part ``results:``.

Called by the loader once the groups are known, before the rules, whose actions may name tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import Series
from ensemble_core.metrics.store import USUAL_STATISTICS
from ensemble_core.model import conditions
from ensemble_core.model.compiler import refused
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import FUNCTIONS, Formula, expression
from ensemble_core.model.filters import ALL, filter_of, filtered, spoken
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.sweeps import GivenBy
from ensemble_core.model.tables import (
    MOST_PIVOT_VALUES,
    OWN_NAMES,
    Table,
    table_column,
    value_order,
)

__all__ = ["bind_tables", "check_filter_names", "check_rows", "check_table_name"]


def bind_tables(context: Context, given: object) -> dict[str, Table]:
    """The checked tables by name; what is wrong with the others was reported."""
    specs = {
        name: spec
        for name, spec in (given.items() if isinstance(given, dict) else ())
        if isinstance(spec, dict) and _may_be_called(context, ("results", name), name)
    }
    # Their names first: tables may speak of one another.
    for name, spec in specs.items():
        table = _shape(context, ("results", name), name, spec, specs)
        if table is not None:
            context.known.tables[name] = table
    for name, table in [*context.known.tables.items()]:
        bound = _bound(context, ("results", name), table, specs[name])
        context.known.tables[name] = bound
    _check_circles(context)
    return dict(context.known.tables)


def _may_be_called(context: Context, path: Path, name: str) -> bool:
    if name == "job":
        context.report(
            path,
            "a table cannot be called 'job': 'rows: job' means the rows that a job printed",
            hint="give the table another name",
            code="bad-name",
            where=context.document.at_key(path),
        )
    return name != "job" and context.intact(path)


def _shape(
    context: Context,
    path: Path,
    name: str,
    spec: Mapping[str, Any],
    tables: Collection[str],
) -> Table | None:
    """The table without its expressions; ``None`` where its group is not known. ``tables`` are the
    names of all."""
    if not context.intact((*path, "of")):
        return None
    try:
        of, only = filtered(str(spec.get("of")), "of")
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
    top: Any = spec.get("top") if context.intact((*path, "top")) else None
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
    """The parameter of ``pivot`` and those of its values in the file that pass the filter. Both are
    empty if the table has no pivot."""
    place = (*path, "pivot")
    if "pivot" not in spec or not context.intact(place):
        return "", ()
    pivot = str(spec["pivot"])
    if pivot not in group.names:
        context.unknown(place, "parameter", pivot, group.names)
    elif not by:
        context.report(
            place,
            f"'pivot' needs 'by': each row has a column for each {pivot}",
            hint="write by: [PARAMETER], of which each row has one value",
            code="bad-value",
        )
    elif pivot in by:
        context.report(
            place,
            f"{pivot!r} is in 'by' and 'pivot'",
            hint="leave it out of one of them",
            code="bad-value",
        )
    else:
        values = _values(group, pivot, only)
        if len(values) <= MOST_PIVOT_VALUES:
            return pivot, values
        context.report(
            place,
            f"{pivot!r} has {len(values)} values, and 'pivot' makes at most {MOST_PIVOT_VALUES} "
            "columns of one",
            hint=f"choose some with of: {group.name}({pivot} < …), or write {pivot} in 'by'",
            code="out-of-range",
        )
    return "", ()


def _values(group: JobGroup, name: str, only: str) -> tuple[Any, ...]:
    """The values that the file gives a parameter, the least first, as far as these may pass the
    filter; empty if it does not say them all."""
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
    """The columns that have one value for each value of the pivot: those that name a statistic of
    jobs, ``n``, ``reused``, the pivot or another such column without an index."""
    found: set[str] = set()
    columns = spec.get("columns")
    for name, text in columns.items() if isinstance(columns, dict) else ():
        try:
            names = expression(str(text), texts=True).names
        except EnsembleError:
            continue  # told of when the column is bound
        by = {*(spec["by"] if isinstance(spec.get("by"), list) else [spec.get("by")])}
        for each in names - by:
            head, dot, _ = each.partition(".")
            of_jobs = dot and (head in context.known.statistics or head == "count")
            over_table = table_column(spoken(each).path, dict.fromkeys(tables))
            if each in (pivot, "n", "reused", *found) or (of_jobs and not over_table):
                found.add(name)
    return frozenset(found)


def _column_name(text: object) -> str:
    """The name of a column, as rows have it: ``U["hex"]`` is ``U[hex]``."""
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


def _bound(context: Context, path: Path, table: Table, spec: Mapping[str, Any]) -> Table:
    """The table with its expressions, as far as these are right."""
    reads: set[str] = set()
    others: set[str] = set()

    def checked(place: Path, parsed: Formula, above: Collection[str], column: str = "") -> bool:
        found = _spoken_of(context, place, table, parsed, above, column)
        if found is not None:
            tables = context.known.tables
            others.update(name for name in found if table_column(spoken(name).path, tables))
            reads.update(found - others)
        return found is not None

    columns = dict(table.columns)  # a wrong one too has its name, for those who speak of it
    above: list[str] = []
    for name, text in (spec.get("columns") or {}).items():
        place, right = (*path, "columns", name), False
        if context.intact(place):
            parsed = _parsed(context, place, lambda text=text: expression(str(text), texts=True))
            if parsed is not None and checked(place, parsed, above, name):
                columns[name], right = parsed, True
        if not right or text != name:  # a column ``x: x`` is the row's own x
            above.append(name)
    where: Condition | None = None
    place = (*path, "where")
    if "where" in spec and context.intact(place):
        where = _parsed(context, place, lambda: _where(spec["where"], table))
        if where is not None and not checked(place, where, above):
            where = None
    if table.order is not None:
        _check_column(context, (*path, "order"), table, table.order)
    _check_plot(context, (*path, "plot"), table)
    return replace(
        table, columns=columns, where=where, reads=frozenset(reads), others=frozenset(others)
    )


def _where(text: str, table: Table) -> Condition:
    parsed = conditions.parse(text, has_value=False, key="where")
    conditions.check_nan(parsed, table.row_names)
    return parsed


def _parsed(context: Context, path: Path, parse: Any) -> Any:
    try:
        return parse()
    except EnsembleError as error:
        context.attach(error, path)
        return None


def _spoken_of(
    context: Context,
    path: Path,
    table: Table,
    formula: Formula,
    above: Collection[str],
    column: str,
) -> frozenset[str] | None:
    """The ``STAT.NAME`` and ``STAT.TABLE.COLUMN`` that the formula of ``column`` (of ``where``:
    empty) speaks of; ``None`` where one of its names is not known here, which is reported.
    ``above`` are the columns that it may use."""
    if formula.metrics:
        path_of = min(formula.metrics)
        error = refused(
            f"{formula.text!r} asks for the metric {path_of!r}, and a table is over its rows alone",
            "write STAT.TABLE.COLUMN for a statistic over another table, such as mean.best.E",
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
            _warn_of_both(context, table, name, above, column)
        elif name in above or base in above:
            if not column or base:
                right &= _check_column(context, path, table, name)
        elif table_column(spoken(name).path, context.known.tables):
            right &= check_table_name(context, path, name)
            found.add(name)
        elif table.by and _is_over_rows(table, name, context.known.statistics):
            right &= _check_over_rows(context, path, table, name, column)
            found.add(name)
        else:
            _report_name(context, path, table, name, row | {*above}, formula, column)
            right = False
    return frozenset(found) if right else None


def _warn_of_both(
    context: Context, table: Table, name: str, above: Collection[str], column: str
) -> None:
    """Warn of a name that the row and a column have."""
    if name in above:
        where = f"the column {column!r}" if column else "'where'"
        what = "parameter" if name in (*table.by, table.pivot) else "value"
        context.warnings.append(
            f"the table {table.name!r} has a column {name!r}, and so has its row: in {where} the "
            f"row's {what} is meant; give the column another name"
        )


def _is_over_rows(table: Table, name: str, statistics: Collection[str]) -> bool:
    whole, base, _ = spoken(name)
    statistic, _, variable = base.partition(".")
    of_rows = statistic in statistics and variable in (*OWN_NAMES, *table.names)
    return not whole and (of_rows or base == "count.done")


def _check_over_rows(context: Context, path: Path, table: Table, name: str, column: str) -> bool:
    """False if a statistic over the jobs of a row can have no value here, which is reported."""
    _, base, condition = spoken(name)
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
        _report_per_value(context, path, table, name, "make it a column, and write NAME[VALUE]")
        return False
    return _check_order_free(context, path, base)


def _report_per_value(context: Context, path: Path, table: Table, name: str, hint: str) -> None:
    context.report(
        path,
        f"{name!r} has one value per {table.pivot}",
        hint=hint,
        code="bad-value",
        where=context.document.at_text(path, name),
    )


def _check_column(
    context: Context, path: Path, table: Table, name: str, written: str = "'NAME'"
) -> bool:
    """False if a table's rows have no such column, which is reported. Of a pivot value that the
    file does not have there is a warning."""
    if name in table.row_names:
        return True
    base = table.per_value_of(name)
    if base:
        if table.values:
            value = name[len(base) + 1 : -1]
            known = ", ".join(map(str, table.values[:15]))
            context.warnings.append(f"{table.pivot} has no value {value}: {known}")
        return True
    if name in table.per_value:
        value = table.values[0] if table.values else "VALUE"
        quoted = f'"{value}"' if isinstance(value, str) and table.values else value
        better = written.strip("'").replace("NAME", f"{name}[{quoted}]")
        _report_per_value(context, path, table, name, f"write {better}")
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
    """False if the filter of ``base`` speaks of what one job (or row: ``what``) does not have,
    which is reported."""
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
                f"a filter sees one {what}: {name!r} is a statistic",
                hint=f"known are {', '.join(sorted(known)[:15])}",
                code="bad-condition",
                where=where,
            )
            continue
        said = f"{name!r} is not known in the filter of {base!r}"
        context.unknown(path, "column", name, [*known], what=said, where=where)
    return right


def check_rows(context: Context, path: Path, text: str) -> Table | None:
    """The table of ``rows: all.TABLE(CONDITION)``. ``None`` if there is no such table or if the
    filter is wrong; a wrong filter is reported."""
    try:
        name, condition = filtered(text, "rows")
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
    """False if the filter of a table's rows is wrong, which is reported."""
    try:
        names = filter_of(condition).names
    except EnsembleError as error:
        context.attach(error, path)
        return False
    right = True
    unknown = []
    for name in names:
        if name in table.per_value or table.per_value_of(name):
            right &= _check_column(context, path, table, name)
        elif name not in table.row_names:
            unknown.append(name)
    return check_filter_names(context, path, base, unknown, table.row_names, "row") and right


def _check_order_free(context: Context, path: Path, name: str) -> bool:
    """False if a statistic depends on the time at which values came, which is reported."""
    spec = context.known.statistics.get(name.partition(".")[0])
    if spec is None or not spec.timed:
        return True
    context.report(
        path,
        f"{name!r} depends on when values came, and a table is the same whenever they did",
        hint="take a statistic without a time, such as mean",
        code="bad-value",
        where=context.document.at_text(path, name),
    )
    return False


def check_table_name(context: Context, path: Path, name: str, each: Sequence[str] = ()) -> bool:
    """False if an ``all.STAT.TABLE.COLUMN(CONDITION)`` can have no value, which is reported;
    ``each`` are the parameters of a slice that it is in, empty in none."""
    _, base, condition = spoken(name)
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
        if not _check_column(context, path, of, column, f"'{statistic}.{table}.NAME'"):
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
    return _check_order_free(context, path, base)


def _check_in_slice(
    context: Context,
    path: Path,
    name: str,
    each: Sequence[str],
    table: Table,
    statistic: str,
    column: str,
) -> bool:
    """False if a statistic over a table can never have a value in one slice, which is reported.
    Warn of one that is a parameter of the slice itself."""
    group = context.known.groups.get(table.of)
    lacks = group is not None and not {*each} <= {*group.names}
    single = bool(table.by) and {*table.by} <= {*each} and _needs_two(context, statistic)
    if lacks or single:
        context.report(
            path,
            f"{name!r} can never have a value in a slice",
            hint=f"write {ALL}{name}",
            code="no-value",
            where=context.document.at_text(path, spoken(name).path),
        )
        return False
    own = column in each and column in table.by and column not in table.columns
    if own and statistic not in ("count", "sum"):
        context.warnings.append(
            f"{name!r} is {column} or nothing in a slice; write {ALL}{name} for the whole table"
        )
    return True


def _needs_two(context: Context, statistic: str) -> bool:
    """True if a statistic has no value of a single number."""
    spec = context.known.statistics.get(statistic)
    if spec is None:
        return False
    series = Series([spec])
    series.record(1.0, 0.0)
    return series.scoped(statistic, 0.0) is None


def _report_name(
    context: Context,
    path: Path,
    table: Table,
    name: str,
    known: Collection[str],
    formula: Formula,
    column: str,
) -> None:
    what = f"{name!r} is not known in the table {table.name!r}"
    inner = (*OWN_NAMES, *table.names)
    below = name if name in table.columns else name.partition("[")[0]
    if column and below in table.columns and below == column:
        what = f"the column {column!r} speaks of itself"
        hint = "say what it is worked out of: names of the row, and columns above it"
    elif column and below in table.columns and below not in known:
        what, hint = f"{below!r} is defined below {column!r}", f"move {below!r} above it"
    elif name.endswith("]") and table.by and not table.pivot and below in table.columns:
        hint = f"the column {below!r} has one value: write {below}, or give the table 'pivot:'"
    elif not column and table.by and name in inner:
        what += ": a row is of many jobs"
        condition = formula.text if formula.names <= {*inner} else "CONDITION"
        hint = f"write of: {table.of}({condition})"
    elif table.by and name in inner:
        hint = f"a row of this table is of many jobs: write for example mean.{name}"
    elif not table.by and name.partition(".")[2] in inner:
        hint = f"a row of this table is of one job: write {name.partition('.')[2]}, or give 'by'"
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
        if head in statistics:  # which is right: what follows it is what was misspelt
            start = f"{head}."
            rests = [each.removeprefix(start) for each in offered if each.startswith(start)]
            rest = nearest(variable, rests, 0.6)
            near = rest and start + rest
        listed = [*sorted(known)]
        if table.by:
            of_rows = head if head in statistics else "mean"
            listed += [f"{of_rows}.{one}" for one in table.names if one not in table.by]
        hint = f"did you mean {near!r}?" if near else f"known are {', '.join(listed)}"
        observed = context.variables(table.of)
        if not near and (observed is None or variable in observed):
            hint = (
                f"of what jobs print a table knows their results: give the job group "
                f"{table.of!r} 'result: {{{variable}: last.{variable}}}'"
            )
    context.report(
        path,
        what,
        hint=hint,
        code="no-such-column",
        where=context.document.at_text(path, name),
    )


def _check_plot(context: Context, path: Path, table: Table) -> None:
    """Check that only columns are drawn. A per-value column is drawn as one curve per value."""
    plot = table.plot
    y = plot.get("y") or []
    drawn = {*table.row_names, *table.per_value}
    if "x" in plot and context.intact((*path, "x")):
        _check_column(context, (*path, "x"), table, str(plot["x"]))
    named: list[tuple[Path, object]] = []
    if isinstance(y, list):
        named += [((*path, "y", place), one) for place, one in enumerate(y)]
    else:
        named.append(((*path, "y"), y))
    for of, error in (plot.get("errors") or {}).items():
        named += [((*path, "errors", of), error), ((*path, "errors", of), of)]
    for place, name in named:
        if context.intact(place) and name not in drawn:
            _check_column(context, place, table, str(name))


def _check_circles(context: Context) -> None:
    """No table is worked out of itself."""
    tables = context.known.tables
    over: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = (*way[way.index(name) :], name)
            path: Path = ("results", circle[0])
            context.report(
                path,
                f"tables refer to one another in a circle: {' -> '.join(circle)}",
                hint="let one of them do without the other",
                code="circle",
                where=context.document.at_key(path),
            )
            over.update(circle)
            return
        if name in over:
            return
        for text in sorted(tables[name].others):
            found = table_column(spoken(text).path, tables)
            if found is not None:
                follow(found[1], (*way, name))
        over.add(name)

    for name in tables:
        follow(name, ())
