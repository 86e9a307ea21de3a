"""Tables of results: what an entry under ``results:`` says, after checking.

Made by ``config.tables``, worked out by ``engine.table_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import Expression

__all__ = ["OWN_NAMES", "Table", "table_column"]

#: What a table knows of each job that is done, beside its parameters and its result: ``duration``
#: is that of the attempt that succeeded, in seconds, ``attempt`` its number from 0.
OWN_NAMES = ("index", "duration", "attempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table over the jobs of group ``of`` that are done.

    Without ``by`` it has a row for each job, else one for each combination of these parameters.
    ``names`` are the parameters and results of the group, in their order. ``order`` is the name
    that rows are sorted by, ``top`` how many of them are left, ``percent`` the share. ``reads`` are
    the ``STAT.NAME`` over a row's jobs that its expressions speak of, ``others`` the
    ``STAT.TABLE.COLUMN``. ``plot`` says what ``ensemble plot`` draws, as the file has it.
    """

    name: str
    of: str
    by: tuple[str, ...] = ()
    columns: Mapping[str, Expression] = field(default_factory=lambda: NOTHING)
    where: Condition | None = None
    order: str | None = None
    descending: bool = False
    top: int | None = None
    percent: float | None = None
    plot: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    names: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of a row's fields: those of its job, and its columns."""
        own = (*self.by, "n") if self.by else (*OWN_NAMES, *self.names)
        return tuple(dict.fromkeys((*own, *self.columns)))

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of the table as people see it."""
        if self.by:
            return tuple(dict.fromkeys((*self.by, *(self.columns or ("n",)))))
        rest = self.columns or (*self.names, "duration", "attempt")
        return tuple(dict.fromkeys(("index", *rest)))


def table_column(name: str, tables: Mapping[str, object]) -> tuple[str, str, str] | None:
    """The statistic, table and column of ``STAT.TABLE.COLUMN``; ``None`` for any other name.

    >>> table_column("sum.best.E", {"best": ...}), table_column("mean.energy", {})
    (('sum', 'best', 'E'), None)
    """
    statistic, _, rest = name.partition(".")
    table, dot, column = rest.partition(".")
    return (statistic, table, column) if dot and table in tables else None
