"""Computes the tables of results (``results:``) from the done jobs, when a table is read.

The order in which jobs ended does not change a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.engine.done_jobs import DoneJobs, TableRow
from ensemble_core.engine.grouped_table import GroupedTable
from ensemble_core.engine.table_rows import ComputedTable, UngroupedTable
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.filters import filter_of, split_name
from ensemble_core.model.tables import MOST_PIVOT_VALUES, Table, table_column

#: How many tables, and slices of tables, the cache has at most.
_MOST_KEPT = 256


class TableCache:
    """Cache of the computed tables of a run."""

    def __init__(self) -> None:
        #: By the table's name and, if a table covers only a slice, the slice's parameters.
        self.work: dict[tuple[object, ...], ComputedTable] = {}
        #: Names of statistics, split into their parts.
        self.parsed: dict[str, tuple[bool, str, str, str, str]] = {}

    def keep(self, key: tuple[object, ...], work: ComputedTable) -> None:
        """Store a computed table. If the cache is full, drop the oldest one."""
        self.work.pop(key, None)
        self.work[key] = work
        if len(self.work) > _MOST_KEPT:
            del self.work[next(iter(self.work))]


class Tables(Mapping[str, "list[TableRow]"]):
    """The tables of a run by name. Each table is a list of rows that is computed when it is read.

    ``done`` has the done jobs by group. With ``slice_of``, the tables cover only the slice with
    these parameters. ``cache`` must only be used on the engine's thread.

    >>> Tables({}, {}, {}).get("best") is None
    True
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        done: Mapping[str, DoneJobs],
        statistics: Mapping[str, StatisticSpec],
        slice_of: Mapping[str, object] = NOTHING,
        cache: TableCache | None = None,
    ) -> None:
        self._tables = tables
        self._done = done
        self._statistics = statistics
        self._slice_of = slice_of
        self._cache = TableCache() if cache is None else cache

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __getitem__(self, name: str) -> list[TableRow]:
        return [*self._work(self._tables[name]).rows()]

    def passing(self, name: str, condition: str = "") -> list[TableRow]:
        """Return the rows of a table for which the condition is true (empty: all rows)."""
        rows = self[name]
        if not condition:
            return rows
        found = filter_of(condition)
        return [row for row in rows if found.passes(row)]

    def columns(self, name: str) -> tuple[str, ...]:
        """Return the columns of a table to display."""
        table = self._tables[name]
        # A parameter or result with this name takes precedence.
        reused = "reused" not in table.names and self._done[table.of].any_reused
        return table.shown(self.pivot_values(name), reused=reused)

    def pivot_values(self, name: str) -> list[Any]:
        """Return those values of a table's pivot that have columns, in ascending order."""
        work = self._work(self._tables[name])
        return [*work.values] if isinstance(work, GroupedTable) else []

    def of_group(self, group: str) -> list[TableRow]:
        """Return a row for each done job of a group, in the order of the jobs' indices.

        A row has the parameters, the values of the ``result``, and ``index``, ``duration``,
        ``attempt`` and ``replica``. If the done jobs of the group are not stored, the list is
        empty.
        """
        done = self._done.get(group)
        return [] if done is None else [*map(done.known, done.in_order(self._slice_of))]

    def detached(self) -> Tables:
        """Return a copy of the current tables for another thread."""
        done = {name: jobs.copy() for name, jobs in self._done.items()}
        return Tables(self._tables, done, self._statistics, self._slice_of)

    def statistic(self, name: str) -> float | None:
        """Return ``STAT.TABLE.COLUMN(CONDITION)``: a statistic over the values of a column.

        With the prefix ``all.``, the statistic covers the whole table. ``count`` is the number of
        numeric values. Return ``None`` if the statistic has no value.
        """
        parsed = self._cache.parsed.get(name)
        if parsed is None:
            whole, base, condition = split_name(name)
            found = table_column(base, self._tables)
            if found is None:
                return None
            parsed = self._cache.parsed[name] = whole, *found, condition
        whole, statistic, of, column, condition = parsed
        if whole and self._slice_of:
            return self.of_slice(NOTHING).statistic(name)
        return self._work(self._tables[of]).statistic(statistic, column, condition)

    def why_no_value(self, name: str) -> str:
        """Return the reason why ``STAT.TABLE.COLUMN(CONDITION)`` has no value, or an empty text."""
        whole, base, condition = split_name(name)
        found = table_column(base, self._tables)
        if found is None:
            return ""
        if whole and self._slice_of:
            return self.of_slice(NOTHING).why_no_value(name)
        _, of, column = found
        rows = self[of]
        if not rows:
            return f"the table {of!r} has no rows"
        passing = self.passing(of, condition)
        if not passing:
            return f"none of {len(rows)} rows passed {condition}"
        if all(row.get(column) is None for row in passing):
            return f"none of {len(passing)} rows has a value of {column}"
        return ""

    def warnings(self, name: str) -> list[str]:
        """Return what a reader of a table should know about it."""
        work = self._work(self._tables[name])
        partial = work.partial() if isinstance(work, GroupedTable) else ""
        found = [self.left_out(name)]
        if partial:
            found.append(f"the table {name!r}: {partial}; the other jobs have no such value")
        return [each for each in found if each]

    def left_out(self, name: str) -> str:
        """Return a warning if the pivot of a table has too many values, or an empty text."""
        table = self._tables[name]
        work = self._work(table)
        left = work.left_out if isinstance(work, GroupedTable) else 0
        if not left:
            return ""
        return (
            f"the table {name!r} has columns for the {MOST_PIVOT_VALUES} lowest values of "
            f"{table.pivot}; {left} more values have no column"
        )

    def of_slice(self, parameters: Mapping[str, object]) -> Tables:
        """Return the tables over the slice with these parameters. They share the cache."""
        return Tables(self._tables, self._done, self._statistics, parameters, self._cache)

    def _others(self, table: Table) -> dict[str, float]:
        """Return those statistics over other tables that a table uses."""
        found: dict[str, float] = {}
        for text in sorted(table.others):
            value = self.statistic(text)
            if value is not None:
                found[text] = value
        return found

    def _work(self, table: Table) -> ComputedTable:
        """Return the computed table, up to date with all done jobs."""
        key, done = (table.name, *self._slice_of.items()), self._done[table.of]
        work = self._cache.work.get(key)
        if work is None:
            slice_of = self._slice_of
            work = (
                GroupedTable(table, self._statistics)
                if table.by
                else UngroupedTable(
                    table, self._statistics, lambda: map(done.known, done.in_order(slice_of))
                )
            )
            self._cache.keep(key, work)
        others = self._others(table) if table.others else {}
        if work.seen != done.size(self._slice_of) or others != work.known:
            jobs, work.seen = done.since(self._slice_of, work.seen)
            work.add_jobs(done, jobs, others)
            self._cache.keep(key, work)
        return work
