"""Work on tables with ``by``: the rows of one table, kept up to date as jobs end.

Only rows of combinations with new jobs are worked out again, each over its jobs in the order of
their indices: they are the same in whatever order these ended. Kept by the cache of ``table_rows``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ensemble_core.engine.done_jobs import TableRow
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.store import split_filter
from ensemble_core.model.expressions import Expression, index_label
from ensemble_core.model.filters import filter_of
from ensemble_core.model.tables import MOST_PIVOT_VALUES, NOWHERE, Table, value_order

__all__ = ["TableWork", "chosen", "is_number", "no_metric", "reduced"]

#: Where a row stands: the sort keys of its ``by`` values.
Place = tuple[tuple[int, Any], ...]

#: With more new rows than these, all are sorted again.
_FEW = 64


def no_metric(path: str) -> None:
    """Stand for the metrics, of which tables have none."""


def is_number(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def reduced(
    known: Mapping[str, StatisticSpec], statistics: Iterable[str], values: Iterable[object]
) -> dict[str, float]:
    """Statistics over the numbers among these values, in their order; those that have a value."""
    numbers: list[float] = [value for value in values if is_number(value)]  # type: ignore[misc]
    return _over_numbers(known, statistics, numbers)


def _over_numbers(
    known: Mapping[str, StatisticSpec], statistics: Iterable[str], numbers: Sequence[float]
) -> dict[str, float]:
    found: dict[str, float] = {}
    names = sorted(statistics)
    series = Series([known[name] for name in names if name != "count"])
    series.extend(numbers)
    for name in names:
        value = len(numbers) if name == "count" else series.scoped(name, 0.0)
        if value is not None:
            found[name] = value
    return found


def chosen(table: Table, rows: list[TableRow]) -> list[TableRow]:
    """These rows by the table's ``order``, as many as it has."""
    most = len(rows) if table.top is None else table.top
    if table.percent is not None:
        most = math.floor(len(rows) * table.percent / 100 + 1e-9)
    if table.order is None:
        return rows[:most]
    name = table.order

    def missing(row: TableRow) -> bool:
        return value_order(row.get(name))[0] == NOWHERE

    def key(row: TableRow) -> tuple[int, Any]:
        return value_order(row[name])

    # Sorts are stable, reversed ones too: equals stay in the default order.
    ordered = sorted((row for row in rows if not missing(row)), key=key, reverse=table.descending)
    if table.top is not None or table.percent is not None:
        return ordered[:most]
    return ordered + [row for row in rows if missing(row)]


class _Cell:
    """The jobs of one row, or of one row and one pivot value: their indices, and the values that
    statistics are over, both in the order of the indices."""

    __slots__ = ("found", "indices", "values")

    def __init__(self, variables: Iterable[str]) -> None:
        self.indices: list[int] = []
        self.values: dict[str, list[object]] = {name: [] for name in variables}
        #: The statistics, until another job comes.
        self.found: TableRow | None = None

    def add(self, index: int, known: Mapping[str, Any]) -> None:
        """Take one more job."""
        place = bisect_left(self.indices, index)
        self.indices.insert(place, index)
        for name, values in self.values.items():
            variable, condition = split_filter(name)
            passes = not condition or filter_of(condition).passes(known)
            # count.done counts jobs, of which each is 1.
            value = known.get(variable, 1 if variable == "done" else None)
            values.insert(place, value if passes else None)
        self.found = None


class TableWork:
    """The rows of one table with ``by``, over the jobs that it has taken."""

    def __init__(self, table: Table, statistics: Mapping[str, StatisticSpec]) -> None:
        self.table = table
        #: How many jobs were taken, as ``DoneJobs.since`` counts them.
        self.seen = 0
        self._statistics = statistics
        self._only = filter_of(table.only) if table.only else None
        #: The statistics over each variable, with its filter.
        self._asked: dict[str, set[str]] = {}
        for name in sorted(table.reads):
            statistic, _, variable = name.partition(".")
            self._asked.setdefault(variable, set()).add(statistic)
        #: By row and pivot value (``None`` without pivot).
        self._cells: dict[Place, dict[Any, _Cell]] = {}
        #: The ``by`` values of each row, as the job of the lowest index has them.
        self._named: dict[Place, tuple[int, tuple[Any, ...]]] = {}
        self._rows: dict[Place, TableRow | None] = {}
        self._order: list[Place] = []
        self._dirty: dict[Place, None] = {}
        self._known: Mapping[str, Any] = {}
        self._pivots: dict[Any, None] = dict.fromkeys(table.values)
        #: The pivot values that have columns, the least first.
        self.values: list[Any] = list(table.values)
        #: By column and filter, the number that each row has there, in the order of rows.
        self._columns: dict[tuple[str, str], list[Any]] = {}
        self._answers: dict[tuple[str, str, str], float | None] = {}
        self._chosen: list[TableRow] | None = None

    def __len__(self) -> int:
        return len(self._cells)

    # -- jobs come in --------------------------------------------------------------------------

    def take(self, jobs: Iterable[Mapping[str, Any]], known: Mapping[str, Any]) -> None:
        """Add jobs, each as its values by name. ``known`` are the statistics over other tables
        now."""
        for job in jobs:
            if self._only is None or self._only.passes(job):
                self._add(job)
        if known != self._known:
            self._known = known
            self._dirty.update(dict.fromkeys(self._cells))
        if self._dirty:
            self._work()

    def _add(self, job: Mapping[str, Any]) -> None:
        table, index = self.table, job["index"]
        values = tuple([job.get(name) for name in table.by])
        place = tuple([value_order(value) for value in values])
        cells = self._cells.get(place)
        if cells is None:
            cells = self._cells[place] = {}
        if place not in self._named or index < self._named[place][0]:
            self._named[place] = index, values
        pivot = job.get(table.pivot) if table.pivot else None
        if pivot not in cells:
            cells[pivot] = _Cell(self._asked)
        cells[pivot].add(index, job)
        self._dirty[place] = None
        if table.pivot and pivot is not None and pivot not in self._pivots:
            self._pivots[pivot] = None
            self.values = sorted(self._pivots, key=value_order)[:MOST_PIVOT_VALUES]
            self._dirty.update(dict.fromkeys(self._cells))

    @property
    def left_out(self) -> int:
        """How many pivot values have no columns, because there are too many."""
        return len(self._pivots) - len(self.values)

    # -- rows are worked out -------------------------------------------------------------------

    def _work(self) -> None:
        dirty, self._dirty = self._dirty, {}
        self._chosen = None
        self._answers.clear()
        new = [place for place in dirty if place not in self._rows]
        if len(new) > _FEW:
            self._columns.clear()
            self._order = sorted(self._cells)
        for place in dirty:
            row = self._row(place)
            at = bisect_left(self._order, place)
            if place not in self._rows and len(new) <= _FEW:
                self._order.insert(at, place)
                for numbers in self._columns.values():
                    numbers.insert(at, None)
            self._rows[place] = row
            for (column, condition), numbers in self._columns.items():
                numbers[at] = _number(row, column, condition)

    def _row(self, place: Place) -> TableRow | None:
        """The row that stands there; ``None`` if ``where`` does not hold."""
        table, cells = self.table, self._cells[place]
        _, named = self._named[place]
        row: TableRow = {"n": sum(len(cell.indices) for cell in cells.values())}
        row.update(zip(table.by, named, strict=True))
        seen = {**self._known, **row}
        if not table.pivot:
            seen = {**self._known, **self._over(cells[None]), **row}
        columns: TableRow = {}
        for name, formula in table.columns.items():
            if name in table.per_value:
                self._per_value(name, formula, cells, seen, columns)
            else:
                columns[name] = formula.result(seen, no_metric)
                seen.setdefault(name, columns[name])
        if table.where is not None and not table.where.holds(None, seen, no_metric):
            return None
        row.update(columns)
        return row

    def _per_value(
        self,
        name: str,
        formula: Expression,
        cells: Mapping[Any, _Cell],
        seen: TableRow,
        columns: TableRow,
    ) -> None:
        """Work a per-value column out, for each value of the pivot."""
        above = [each for each in self.table.per_value if each in formula.names]
        for value in self.values:
            label = index_label(value)
            inner = {**seen, "n": 0, "count.done": 0}
            if value in cells:
                inner.update(self._over(cells[value]))
                inner["n"] = len(cells[value].indices)
            for each in above:
                inner.setdefault(each, columns.get(f"{each}[{label}]"))
            inner[self.table.pivot] = value
            inner.update((each, seen[each]) for each in self.table.by)
            found = columns[f"{name}[{label}]"] = formula.result(inner, no_metric)
            seen.setdefault(f"{name}[{label}]", found)

    def _over(self, cell: _Cell) -> TableRow:
        """The statistics over the jobs of a cell, by name."""
        if cell.found is None:
            cell.found = {}
            for variable, statistics in self._asked.items():
                values = cell.values[variable]
                found = reduced(self._statistics, statistics, values)
                cell.found.update((f"{name}.{variable}", value) for name, value in found.items())
        return cell.found

    # -- rows are asked for --------------------------------------------------------------------

    def rows(self) -> list[TableRow]:
        """The rows of the table, in their order."""
        if self._chosen is None:
            rows = (self._rows[place] for place in self._order)
            self._chosen = chosen(self.table, [row for row in rows if row is not None])
        return self._chosen

    def statistic(self, statistic: str, column: str, condition: str) -> float | None:
        """A statistic over the numbers in a column of the rows that pass."""
        key = statistic, column, condition
        if key not in self._answers:
            numbers = [each for each in self._numbers(column, condition) if each is not None]
            found = _over_numbers(self._statistics, (statistic,), numbers)
            self._answers[key] = found.get(statistic)
        return self._answers[key]

    def _numbers(self, column: str, condition: str) -> Sequence[Any]:
        table = self.table
        if table.order is not None or table.top is not None or table.percent is not None:
            return [_number(row, column, condition) for row in self.rows()]
        numbers = self._columns.get((column, condition))
        if numbers is None:
            numbers = [_number(self._rows[place], column, condition) for place in self._order]
            self._columns[column, condition] = numbers
        return numbers


def _number(row: TableRow | None, column: str, condition: str) -> Any:
    """The number that a row has in a column; ``None`` if it has none, or does not pass."""
    value = None if row is None else row.get(column)
    if value is None or not is_number(value):
        return None
    assert row is not None
    return value if not condition or filter_of(condition).passes(row) else None
