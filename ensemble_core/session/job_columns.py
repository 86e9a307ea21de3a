"""Table of a run's jobs in memory, by column: a million jobs take about 150 MB.

Used by ``inspection``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.journal.job_rows import TIMES

if TYPE_CHECKING:
    from ensemble_core.journal.job_history import Jobs

__all__ = ["JobColumns"]

#: Columns in which a text is not searched: nobody types such a number.
_NOT_SEARCHED = {*TIMES, "duration", "core_hours"}
_NAN = math.nan


class JobColumns:
    """The jobs of a run by group and index. ``ranges`` has the positions of each group's jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self.names = jobs.names
        self.ranges: dict[str, range] = {}
        self._columns: dict[str, array[float] | list[Any]] = {
            name: array("d") if jobs.kinds.get(name, {""}) <= {"f", "n"} else []
            for name in jobs.names
        }
        #: Equal texts are kept once.
        texts: dict[Any, Any] = {}
        only_text = {name for name in jobs.names if jobs.kinds.get(name, {""}) <= {"s", "n"}}
        at = 0
        for batch in jobs.batches():
            for name, values in zip(self.names, batch, strict=True):
                column = self._columns[name]
                if isinstance(column, array):
                    column.extend(_NAN if value is None else value for value in values)
                elif name in only_text:
                    column.extend(_once(texts, values))
                else:
                    column.extend(values)
            group, count = batch[0][0], len(batch[0])
            first = self.ranges[group].start if group in self.ranges else at
            at += count
            self.ranges[group] = range(first, at)
        self._orders: dict[tuple[str, bool], list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.ranges.values()))

    def column(self, name: str, group: str) -> Iterator[Any]:
        """The values of a group's jobs, ``None`` if a job has none."""
        own = self.ranges[group]
        column = self._columns[name]
        if isinstance(column, array):
            return (value if value == value else None for value in column[own.start : own.stop])
        return iter(column[own.start : own.stop])

    def find(self, group: str, index: int) -> dict[str, Any] | None:
        """The row of a job; ``None`` if there is no such job."""
        if group not in self.ranges:
            return None
        own = self.ranges[group]
        try:
            at = self._columns["index"].index(index, own.start, own.stop)
        except ValueError:
            return None
        return dict(zip(self.names, self.row(at), strict=True))

    def row(self, at: int) -> list[Any]:
        """The values of the job at a position, in the order of ``names``."""
        values = (self._columns[name][at] for name in self.names)
        return [None if value != value else value for value in values]

    def select(
        self, where: Mapping[str, object], text: str, sort: str | None, descending: bool
    ) -> Sequence[int]:
        """The positions of the jobs that match, in order."""
        found: Sequence[int] = range(len(self))
        if "group" in where:
            found = self.ranges.get(str(where["group"]), range(0))
        for name, value in where.items():
            if name != "group":
                column, wanted = self._columns[name], _wanted(value)
                found = [at for at in found if column[at] in wanted]
        if text:
            found = self._holding(text.lower(), found)
        if sort is None:
            return found
        order = self._sorted(sort, descending)
        if len(found) == len(self):
            return order
        kept = set(found)
        return [at for at in order if at in kept]

    def _sorted(self, name: str, descending: bool) -> list[int]:
        """All positions by a column; jobs without a value come last."""
        key = (name, descending)
        if key not in self._orders:
            column = self._columns[name]
            having = [at for at in range(len(self)) if _is_value(column[at])]
            try:
                having.sort(key=column.__getitem__, reverse=descending)
            except TypeError:  # numbers before texts
                having.sort(key=lambda at: _order(column[at]), reverse=descending)
            if len(having) < len(self):
                having += [at for at in range(len(self)) if not _is_value(column[at])]
            self._orders = {key: having}
        return self._orders[key]

    def _holding(self, text: str, among: Sequence[int]) -> list[int]:
        """The positions of jobs whose name or some value has a text in it."""
        groups, indices = self._columns["group"], self._columns["index"]
        columns = [
            column
            for name, column in self._columns.items()
            if name not in _NOT_SEARCHED
            # Numbers have no letters but that of 1e-05.
            and (not isinstance(column, array) or not text.strip("0123456789.+-e"))
        ]
        found = {at for at in among if text in f"{groups[at]}.{indices[at]}".lower()}
        for column in columns:
            if isinstance(column, array):
                found.update(at for at in among if text in str(column[at]))
                continue
            known: dict[int, bool] = {}  # by the value's identity: the columns hold it
            for at in among:
                value = column[at]
                if value is None:
                    continue
                holds = known.get(id(value))
                if holds is None:
                    holds = known[id(value)] = text in str(value).lower()
                if holds:
                    found.add(at)
        return [at for at in among if at in found]


def _once(texts: dict[Any, Any], values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield texts.setdefault(value, value)


def _wanted(value: object) -> tuple[object, ...]:
    """The values of a column that match a wanted value: an address has numbers as text."""
    if not isinstance(value, str):
        return (value,)
    try:
        return (value, float(value))
    except ValueError:
        return (value,)


def _is_value(value: object) -> bool:
    return value is not None and value == value


def _order(value: object) -> tuple[int, Any]:
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))
