"""Computes the rows of one table of results, and statistics over the rows.

When further jobs are done, only the rows that they change are computed again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from ensemble_core.engine.done_jobs import DoneJob, DoneJobs, TableRow
from ensemble_core.metrics.series import OrderFree, Series, StatisticSpec
from ensemble_core.model.filters import Filter, filter_of
from ensemble_core.model.tables import NOWHERE, Table, value_order

#: The largest finite float.
_LARGEST = math.nextafter(math.inf, 0.0)


class ComputedTable(ABC):
    """The rows of a table over all jobs so far, and statistics over these rows."""

    def __init__(self, table: Table, statistics: Mapping[str, StatisticSpec]) -> None:
        self.table = table
        #: Position in the done jobs, for ``DoneJobs.since``.
        self.seen = 0
        #: Statistics over other tables that this table uses, with their values.
        self.known: Mapping[str, Any] = {}
        self._statistics = statistics
        self._only = filter_of(table.only) if table.only else None
        self._cut = table.top is not None or table.percent is not None
        self._chosen: list[TableRow] | None = None
        #: Cache of statistics, cleared when a row changes.
        self._answers: dict[tuple[str, str, str], float | None] = {}
        self._free: dict[str, bool] = {}

    @abstractmethod
    def add_jobs(self, done: DoneJobs, jobs: Iterable[DoneJob], known: Mapping[str, Any]) -> None:
        """Add these jobs of ``done``.

        ``known`` has the current values of statistics over other tables.
        """

    @abstractmethod
    def _in_order(self) -> list[TableRow]:
        """Return the rows for which ``where`` is true, in the default order."""

    @abstractmethod
    def _values(self, column: str, condition: str, statistic: str) -> AppendOnlyValues | Values:
        """Return the numbers in a column, over the rows that pass the filter, for this
        statistic.
        """

    def _changed(self) -> None:
        self._chosen = None
        self._answers.clear()

    def _passing(self, jobs: Iterable[TableRow]) -> Iterable[TableRow]:
        return jobs if self._only is None else filter(self._only.passes, jobs)

    def rows(self) -> list[TableRow]:
        """Return the rows of the table in order."""
        if self._chosen is None:
            self._chosen = _chosen(self.table, self._in_order())
        return self._chosen

    def statistic(self, statistic: str, column: str, condition: str) -> float | None:
        """Return a statistic over the numbers in a column, over the rows that pass the filter."""
        key = statistic, column, condition
        if key not in self._answers:
            self._answers[key] = self._statistic(statistic, column, condition)
        return self._answers[key]

    def _statistic(self, statistic: str, column: str, condition: str) -> float | None:
        table = self.table
        if not self._cut and (table.order is None or self._order_free(statistic)):
            return self._values(column, condition, statistic).statistic(statistic)
        values = AppendOnlyValues(self._statistics, (statistic,))
        asked = filtered_column(column, condition)
        for position, row in enumerate(self.rows()):
            values.put(position, asked.value(row))
        return values.statistic(statistic)

    def _order_free(self, statistic: str) -> bool:
        if statistic not in self._free:
            spec = self._statistics.get(statistic)
            self._free[statistic] = spec is None or spec.order_free(grows=True) is not None
        return self._free[statistic]


class UngroupedTable(ComputedTable):
    """A table without ``by``: one row for each job.

    Only statistics are stored; rows are computed when they are read.
    """

    def __init__(
        self,
        table: Table,
        statistics: Mapping[str, StatisticSpec],
        jobs: Callable[[], Iterable[TableRow]],
    ) -> None:
        super().__init__(table, statistics)
        self._jobs = jobs
        #: The numbers of each column and filter, with their statistics.
        self._kept: dict[
            tuple[str, str], tuple[tuple[str, ...], FilteredColumn, AppendOnlyValues]
        ] = {}

    def add_jobs(self, done: DoneJobs, jobs: Iterable[DoneJob], known: Mapping[str, Any]) -> None:
        if known != self.known:
            self.known = known
            self._kept.clear()
            self._changed()
        for job in self._passing(map(done.known, jobs)):
            self._changed()
            if self._kept:
                row = self._row(job)
                for _, column, values in self._kept.values():
                    values.put(job["index"], column.value(row))

    def _row(self, job: TableRow) -> TableRow | None:
        """Return the row of a job, or ``None`` if ``where`` is not true for it."""
        table = self.table
        seen: dict[str, Any] = {**self.known, **job}
        columns: TableRow = {}
        for name, formula in table.columns.items():
            columns[name] = formula.result(seen, no_metric)
            seen.setdefault(name, columns[name])
        if table.where is not None and not table.where.holds(None, seen, no_metric):
            return None
        return {**job, **columns}

    def _in_order(self) -> list[TableRow]:
        rows = map(self._row, self._passing(self._jobs()))
        return [row for row in rows if row is not None]

    def _values(self, column: str, condition: str, statistic: str) -> AppendOnlyValues:
        key = column, condition
        names, asked, values = self._kept.get(key, ((), filtered_column(*key), None))
        if values is None or statistic not in names:
            names = (*names, statistic)
            values = AppendOnlyValues(self._statistics, names)
            for job in self._passing(self._jobs()):
                values.put(job["index"], asked.value(self._row(job)))
            self._kept[key] = names, asked, values
        return values


def _chosen(table: Table, rows: list[TableRow]) -> list[TableRow]:
    """Return the rows sorted by ``order``, limited by ``top`` or ``percent``."""
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

    # Sorting is stable even in reverse: equal rows stay in the default order.
    ordered = sorted((row for row in rows if not missing(row)), key=key, reverse=table.descending)
    if table.top is not None or table.percent is not None:
        return ordered[:most]
    return ordered + [row for row in rows if missing(row)]


def no_metric(path: str) -> None:
    """Return ``None`` for every metric, because tables cannot use metrics."""


class FilteredColumn(NamedTuple):
    """A column, restricted to the rows that pass a filter."""

    name: str
    passes: Filter | None

    def value(self, row: TableRow | None) -> object:
        """Return the column's value in a row, or ``None`` if the row does not pass the filter."""
        value = None if row is None else row.get(self.name)
        if value is None or self.passes is None or self.passes.passes(row or {}):
            return value
        return None


def filtered_column(name: str, condition: str) -> FilteredColumn:
    """Return a column, restricted to the rows for which the condition is true (empty: all)."""
    return FilteredColumn(name, filter_of(condition) if condition else None)


class AppendOnlyValues:
    """A collection of numbers that only grows, with statistics over the numbers.

    Objects of this class are small, because a table may have millions of them.
    """

    __slots__ = ("_adders", "_names", "_numbers", "_reducers", "_specs", "count")

    def __init__(self, specs: Mapping[str, StatisticSpec], names: tuple[str, ...]) -> None:
        self._specs = specs
        self._names = names
        self.count = 0
        self._reducers: tuple[OrderFree | None, ...] = tuple(
            specs[name].order_free(grows=True) if name in specs else None for name in names
        )
        #: The reducers that get each number. The others share the sums of one of these.
        adders: list[OrderFree] = []
        for reducer in self._reducers:
            share = getattr(reducer, "share", None)
            if reducer is not None and not (share and any(map(share, adders))):
                adders.append(reducer)
        self._adders = tuple(adders)
        ordered = zip(names, self._reducers, strict=True)
        keep = any(reducer is None and name in specs for name, reducer in ordered)
        #: The numbers by position, or ``None`` if no statistic needs them.
        self._numbers: dict[Any, float] | None = {} if keep else None

    def put(self, position: Any, value: object) -> None:
        """Add the value at a position, if it is a number."""
        if not is_number(value):
            return
        self.count += 1
        for reducer in self._adders:
            reducer.add(value)
        if self._numbers is not None:
            self._numbers[position] = value

    def statistic(self, name: str) -> float | None:
        """Return a statistic over the numbers, or ``None`` if it has no value."""
        if name == "count":
            return self.count
        reducer = self._reducers[self._names.index(name)]
        if reducer is not None:
            return reducer.get()
        return _in_order(self._specs[name], self._numbers) if self._numbers else None

    def get_all(self, own_names: tuple[str, ...], found: dict[str, Any]) -> None:
        """Add the statistics ``names`` to ``found``, under the names ``own_names``."""
        for number, reducer in enumerate(self._reducers):
            found[own_names[number]] = (
                self.statistic(self._names[number]) if reducer is None else reducer.get()
            )


class Values:
    """A collection of numbers that can be changed and removed, with statistics over the numbers."""

    __slots__ = ("_found", "_numbers", "_reducers", "_specs")

    def __init__(self, specs: Mapping[str, StatisticSpec]) -> None:
        self._specs = specs
        self._numbers: dict[Any, float] = {}
        #: Statistics that do not depend on the order. All others are computed when they are read.
        self._reducers: dict[str, OrderFree] = {}
        #: Cache of results. It is cleared when a number changes.
        self._found: dict[str, float | None] = {}

    def put(self, position: Any, value: object) -> None:
        """Set the value at a position. If it is not a number, remove the previous value."""
        old = self._numbers.get(position)
        if value is old:
            return
        number = value if is_number(value) else None
        if number is old:
            return
        for reducer in self._reducers.values():
            if old is not None:
                reducer.remove(old)
            if number is not None:
                reducer.add(number)
        if number is not None:
            self._numbers[position] = number
        else:
            del self._numbers[position]
        self._found.clear()

    def statistic(self, name: str) -> float | None:
        """Return a statistic over the numbers, or ``None`` if it has no value."""
        if name == "count":
            return len(self._numbers)
        if name not in self._found:
            self._found[name] = self._compute(name)
        return self._found[name]

    def _compute(self, name: str) -> float | None:
        if name not in self._specs:
            return None
        if name not in self._reducers:
            reducer = self._specs[name].order_free(grows=False)
            if reducer is None:
                return _in_order(self._specs[name], self._numbers)
            for number in self._numbers.values():
                reducer.add(number)
            self._reducers[name] = reducer
        return self._reducers[name].get()


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number that fits into a float."""
    kind = type(value)
    return (kind is float or kind is int) and -_LARGEST <= value <= _LARGEST  # type: ignore[operator]


def _in_order(spec: StatisticSpec, numbers: Mapping[Any, float]) -> float | None:
    """Return a statistic over the numbers, in the order of their positions."""
    series = Series([spec])
    series.extend([numbers[position] for position in sorted(numbers)])
    return series.scoped(spec.name, 0.0)
