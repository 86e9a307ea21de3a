"""Tables of results, worked out of the jobs that are done when somebody asks.

A table is worked out in the order of the jobs' indices, whatever order they ended in, so it is the
same after any number of stops and resumes. What was worked out is kept in a :class:`TableCache`:
of a table in which no job came since, an answer costs a look-up. Asked by the engine, by functions
on their threads and by the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.engine.done_jobs import DoneJobs, TableRow
from ensemble_core.engine.table_work import GroupedWork, TableWork, work_on
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.filters import filter_of, spoken
from ensemble_core.model.tables import MOST_PIVOT_VALUES, Table, table_column

__all__ = ["TableCache", "Tables"]

#: The work on so many tables and slices of tables is kept.
_MOST_KEPT = 256


class TableCache:
    """The work on the tables of a run, by table and slice."""

    def __init__(self) -> None:
        self.work: dict[tuple[object, ...], TableWork] = {}
        #: The parts of each name that a statistic was asked by.
        self.asked: dict[str, tuple[bool, str, str, str, str]] = {}

    def keep(self, key: tuple[object, ...], work: TableWork) -> None:
        """Keep this work, in the place of the oldest where there is much."""
        self.work.pop(key, None)
        self.work[key] = work
        if len(self.work) > _MOST_KEPT:
            del self.work[next(iter(self.work))]


class Tables(Mapping[str, "list[TableRow]"]):
    """The tables of a run by name, each worked out when it is asked for: a list of its rows.

    ``done`` are the jobs by group; ``slice_of`` are the parameters of a slice, of which the tables
    are then. ``cache`` is the run's, which only the engine's thread may use.

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
        """The rows of a table for which a condition holds; if it is empty, all."""
        rows = self[name]
        if not condition:
            return rows
        found = filter_of(condition)
        return [row for row in rows if found.passes(row)]

    def columns(self, name: str) -> tuple[str, ...]:
        """The names of a table's columns as people see it."""
        table = self._tables[name]
        # A parameter of this name is shown as such.
        reused = "reused" not in table.names and self._done[table.of].any_reused
        return table.shown(self.pivot_values(name), reused=reused)

    def pivot_values(self, name: str) -> list[Any]:
        """The values of a table's pivot that have columns, the least first."""
        work = self._work(self._tables[name])
        return [*work.values] if isinstance(work, GroupedWork) else []

    def of_group(self, group: str) -> list[TableRow]:
        """A row for each job of a group that is done, in the order of their indices: its
        parameters, the values of its ``result``, ``index``, ``duration``, ``attempt`` and
        ``replica``. None of groups of which nothing is kept."""
        done = self._done.get(group)
        return [] if done is None else [*map(done.known, done.in_order(self._slice_of))]

    def detached(self) -> Tables:
        """The tables as they are now, for another thread."""
        done = {name: jobs.copy() for name, jobs in self._done.items()}
        return Tables(self._tables, done, self._statistics, self._slice_of)

    def statistic(self, name: str) -> float | None:
        """``STAT.TABLE.COLUMN(CONDITION)``: a statistic over the values of a column. With ``all.``
        before it, over the whole table. ``None`` without values; ``count`` counts the numbers."""
        asked = self._cache.asked.get(name)
        if asked is None:
            whole, base, condition = spoken(name)
            found = table_column(base, self._tables)
            if found is None:
                return None
            asked = self._cache.asked[name] = whole, *found, condition
        whole, statistic, of, column, condition = asked
        if whole and self._slice_of:
            return self._whole().statistic(name)
        return self._work(self._tables[of]).statistic(statistic, column, condition)

    def why_none(self, name: str) -> str:
        """Why a ``STAT.TABLE.COLUMN(CONDITION)`` has no value, in words; empty if that is not
        known."""
        whole, base, condition = spoken(name)
        found = table_column(base, self._tables)
        if found is None:
            return ""
        if whole and self._slice_of:
            return self._whole().why_none(name)
        _, of, column = found
        rows = self[of]
        if not rows:
            return f"the table {of!r} has no rows"
        passing = self.passing(of, condition)
        if not passing:
            return f"no row of {len(rows)} passed {condition}"
        if all(row.get(column) is None for row in passing):
            return f"no row of {len(passing)} has a value of {column}"
        return ""

    def left_out(self, name: str) -> str:
        """A warning if a table's pivot has more values than it may have columns; else empty."""
        table = self._tables[name]
        work = self._work(table)
        left = work.left_out if isinstance(work, GroupedWork) else 0
        if not left:
            return ""
        return (
            f"the table {name!r} has columns for {MOST_PIVOT_VALUES} values of {table.pivot}, the "
            f"least; {left} more have none"
        )

    def _whole(self) -> Tables:
        return Tables(self._tables, self._done, self._statistics, NOTHING, self._cache)

    def _others(self, table: Table) -> dict[str, float]:
        """The statistics over other tables that a table speaks of."""
        found: dict[str, float] = {}
        for text in sorted(table.others):
            value = self.statistic(text)
            if value is not None:
                found[text] = value
        return found

    def _work(self, table: Table) -> TableWork:
        """The work on a table, with all jobs that are done."""
        key, done = (table.name, *self._slice_of.items()), self._done[table.of]
        work = self._cache.work.get(key)
        if work is None:
            slice_of = self._slice_of
            work = work_on(
                table, self._statistics, lambda: map(done.known, done.in_order(slice_of))
            )
            self._cache.keep(key, work)
        others = self._others(table) if table.others else {}
        if work.seen != done.size(self._slice_of) or others != work.known:
            jobs, work.seen = done.since(self._slice_of, work.seen)
            work.take(map(done.known, jobs), others)
            self._cache.keep(key, work)
        return work
