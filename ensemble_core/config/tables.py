"""Tables of results: the semantic checks of the part ``results:``.

Called by the loader once the groups are known, before the rules, whose actions may name tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Path
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import USUAL_STATISTICS
from ensemble_core.model import conditions
from ensemble_core.model.compiler import refused
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import FUNCTIONS, Formula, expression
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.tables import OWN_NAMES, Table, table_column

__all__ = ["bind_tables", "check_table_column"]


def bind_tables(context: Context, given: object) -> dict[str, Table]:
    """The checked tables by name; what is wrong with the others was reported."""
    specs = {
        name: spec
        for name, spec in (given.items() if isinstance(given, dict) else ())
        if isinstance(spec, dict) and _may_be_called(context, ("results", name), name)
    }
    # Their names first: tables may speak of one another.
    for name, spec in specs.items():
        table = _shape(context, ("results", name), name, spec)
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


def _shape(context: Context, path: Path, name: str, spec: Mapping[str, Any]) -> Table | None:
    """The table without its expressions; ``None`` where its group is not known."""
    of = spec.get("of")
    if not context.intact((*path, "of")) or not context.group(of, (*path, "of")):
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
    order = str(spec.get("order") or "")
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
    return Table(
        name=name,
        of=group.name,
        by=tuple(map(str, by)),
        columns=dict.fromkeys(spec.get("columns") or {}, expression("0")),
        order=order.removeprefix("-") or None,
        descending=order.startswith("-"),
        top=top,
        percent=percent,
        plot=dict(spec.get("plot") or {}),
        names=tuple(dict.fromkeys((*group.names, *_results(group)))),
    )


def _results(group: JobGroup) -> Iterator[str]:
    for entry in (group, *group.more):
        yield from entry.result


def _bound(context: Context, path: Path, table: Table, spec: Mapping[str, Any]) -> Table:
    """The table with its expressions, as far as these are right."""
    reads: set[str] = set()
    others: set[str] = set()

    def checked(place: Path, parsed: Formula) -> bool:
        found = _spoken_of(context, place, table, parsed)
        if found is not None:
            others.update(name for name in found if table_column(name, context.known.tables))
            reads.update(found - others)
        return found is not None

    columns = dict(table.columns)  # a wrong one too has its name, for those who speak of it
    for name, text in (spec.get("columns") or {}).items():
        place = (*path, "columns", name)
        if context.intact(place):
            parsed = _parsed(context, place, lambda text=text: expression(str(text), texts=True))
            if parsed is not None and checked(place, parsed):
                columns[name] = parsed
    where: Condition | None = None
    place = (*path, "where")
    if "where" in spec and context.intact(place):
        where = _parsed(context, place, lambda: _where(spec["where"], table))
        if where is not None and not checked(place, where):
            where = None
    if table.order is not None and table.order not in table.row_names:
        context.unknown((*path, "order"), "column", table.order, table.row_names)
    _check_plot(context, (*path, "plot"), table)
    return Table(
        **{name: getattr(table, name) for name in table.__slots__}
        | {
            "columns": columns,
            "where": where,
            "reads": frozenset(reads),
            "others": frozenset(others),
        }
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
    context: Context, path: Path, table: Table, formula: Formula
) -> frozenset[str] | None:
    """The ``STAT.NAME`` and ``STAT.TABLE.COLUMN`` that a formula speaks of; ``None`` where one of
    its names is not known here, which is reported."""
    if formula.metrics:
        path_of = min(formula.metrics)
        error = refused(
            f"{formula.text!r} asks for the metric {path_of!r}, and a table is over its rows alone",
            "write STAT.TABLE.COLUMN for a statistic over another table, such as mean.best.E",
        )
        context.attach(error, path)
        return None
    known = {*table.by, "n"} if table.by else {*OWN_NAMES, *table.names}
    found: set[str] = set()
    right = True
    for name in sorted(formula.names - known):
        if table_column(name, context.known.tables):
            right &= check_table_column(context, path, name)
        elif table.by and _is_over_rows(table, name, context.known.statistics):
            right &= _check_order_free(context, path, name)
        else:
            _report_name(context, path, table, name, known)
            right = False
        found.add(name)
    return frozenset(found) if right else None


def _is_over_rows(table: Table, name: str, statistics: Collection[str]) -> bool:
    statistic, _, variable = name.partition(".")
    of_rows = statistic in statistics and variable in (*OWN_NAMES, *table.names)
    return of_rows or name == "count.done"


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


def check_table_column(context: Context, path: Path, name: str) -> bool:
    """True if a ``STAT.TABLE.COLUMN`` can have a value; reported if not."""
    found = table_column(name, context.known.tables)
    assert found is not None
    statistic, table, column = found
    where = context.document.at_text(path, name)
    known = (*context.known.statistics, "count")
    if statistic not in known:
        what = f"{name!r} can have no value: there is no statistic {statistic!r}"
        written = f"'NAME.{table}.{column}'"
        context.unknown(
            path, "statistic", statistic, known, what=what, written=written, where=where
        )
        return False
    names = context.known.tables[table].row_names
    if column not in names:
        what = f"{name!r} can have no value: the table {table!r} has no column {column!r}"
        written = f"'{statistic}.{table}.NAME'"
        context.unknown(path, "column", column, names, what=what, written=written, where=where)
        return False
    return _check_order_free(context, path, name)


def _report_name(
    context: Context, path: Path, table: Table, name: str, known: Collection[str]
) -> None:
    inner = (*OWN_NAMES, *table.names)
    if table.by and name in inner:
        hint = f"a row of this table is of many jobs: write for example mean.{name}"
    elif not table.by and name.partition(".")[2] in inner:
        hint = f"a row of this table is of one job: write {name.partition('.')[2]}, or give 'by'"
    elif name in table.columns:
        hint = "columns do not see one another: write out what it is"
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
        f"{name!r} is not known in the table {table.name!r}",
        hint=hint,
        code="no-such-column",
        where=context.document.at_text(path, name),
    )


def _check_plot(context: Context, path: Path, table: Table) -> None:
    """Check that only columns are drawn."""
    plot = table.plot
    y = plot.get("y") or []
    named: list[tuple[Path, object]] = [((*path, "x"), plot["x"])] if "x" in plot else []
    if isinstance(y, list):
        named += [((*path, "y", place), one) for place, one in enumerate(y)]
    else:
        named.append(((*path, "y"), y))
    for of, error in (plot.get("errors") or {}).items():
        named.append(((*path, "errors", of), error))
        if of not in table.row_names:
            named.append(((*path, "errors", of), of))
    for place, name in named:
        if context.intact(place) and name not in table.row_names:
            context.unknown(place, "column", str(name), table.row_names)


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
            found = table_column(text, tables)
            if found is not None:
                follow(found[1], (*way, name))
        over.add(name)

    for name in tables:
        follow(name, ())
