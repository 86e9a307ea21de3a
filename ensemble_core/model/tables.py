"""Tables of results: what an entry under ``results:`` says, after checking.

Made by ``config.tables``, worked out by ``engine.table_rows``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import Expression, index_label

__all__ = ["MOST_PIVOT_VALUES", "NOWHERE", "OWN_NAMES", "Table", "table_column", "value_order"]

#: What a table knows of each job that is done, beside its parameters and its result: ``duration``
#: is that of the attempt that succeeded, in seconds, ``attempt`` its number from 0, ``reused`` the
#: earlier job that it was taken from, RUN/JOB.
OWN_NAMES = ("index", "duration", "attempt", "replica", "reused")

#: So many values of a ``pivot`` have columns.
MOST_PIVOT_VALUES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table over the jobs of group ``of`` that are done and pass the filter ``only``.

    Without ``by`` it has a row for each job, else one for each combination of these parameters.
    ``names`` are the parameters and results of the group, in their order. ``order`` is the name
    that rows are sorted by, ``top`` how many of them are left, ``percent`` the share. ``reads`` are
    the ``STAT.NAME`` over a row's jobs that its expressions speak of, ``others`` the
    ``STAT.TABLE.COLUMN``. ``plot`` says what ``ensemble plot`` draws, as the file has it.

    ``pivot`` is a parameter of which each value has a column of its own, ``NAME[VALUE]``, for each
    column in ``per_value``; ``values`` are those that the file says, the least first.
    """

    name: str
    of: str
    only: str = ""
    by: tuple[str, ...] = ()
    columns: Mapping[str, Expression] = field(default_factory=lambda: NOTHING)
    where: Condition | None = None
    order: str | None = None
    descending: bool = False
    top: int | None = None
    percent: float | None = None
    plot: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    pivot: str = ""
    values: tuple[Any, ...] = ()
    per_value: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of a row's fields without its columns. Of a row over many jobs, ``n`` is their
        number and ``reused`` that of reused ones, unless a parameter or result has this name."""
        if not self.by:
            return tuple(dict.fromkeys((*OWN_NAMES, *self.names)))
        return (*self.by, "n", *(() if "reused" in self.names else ("reused",)))

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of a row's fields, with its columns."""
        return tuple(dict.fromkeys((*self.own_names, *self.expanded(self.columns, self.values))))

    def shown(self, values: Iterable[Any], *, reused: bool = False) -> tuple[str, ...]:
        """The columns of the table as people see it, with those of these pivot values, and with
        ``reused`` where jobs are."""
        last = ("reused",) if reused else ()
        if self.by:
            columns = self.expanded(self.columns, values) or ("n",)
            return tuple(dict.fromkeys((*self.by, *columns, *last)))
        rest = self.columns or (*self.names, "duration", "attempt")
        return tuple(dict.fromkeys(("index", *rest, *last)))

    def expanded(self, columns: Iterable[str], values: Iterable[Any]) -> tuple[str, ...]:
        """These columns, with one for each pivot value in the place of each per-value column."""
        found: list[str] = []
        labels = [index_label(value) for value in values] if self.per_value else []
        for name in columns:
            each = name in self.per_value
            found += [f"{name}[{label}]" for label in labels] if each else [name]
        return tuple(found)

    def drawn(self, values: Iterable[Any]) -> dict[str, Any]:
        """``plot`` with a column for each of these pivot values."""
        plot, values = dict(self.plot), [*values]
        if isinstance(y := plot.get("y"), (str, list)) and self.per_value:
            plot["y"] = [*self.expanded([y] if isinstance(y, str) else y, values)]
        if self.per_value and plot.get("errors"):
            plot["errors"] = dict(
                pair
                for of, error in plot["errors"].items()
                for pair in zip(
                    self.expanded((of,), values), self.expanded((error,), values), strict=False
                )
            )
        return plot

    def per_value_of(self, name: str) -> str:
        """The per-value column that ``NAME[VALUE]`` is of; empty for any other name."""
        base = name.partition("[")[0]
        return base if name.endswith("]") and base in self.per_value else ""


#: Where a value that is missing, or no number, is sorted: at the end.
NOWHERE = 3


def value_order(value: object) -> tuple[int, Any]:
    """The sort key of a value: numbers come before texts, texts before anything else."""
    if value is None or value != value:
        return NOWHERE, 0
    if isinstance(value, (int, float)):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, str(value))


def table_column(name: str, tables: Mapping[str, object]) -> tuple[str, str, str] | None:
    """The statistic, table and column of ``STAT.TABLE.COLUMN``; ``None`` for any other name.

    >>> table_column("sum.best.E", {"best": ...}), table_column("mean.energy", {})
    (('sum', 'best', 'E'), None)
    """
    statistic, _, rest = name.partition(".")
    table, dot, column = rest.partition(".")
    return (statistic, table, column) if dot and table in tables else None
