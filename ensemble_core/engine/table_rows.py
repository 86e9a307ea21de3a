"""Rows of tables: what is kept of jobs that are done, and tables worked out of it when asked.

Only of groups that a table names anything is kept. A table is worked out in the order of the jobs'
indices, whatever order they ended in, so it is the same after any number of stops and resumes.
Filled by the job table, asked by the engine, by functions on their threads and by the command line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.tables import Table, table_column

__all__ = ["DoneJob", "DoneJobs", "Tables"]

#: One row of a table, by name.
TableRow = dict[str, Any]


#: A job that is done: its index, which layout says what its values are, its duration, its attempt,
#: and the values of its parameters and result. One flat tuple, for there may be millions.
DoneJob = tuple[Any, ...]


@dataclass(slots=True, eq=False, repr=False)
class DoneJobs:
    """The jobs of one group that are done, by index. ``slices`` has, for each set of parameters
    that a rule with ``each`` asks by, the indices by their values."""

    jobs: dict[int, DoneJob] = field(default_factory=dict)
    #: The names that jobs have values of; nearly always one.
    layouts: list[tuple[str, ...]] = field(default_factory=list)
    slices: dict[tuple[str, ...], dict[tuple[Any, ...], list[int]]] = field(default_factory=dict)

    def add(
        self,
        index: int,
        parameters: Mapping[str, object],
        result: Mapping[str, Any],
        duration: float | None,
        attempt: int,
    ) -> None:
        """One more job is done."""
        # A parameter comes before a result of its name.
        known = {**result, **parameters}
        names = tuple(known)
        try:
            layout = self.layouts.index(names)
        except ValueError:
            layout = len(self.layouts)
            self.layouts.append(names)
        self.jobs[index] = job = (index, layout, duration, attempt, *known.values())
        for by, found in self.slices.items():
            self._place(job, by, found)

    def serve(self, by: tuple[str, ...]) -> None:
        """Be ready to be asked by the values of these parameters."""
        if by not in self.slices:
            found = self.slices[by] = {}
            for job in self.jobs.values():
                self._place(job, by, found)

    def _place(
        self, job: DoneJob, by: tuple[str, ...], found: dict[tuple[Any, ...], list[int]]
    ) -> None:
        known = self.known(job)
        if all(name in known for name in by):
            found.setdefault(tuple(known[name] for name in by), []).append(job[0])

    def known(self, job: DoneJob) -> TableRow:
        """Values that are known of a job, by name."""
        index, layout, duration, attempt, *values = job
        known: TableRow = {"index": index, "duration": duration, "attempt": attempt}
        known.update(zip(self.layouts[layout], values, strict=True))
        return known

    def in_order(self, parameters: Mapping[str, object]) -> Iterator[DoneJob]:
        """The jobs with these values of parameters, in the order of their indices."""
        by = tuple(parameters)
        if by and by in self.slices:
            for index in sorted(self.slices[by].get(tuple(parameters.values()), ())):
                yield self.jobs[index]
            return
        for index in sorted(self.jobs):
            job = self.jobs[index]
            if not by or parameters.items() <= self.known(job).items():
                yield job

    def copy(self) -> DoneJobs:
        """Copy as of now, for another thread."""
        return DoneJobs(dict(self.jobs), list(self.layouts))


def _no_metric(path: str) -> None:
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Tables(Mapping[str, "list[TableRow]"]):
    """The tables of a run by name, each worked out when it is asked for: a list of its rows.

    ``done`` are the jobs by group; ``slice_of`` are the parameters of a slice, of which the tables
    are then.

    >>> Tables({}, {}, {}).get("best") is None
    True
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        done: Mapping[str, DoneJobs],
        statistics: Mapping[str, StatisticSpec],
        slice_of: Mapping[str, object] = NOTHING,
    ) -> None:
        self._tables = tables
        self._done = done
        self._statistics = statistics
        self._slice_of = slice_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __getitem__(self, name: str) -> list[TableRow]:
        table = self._tables[name]
        done = self._done[table.of]
        jobs = done.in_order(self._slice_of)
        known: TableRow = {}
        for text in table.others:
            value = self.statistic(text)
            if value is not None:
                known[text] = value
        rows = self._of_groups(table, done, jobs) if table.by else map(done.known, jobs)
        return _chosen(table, list(_worked_out(table, rows, known)))

    def shown(self, name: str) -> list[TableRow]:
        """Return the rows in display order: by ``order``, or else by the table's ``by``. Rules and
        functions get them in the order of their first indices."""
        table, rows = self._tables[name], self[name]
        if table.order is None and table.by:
            rows.sort(key=lambda row: [_place(row.get(column)) for column in table.by])
        return rows

    def of_group(self, group: str) -> list[TableRow]:
        """A row for each job of a group that is done, in the order of their indices: its
        parameters, the values of its ``result``, ``index``, ``duration`` and ``attempt``. None of
        groups of which nothing is kept."""
        done = self._done.get(group)
        return [] if done is None else [*map(done.known, done.in_order(self._slice_of))]

    def detached(self) -> Tables:
        """The tables as they are now, for another thread."""
        done = {name: jobs.copy() for name, jobs in self._done.items()}
        return Tables(self._tables, done, self._statistics, self._slice_of)

    def statistic(self, name: str) -> float | None:
        """``STAT.TABLE.COLUMN``: a statistic over the values of a column; ``None`` while there is
        none. ``count`` is how many numbers it has."""
        found = table_column(name, self._tables)
        if found is None:
            return None
        statistic, table, column = found
        values = [row.get(column) for row in self[table]]
        return self._reduced({statistic}, values).get(statistic)

    def _of_groups(
        self, table: Table, done: DoneJobs, jobs: Iterable[DoneJob]
    ) -> Iterator[TableRow]:
        """One row for each combination, in the order of its first index."""
        groups: dict[tuple[Any, ...], list[TableRow]] = {}
        for job in jobs:
            known = done.known(job)
            groups.setdefault(tuple(known.get(name) for name in table.by), []).append(known)
        asked: dict[str, set[str]] = {}
        for name in table.reads:
            statistic, _, variable = name.partition(".")
            asked.setdefault(variable, set()).add(statistic)
        for values, members in groups.items():
            row: TableRow = {"n": len(members)}
            for variable, statistics in asked.items():
                if statistics == {"count"}:  # count.done
                    row[f"count.{variable}"] = len(members)
                    continue
                found = self._reduced(statistics, [each.get(variable) for each in members])
                row.update((f"{name}.{variable}", value) for name, value in found.items())
            row.update(zip(table.by, values, strict=True))
            yield row

    def _reduced(self, statistics: Iterable[str], values: Sequence[object]) -> dict[str, float]:
        """Statistics over the numbers among these values, in their order."""
        numbers = [value for value in values if _is_number(value)]
        names = sorted(statistics)
        series = Series([self._statistics[name] for name in names if name != "count"])
        for value in numbers:
            series.record(value, 0.0)  # type: ignore[arg-type]
        found = {name: series.scoped(name, 0.0) for name in names if name != "count"}
        if "count" in names:
            found["count"] = len(numbers)
        return {name: value for name, value in found.items() if value is not None}


#: Where a value that is missing, or no number, is sorted: at the end.
_NOWHERE = 3


def _place(value: object) -> tuple[int, Any]:
    """Return the sort key of a value: numbers come before texts, texts before anything else."""
    if value is None or value != value:
        return _NOWHERE, 0
    if isinstance(value, (int, float)):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, str(value))


def _worked_out(
    table: Table, rows: Iterable[TableRow], known: Mapping[str, Any]
) -> Iterator[TableRow]:
    """The rows for which ``where`` holds, with their columns."""
    by = {*table.by, "n"}
    for row in rows:
        names = {**known, **row} if known else row
        if table.where is not None and not table.where.holds(None, names, _no_metric):
            continue
        columns = {
            name: formula.result(names, _no_metric) for name, formula in table.columns.items()
        }
        if table.by:
            row = {name: value for name, value in row.items() if name in by}
        row.update(columns)
        yield row


def _chosen(table: Table, rows: list[TableRow]) -> list[TableRow]:
    """The rows in their order, as many as the table has."""
    most = len(rows) if table.top is None else table.top
    if table.percent is not None:
        most = math.floor(len(rows) * table.percent / 100 + 1e-9)
    if table.order is None:
        return rows[:most]
    name = table.order

    def missing(row: TableRow) -> bool:
        return _place(row.get(name))[0] == _NOWHERE

    def key(row: TableRow) -> tuple[int, Any]:
        return _place(row[name])

    # Sorts are stable, reversed ones too: of equals the first index comes first.
    ordered = sorted((row for row in rows if not missing(row)), key=key, reverse=table.descending)
    if table.top is not None or table.percent is not None:
        return ordered[:most]
    return ordered + [row for row in rows if missing(row)]
