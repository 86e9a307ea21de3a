"""Text tables that a run displays: a results table while it is live, and its final metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from ensemble_core.cli.table_output import align_columns
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import no_such
from ensemble_core.model.ensemble import Ensemble

#: Maximum share of the engine's time that a table may use.
_SHARE = 0.02


def check_table(ensemble: Ensemble, name: str | None) -> None:
    """Raise :class:`UsageError` if the ensemble has no table with this name."""
    if not (name is None or name in ensemble.tables):
        raise no_such("the file", "table", name, ensemble.tables, "the file has no 'results:'")


def table_lines(engine: Engine, name: str) -> list[str]:
    """Return a results table as aligned columns with headings."""
    tables = engine.tables()
    names = tables.columns(name)
    rows = [[row.get(column) for column in names] for row in tables[name]]
    return align_columns(names, rows, missing="-")


def metric_lines(engine: Engine) -> list[str]:
    """Return all metrics with their values as aligned columns."""
    return align_columns(("metric", "value"), sorted(engine.snapshot().items()))[1:]


class ResultsTable:
    """A results table that is recomputed regularly, but less often if computing it takes long."""

    def __init__(
        self, engine: Engine, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._name = name
        self._clock = clock
        self._next = 0.0

    def lines(self) -> list[str] | None:
        """Return the current table, or ``None`` if it is too early to compute it again."""
        began = self._clock()
        if began < self._next:
            return None
        lines = table_lines(self._engine, self._name)
        ended = self._clock()
        self._next = ended + (ended - began) / _SHARE
        return lines
