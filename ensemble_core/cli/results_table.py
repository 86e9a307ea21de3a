"""Tables that a run is asked to show: one of results as it goes on, and all metrics at its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from ensemble_core.cli.table_output import aligned
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import no_such
from ensemble_core.model.ensemble import Ensemble

__all__ = ["ResultsTable", "check_table", "metric_lines", "table_lines"]

#: A table may take this share of the engine's time.
_SHARE = 0.02


def check_table(ensemble: Ensemble, name: str | None) -> None:
    """Raises :class:`UsageError` for a table that the ensemble does not have."""
    if not (name is None or name in ensemble.tables):
        raise no_such("the file", "table", name, ensemble.tables, "it has no 'results:'")


def table_lines(engine: Engine, name: str) -> list[str]:
    """A table of results as aligned columns, headings first."""
    tables = engine.tables()
    names = tables.columns(name)
    rows = [[row.get(column) for column in names] for row in tables[name]]
    return aligned(names, rows, missing="-")


def metric_lines(engine: Engine) -> list[str]:
    """Every metric with its value."""
    return aligned(("metric", "value"), sorted(engine.snapshot().items()))[1:]


class ResultsTable:
    """A table of results that is worked out now and then on the engine's thread: seldom where that
    takes long."""

    def __init__(
        self, engine: Engine, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._name = name
        self._clock = clock
        self._next = 0.0

    def lines(self) -> list[str] | None:
        """The table as it stands; ``None`` where it is too early to look again."""
        began = self._clock()
        if began < self._next:
            return None
        lines = table_lines(self._engine, self._name)
        ended = self._clock()
        self._next = ended + (ended - began) / _SHARE
        return lines
