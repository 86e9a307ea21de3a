"""Computes a table with ``by`` (one row for all jobs with the same values), and its pivot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from ensemble_core.engine.done_jobs import DoneJob, DoneJobs, TableRow
from ensemble_core.engine.table_rows import (
    AppendOnlyValues,
    ComputedTable,
    FilteredColumn,
    Values,
    filtered_column,
    is_number,
    no_metric,
)
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.metrics.store import split_filter
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.expressions import Expression
from ensemble_core.model.filters import Filter, filter_of
from ensemble_core.model.placeholders import index_label
from ensemble_core.model.tables import MOST_PIVOT_VALUES, Table, value_order

#: Position of a row in a table with ``by``: the sort keys of the row's ``by`` values.
RowKey = tuple[tuple[int, Any], ...]
#: The statistic whose values all come from one job.
LAST = "last"


class _Cell:
    """The jobs of one row, or of one row and one pivot value, with the statistics over their
    variables.
    """

    __slots__ = ("n", "newest", "passed", "reused", "variables")

    def __init__(self, variables: Iterable[AppendOnlyValues]) -> None:
        self.n = self.reused = 0
        self.variables = tuple(variables)
        #: For each variable with a filter, by its number, how many jobs passed it.
        self.passed: dict[int, int] = {}
        #: For each filter, the newest job that has a value for ``last``, and its values by name.
        self.newest: dict[str, tuple[int, dict[str, float]]] = {}


class _Line:
    """The jobs of one row.

    ``cells`` has a cell for each pivot value (``None`` without a pivot). ``by`` has the values of
    the ``by`` variables, as in the job with the lowest index.

    ``row`` is the row as it was last computed, and ``passes`` says whether ``where`` is true for
    it. ``changed`` has the pivot values with new jobs since then.
    """

    __slots__ = ("by", "cells", "changed", "index", "key", "n", "passes", "reused", "row")

    def __init__(self, key: RowKey, index: int, by: tuple[Any, ...]) -> None:
        self.key, self.index, self.by = key, index, by
        self.n = self.reused = 0
        self.cells: dict[Any, _Cell] = {}
        self.changed: dict[Any, None] = {}
        self.row: TableRow | None = None
        self.passes = False


class _Variable(NamedTuple):
    """A variable of jobs with its filter and statistics."""

    name: str
    passes: Filter | None
    statistics: tuple[str, ...]
    #: The names of these statistics in formulas.
    sorted_names: tuple[str, ...]


class _Label(NamedTuple):
    """A pivot value in the names of columns: its suffix, and the full names of the columns that
    depend only on the cell.
    """

    suffix: str
    columns: Mapping[str, str]


class _Formula(NamedTuple):
    """A per-value column that depends on the row as well as on the cell.

    Its formula can use statistics of the cell, fields of the row, and per-value columns that come
    before it in the file.
    """

    formula: Expression
    of_cell: tuple[str, ...]
    above: tuple[str, ...]
    of_row: tuple[str, ...]


class GroupedTable(ComputedTable):
    """A table with ``by``: one row for all jobs with the same values of these parameters."""

    def __init__(self, table: Table, statistics: Mapping[str, StatisticSpec]) -> None:
        super().__init__(table, statistics)
        reads: dict[str, list[str]] = {}
        for name in sorted(table.reads):
            statistic, _, variable = name.partition(".")
            reads.setdefault(variable, []).append(statistic)
        self._variables: list[_Variable] = []
        #: For each filter, the names ``last.NAME`` with the numbers of their variables. They come
        #: from one job, so that a row never mixes values of different jobs.
        self._last: dict[str, dict[str, int]] = {}
        for own_name, names in reads.items():
            variable, condition = split_filter(own_name)
            passes = filter_of(condition) if condition else None
            if LAST in names:
                names.remove(LAST)
                self._last.setdefault(condition, {})[f"{LAST}.{own_name}"] = len(self._variables)
            of = tuple(f"{name}.{own_name}" for name in names)
            self._variables.append(_Variable(variable, passes, tuple(names), of))
        #: ``_of_cell`` has the columns that depend only on a cell and its pivot value; ``_of_row``
        #: has the others.
        self._of_cell: dict[str, Expression] = {}
        self._of_row: dict[str, Expression | _Formula] = {}
        for name, formula in table.columns.items():
            if name not in table.per_value:
                self._of_row[name] = formula
            elif self._is_cell_formula(formula):
                self._of_cell[name] = formula
            else:
                self._of_row[name] = self._per_value(formula)
        #: True if formulas use names that the row itself lacks or has with another value.
        self._apart = bool(
            not table.pivot or table.others or not self._of_row.keys().isdisjoint(table.own_names)
        )
        self._counts_reused = "reused" in table.own_names
        self._filtered = any(each.passes is not None for each in self._variables)
        #: For each layout of jobs, a function that returns the values that the table needs.
        self._readers: list[Callable[[DoneJob], tuple[Any, ...]]] = []
        self._lines: dict[RowKey, _Line] = {}
        #: The lines by values of ``by`` that were seen, to save the computation of their keys.
        self._known_lines: dict[tuple[Any, ...], _Line] = {}
        self._order: list[_Line] = []
        self._dirty: dict[_Line, None] = {}
        self._pivots: dict[Any, None] = dict.fromkeys(table.values)
        #: The pivot values that have columns, in ascending order.
        self.values: list[Any] = list(table.values)
        #: The pivot values that have columns, with the names of these columns.
        self._labels: dict[Any, _Label] = {}
        self._label()
        #: For each pivot value, an empty cell for rows that have no job with this value.
        self._empty: dict[Any, _Cell] = {}
        self._kept: dict[tuple[str, str], tuple[FilteredColumn, Values]] = {}

    def _is_cell_formula(self, formula: Expression) -> bool:
        table = self.table
        return not any(
            (name in table.by and name != table.pivot)
            or name not in (table.pivot, "n", "reused", *table.reads, *self._of_cell)
            for name in formula.sorted_names
        )

    def _per_value(self, formula: Expression) -> _Formula:
        table = self.table
        of_cell, above, of_row = [], [], []
        for each in formula.sorted_names:
            if each == table.pivot or each in table.by:
                of_row.append(each)
            elif each in table.reads or each in ("n", "reused"):
                of_cell.append(each)
            elif each in table.per_value:
                above.append(each)
            else:
                of_row.append(each)
        return _Formula(formula, tuple(of_cell), tuple(above), tuple(of_row))

    # -- new jobs ------------------------------------------------------------------------------

    def add_jobs(self, done: DoneJobs, jobs: Iterable[DoneJob], known: Mapping[str, Any]) -> None:
        while len(self._readers) < len(done.layouts):
            self._readers.append(self._reader(done.layouts[len(self._readers)]))
        for job in jobs:
            fields = done.known(job) if self._filtered or self._only is not None else NOTHING
            if self._only is None or self._only.passes(fields):
                self._add(job[0], fields, *self._readers[job[1]]((*job, None, 1)))
        if known != self.known:
            self.known = known
            self._compute_all()
        if self._dirty:
            self._work()

    def _reader(self, layout: Sequence[str]) -> Callable[[DoneJob], tuple[Any, ...]]:
        """Return a function that reads from a job the data that this table needs.

        Its argument is the job's tuple with ``None`` and 1 appended. It returns the pivot value,
        the earlier job that was reused (or ``None``), the values of the ``by`` variables, and the
        values of all variables.
        """
        positions = {"index": 0, "duration": 2, "attempt": 3}
        positions.update((name, number) for number, name in enumerate(layout, 4))
        by = itemgetter(*(positions.get(name, -2) for name in (*self.table.by, "index")))
        # For count.done, each job counts as 1.
        of = [
            positions.get(each.name, -1 if each.name == "done" else -2) for each in self._variables
        ]
        variables = itemgetter(*of, 0, 0)
        pivot = positions.get(self.table.pivot, -2) if self.table.pivot else -2
        reused = positions.get("reused", -2)
        return lambda job: (job[pivot], job[reused], by(job)[:-1], variables(job))

    def _add(
        self,
        index: int,
        fields: Mapping[str, Any],
        pivot: Any,
        reused: str | None,
        by: tuple[Any, ...],
        values: tuple[Any, ...],
    ) -> None:
        line = self._known_lines.get(by)
        if line is None:
            line = self._line(index, by)
        if index < line.index:
            line.index, line.by, line.row = index, by, None
        cell = line.cells.get(pivot)
        if cell is None:
            cell = line.cells[pivot] = self._cell()
        line.n += 1
        cell.n += 1
        if reused is not None:
            line.reused += 1
            cell.reused += 1
        for number, variable in enumerate(self._variables):
            if variable.passes is not None:
                if not variable.passes.passes(fields):
                    continue
                cell.passed[number] = cell.passed.get(number, 0) + 1
            cell.variables[number].put(index, values[number])
        for condition, names in self._last.items():
            passes = self._variables[next(iter(names.values()))].passes
            if cell.newest.get(condition, (-1,))[0] < index and (
                passes is None or passes.passes(fields)
            ):
                found = {name: values[of] for name, of in names.items() if is_number(values[of])}
                if found:
                    cell.newest[condition] = index, found
        line.changed[pivot] = None
        self._dirty[line] = None
        if pivot is not None and pivot not in self._pivots:
            self._pivots[pivot] = None
            self.values = sorted(self._pivots, key=value_order)[:MOST_PIVOT_VALUES]
            self._label()
            self._compute_all()

    def _line(self, index: int, by: tuple[Any, ...]) -> _Line:
        """Return the line with these ``by`` values. Create it if necessary."""
        key = tuple([value_order(value) for value in by])
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key, index, by)
            self._order.clear()
        if all(type(value) in (int, float, str) for value in by):
            self._known_lines[by] = line
        return line

    def _cell(self) -> _Cell:
        return _Cell(
            AppendOnlyValues(self._statistics, each.statistics) for each in self._variables
        )

    def _label(self) -> None:
        self._labels = {}
        for value in self.values:
            suffix = f"[{index_label(value)}]"
            self._labels[value] = _Label(suffix, {name: name + suffix for name in self._of_cell})

    @property
    def left_out(self) -> int:
        """Number of pivot values without columns, because there are too many values."""
        return len(self._pivots) - len(self.values)

    def partial(self) -> str:
        """Return a text that says which statistics do not cover all jobs of their rows.

        It is empty if all do.
        """
        lacking: dict[str, list[tuple[_Line, int, int]]] = {}
        for line in self._order or self._lines.values():
            for cell in line.cells.values() if line.passes else ():
                for number, variable in enumerate(self._variables):
                    of = cell.n if variable.passes is None else cell.passed.get(number, 0)
                    covered = cell.variables[number].count
                    names = [
                        each for each in variable.sorted_names if not each.startswith("count.")
                    ]
                    if covered < of and names:
                        lacking.setdefault(names[0], []).append((line, covered, of))
        parts = []
        for name, found in lacking.items():
            line, covered, of = found[0]
            values = zip(self.table.by, line.by, strict=True)
            where = ", ".join(f"{each}={value}" for each, value in values)
            more = f", and fewer than all in {len(found) - 1} further places" * (len(found) > 1)
            parts.append(f"{name} covers {covered} of {of} jobs at {where}{more}")
        return "; ".join(parts)

    # -- computation of rows -------------------------------------------------------------------

    def _work(self) -> None:
        dirty, self._dirty = self._dirty, {}
        self._changed()
        for line in dirty:
            row = self._row(line)
            for column, values in self._kept.values():
                values.put(line.key, column.value(row))

    def _compute_all(self) -> None:
        """Have all rows computed again, with all their columns."""
        for line in self._lines.values():
            line.row = None
            self._dirty[line] = None

    def _row(self, line: _Line) -> TableRow | None:
        """Return a row, or ``None`` if ``where`` is not true for it."""
        table, cells, before = self.table, line.cells, line.row
        own: TableRow = {"n": line.n}
        if self._counts_reused:
            own["reused"] = line.reused
        own.update(zip(table.by, line.by, strict=True))
        # Keep the columns of cells without new jobs.
        row = {**own} if before is None else before | own
        for value in self._labels if before is None else line.changed:
            if value in self._labels:
                cell = cells.get(value) or self._empty_cell(value)
                self._compute_cell(row, cell, value, self._labels[value])
        line.row, line.changed = row, {}
        seen = row
        if self._apart:
            over = NOTHING if table.pivot else self._cell_statistics(cells[None])
            seen = {**self.known, **over, **own}
            for label in self._labels.values():
                for name in label.columns.values():
                    seen[name] = row[name]
        for name, formula in self._of_row.items():
            if not isinstance(formula, _Formula):
                row[name] = formula.result(seen, no_metric)
                if self._apart:
                    seen.setdefault(name, row[name])
                continue
            for value, label in self._labels.items():
                cell = cells.get(value) or self._empty_cell(value)
                found = self._in_cell(formula, value, label.suffix, cell, seen)
                row[name + label.suffix] = seen[name + label.suffix] = found
        line.passes = table.where is None or table.where.holds(None, seen, no_metric)
        return row if line.passes else None

    def _empty_cell(self, value: Any) -> _Cell:
        if value not in self._empty:
            self._empty[value] = self._cell()
        return self._empty[value]

    def _compute_cell(self, row: TableRow, cell: _Cell, value: Any, label: _Label) -> None:
        """Update the columns of a row that depend only on this cell."""
        known = self._cell_statistics(cell)
        known[self.table.pivot] = value
        for name, formula in self._of_cell.items():
            found = row[label.columns[name]] = formula.result(known, no_metric)
            known.setdefault(name, found)

    def _in_cell(self, of: _Formula, value: Any, label: str, cell: _Cell, seen: TableRow) -> object:
        """Return the value of a per-value column that depends on the row as well as on the cell."""
        over = self._cell_statistics(cell)
        known = {name: over.get(name) for name in of.of_cell}
        for name in of.above:
            known[name] = seen.get(name + label)
        for name in of.of_row:
            known[name] = value if name == self.table.pivot else seen.get(name)
        return of.formula.result(known, no_metric)

    def _cell_statistics(self, cell: _Cell) -> TableRow:
        """Return the statistics over the jobs of a cell by name, including ``n`` and ``reused``."""
        found: TableRow = {"n": cell.n, "reused": cell.reused}
        for variable, numbers in zip(self._variables, cell.variables, strict=True):
            numbers.get_all(variable.sorted_names, found)
        for condition, names in self._last.items():
            _, values = cell.newest.get(condition, (-1, {}))
            found.update((name, values.get(name)) for name in names)
        return found

    # -- queries -------------------------------------------------------------------------------

    def _in_order(self) -> list[TableRow]:
        if not self._order:
            self._order = sorted(self._lines.values(), key=attrgetter("key"))
        return [line.row for line in self._order if line.passes and line.row is not None]

    def _values(self, column: str, condition: str, statistic: str) -> Values:
        key = column, condition
        if key not in self._kept:
            asked, values = filtered_column(*key), Values(self._statistics)
            for row_key, line in self._lines.items():
                values.put(row_key, asked.value(line.row if line.passes else None))
            self._kept[key] = asked, values
        return self._kept[key][1]
