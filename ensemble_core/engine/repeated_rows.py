"""Rows that a job repeats when it continues from a checkpoint: they replace the discarded ones.

Rows have a ``clock``, such as a step. The newest rows of a job are kept, to withdraw those that a
restart discards. Repeated rows cause one warning.

A streaming statistic cannot remove a value. Instead, the statistics of one job are calculated again
from an earlier copy and from the rows since then. So memory does not grow with the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from ensemble_core.metrics.series import UNREADABLE, Series
from ensemble_core.model.events import Observed
from ensemble_core.quick_dataclass import dataclass

#: At least so many of the newest rows of a job can be withdrawn.
KEPT_ROWS = 1000

#: An attempt, an observer, the clock and the time of a row, and its values. ``None`` stands for a
#: value that could not be read, because a snapshot would not keep the identity of this nan.
_Row = tuple[int, str, float | None, float, list[tuple[str, float | None]]]

_AnyRow = TypeVar("_AnyRow", bound=tuple[Any, ...])


def _copies(series: Mapping[str, Series] | None) -> dict[str, Series]:
    return {} if series is None else {name: each.copy() for name, each in series.items()}


@dataclass(slots=True, eq=False)
class RecentRows:
    """The rows of a job since a copy of its statistics.

    After ``KEPT_ROWS`` rows, a new copy is made, and these rows become the ``older`` ones.
    """

    base: dict[str, Series]
    #: The last clock of each observer before these rows.
    floors: dict[str, float] = field(default_factory=dict)
    rows: list[_Row] = field(default_factory=list)
    older: RecentRows | None = None

    @classmethod
    def after(cls, series: Mapping[str, Series] | None, floors: dict[str, float]) -> RecentRows:
        """Return an object without rows, for a job with these statistics and last clocks."""
        return cls(_copies(series), floors)

    def copy(self) -> RecentRows:
        """Return an independent copy. (Copied statistics and floors never change.)"""
        older = None if self.older is None else self.older.copy()
        return RecentRows(self.base, self.floors, self.rows.copy(), older)

    def begin(
        self,
        attempt: int,
        observer: str,
        clock: float | None,
        now: float,
        series: Mapping[str, Series] | None,
    ) -> None:
        """Begin a row. ``series``: the statistics before it."""
        if len(self.rows) >= KEPT_ROWS:
            self.older = RecentRows(self.base, self.floors, self.rows)
            self.base, self.floors, self.rows = _copies(series), self._last_clocks(), []
        self.rows.append((attempt, observer, clock, now, []))

    def add(self, variable: str, value: float) -> None:
        """Add a value to the newest row."""
        self.rows[-1][-1].append((variable, None if value is UNREADABLE else value))

    def _last_clocks(self) -> dict[str, float]:
        found = self.floors.copy()
        found.update((row[1], row[2]) for row in self.rows if row[2] is not None)
        return found

    def withdraw(
        self,
        attempt: int,
        observer: str,
        clock: float,
        add: Callable[[dict[str, Series], str, float, float], None],
    ) -> dict[str, Series] | None:
        """Withdraw the observer's rows of earlier attempts from this clock on.

        Return the statistics without them; ``add`` adds a value of a variable with its time to such
        statistics. Return ``None`` if the rows are too old.
        """
        first, rows = self, self.rows
        kept, began = without_discarded(rows, attempt, observer, clock)
        if not began and self.older is not None:
            first, rows = self.older, [*self.older.rows, *rows]
            kept, began = without_discarded(rows, attempt, observer, clock)
        if not began and first.floors.get(observer, -math.inf) >= clock:
            return None
        self.base, self.floors, self.rows = first.base, first.floors, kept
        self.older = self.older if first is self else None
        found = _copies(self.base)
        for _, _, _, now, values in self.rows:
            for variable, value in values:
                add(found, variable, UNREADABLE if value is None else value, now)
        return found


def without_discarded(
    rows: Sequence[_AnyRow], attempt: int, observer: str, clock: float
) -> tuple[list[_AnyRow], bool]:
    """Return the rows without those that a restart at this clock discards.

    These are the observer's newest rows of earlier attempts, back to the last one before this
    clock: a program may count its steps from 0 several times. The second value is whether there is
    such a row. A row begins with its attempt, observer and clock.
    """
    kept: list[_AnyRow] = []
    for position in range(len(rows) - 1, -1, -1):
        row = rows[position]
        if row[0] == attempt or row[1] != observer or row[2] is None:
            kept.append(row)
        elif row[2] < clock:
            return [*rows[: position + 1], *reversed(kept)], True
    return kept[::-1], False


def repetition_text(job: str, observer: str, last: float, replaced: bool) -> str:
    """Return the message that a job repeats rows of an earlier attempt, up to the clock ``last``.

    ``replaced``: the rows replace those of the earlier attempt.
    """
    return (
        f"{job} continues an earlier attempt that printed rows up to clock {last:.15g} "
        f"({observer}). Repeated rows "
        + (
            "replace the earlier ones in the job's statistics; rules and the group's statistics "
            "skip them"
            if replaced
            else "are skipped"
        )
    )


def difference_text(
    job: str, event: Observed, last: float, before: Mapping[str, Any], replaced: bool
) -> str | None:
    """Return a warning if the last repeated row, at the clock ``last``, differs from ``before``.

    If it differs, the group's statistics contain discarded values. So do the job's, unless its rows
    were ``replaced``. Return ``None`` if it does not differ.
    """
    for name, value in event.values.items():
        old = before.get(name, value)
        if old != value and not (old != old and value != value):
            return (
                f"{job} printed {name}={value:.15g} at {last:.15g}, where the earlier "
                f"attempt had printed {old:.15g}: the restart does not repeat its steps, and "
                f"statistics {'over the group' if replaced else 'of the job'} such as max and mean "
                f"have the earlier values ({event.observer}: clock)"
            )
    return None
