"""Tables of results: the checked entries under ``results:``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import Expression
from ensemble_core.model.placeholders import index_label
from ensemble_core.quick_dataclass import dataclass

#: Fields of each done job, in addition to its parameters and results. ``duration`` (seconds) and
#: ``attempt`` (from 0) are those of the successful attempt. ``reused`` is the job of an earlier run
#: that replaces this job, as RUN/JOB.
OWN_NAMES = ("index", "duration", "attempt", "replica", "reused")

#: Maximum number of different values of a ``pivot`` parameter.
MOST_PIVOT_VALUES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of results: a row for each done job, or for each combination of parameters."""

    name: str
    of: str  #: The job group.
    only: str = ""  #: Filter of the jobs.
    #: One row for each combination of these parameters; empty: one row for each job.
    by: tuple[str, ...] = ()
    columns: Mapping[str, Expression] = field(default_factory=lambda: NOTHING)
    where: Condition | None = None  #: Filter of the rows.
    order: str | None = None
    descending: bool = False
    top: int | None = None  #: Maximum number of rows, after sorting by ``order``.
    percent: float | None = None
    #: The specification for ``ensemble plot``, as in the file.
    plot: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    #: A parameter. For each of its values, each column in ``per_value`` becomes a column
    #: ``NAME[VALUE]``.
    pivot: str = ""
    #: The pivot's values in the file, in ascending order, without those that ``only`` excludes.
    values: tuple[Any, ...] = ()
    per_value: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()  #: The group's parameters and results, in their order.
    #: The ``STAT.NAME`` references in the expressions. They cover the jobs of a row.
    reads: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()  #: References to other tables (``STAT.TABLE.COLUMN``).

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the fields of a row other than the table's columns.

        In a row over several jobs, ``n`` is the number of jobs and ``reused`` is how many of them
        were reused, unless a parameter or result has this name.
        """
        if not self.by:
            return tuple(dict.fromkeys((*OWN_NAMES, *self.names)))
        return (*self.by, "n", *(() if "reused" in self.names else ("reused",)))

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of all fields of a row, including the table's columns."""
        return tuple(dict.fromkeys((*self.own_names, *self.expanded(self.columns, self.values))))

    def shown(self, values: Iterable[Any], *, reused: bool = False) -> tuple[str, ...]:
        """Return the columns to display for these pivot values. Set ``reused`` if some jobs were
        reused.
        """
        last = ("reused",) if reused else ()
        if self.by:
            columns = self.expanded(self.columns, values) or ("n",)
            return tuple(dict.fromkeys((*self.by, *columns, *last)))
        rest = self.columns or (*self.names, "duration", "attempt")
        return tuple(dict.fromkeys(("index", *rest, *last)))

    @property
    def errors(self) -> dict[str, str]:
        """Columns with error bars, each with the column that has its errors: those in ``plot``, and
        each ``mean.NAME`` for which another column is ``error.NAME``.
        """
        texts = {column.text: name for name, column in self.columns.items()}
        known = {
            name: texts[error]
            for text, name in texts.items()
            if text.startswith("mean.") and (error := f"error.{text[5:]}") in texts
        }
        return {**known, **(self.plot.get("errors") or {})}

    def expanded(self, columns: Iterable[str], values: Iterable[Any]) -> tuple[str, ...]:
        """Return these columns, with each per-value column replaced by a column for each pivot
        value.
        """
        found: list[str] = []
        labels = [index_label(value) for value in values] if self.per_value else []
        for name in columns:
            each = name in self.per_value
            found += [f"{name}[{label}]" for label in labels] if each else [name]
        return tuple(found)

    def drawn(self, values: Iterable[Any]) -> dict[str, Any]:
        """Return ``plot`` with each per-value column replaced by a column for each pivot value."""
        plot, values = dict(self.plot), [*values]
        if isinstance(y := plot.get("y"), (str, list)) and self.per_value:
            plot["y"] = [*self.expanded([y] if isinstance(y, str) else y, values)]
        errors = self.errors
        if errors:
            plot["errors"] = errors
        if self.per_value and errors:
            plot["errors"] = dict(
                pair
                for of, error in errors.items()
                for pair in zip(
                    self.expanded((of,), values), self.expanded((error,), values), strict=False
                )
            )
        return plot

    def per_value_of(self, name: str) -> str:
        """Return the per-value column that the column ``NAME[VALUE]`` belongs to; empty for other
        columns.
        """
        base = name.partition("[")[0]
        return base if name.endswith("]") and base in self.per_value else ""


#: First part of the sort key of missing values and nan, which sorts them to the end.
NOWHERE = 3


def value_order(value: object) -> tuple[int, Any]:
    """Return the sort key of a value: numbers before texts, texts before other values."""
    if value is None or value != value:
        return NOWHERE, 0
    if isinstance(value, (int, float)):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, str(value))


def table_column(name: str, tables: Mapping[str, object]) -> tuple[str, str, str] | None:
    """Split ``STAT.TABLE.COLUMN`` into its parts; return ``None`` for other names.

    >>> table_column("sum.best.E", {"best": ...}), table_column("mean.energy", {})
    (('sum', 'best', 'E'), None)
    """
    statistic, _, rest = name.partition(".")
    table, dot, column = rest.partition(".")
    return (statistic, table, column) if dot and table in tables else None
