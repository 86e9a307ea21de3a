"""Table of a run's jobs in memory, stored by column: a million jobs take about 150 MB."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Any

from ensemble_core.journal.job_rows import FIELDS, KINDS, TIMES

if TYPE_CHECKING:
    from ensemble_core.journal.job_history import Jobs, StoredJobs

#: Columns in which text is not searched: times, costs, and the group and index, which are part of
#: the job's name.
_NOT_SEARCHED = {*TIMES, "duration", "core_hours", "group", "index"}
#: A column with at most this many distinct values is searched value by value. If at most this many
#: jobs are requested in order, they are selected without sorting all jobs.
_FEW = 2000
_NAN = math.nan


class JobColumns:
    """The jobs of a run by group and index."""

    def __init__(self, jobs: Jobs | None) -> None:
        self.names = FIELDS if jobs is None else jobs.names
        self.ranges: dict[str, range] = {}
        kinds: Mapping[str, Collection[str]] = KINDS if jobs is None else jobs.kinds
        self._columns: dict[str, array[float] | list[Any]] = {
            name: array("d") if {*kinds.get(name, ("",))} <= {"f", "n"} else []
            for name in self.names
        }
        #: Cache of texts, so that equal texts are stored once.
        self._equal: dict[Any, Any] = {}
        self._only_text = {n for n in self.names if {*kinds.get(n, ("",))} <= {"s", "n"}}
        at = 0
        for batch in () if jobs is None else jobs.batches():
            for name, values in zip(self.names, batch, strict=True):
                self._columns[name].extend(self._to_column(name, values))
            group, count = batch[0][0], len(batch[0])
            first = self.ranges[group].start if group in self.ranges else at
            at += count
            self.ranges[group] = range(first, at)
        self._texts: dict[str, str | Collection[Any]] = {}

    def _to_column(self, name: str, values: Sequence[Any]) -> Iterable[Any]:
        """Convert values to the form in which their column stores them."""
        if isinstance(self._columns[name], array):
            with suppress(TypeError):  # fails for the few columns with None
                return array("d", values)
            return array("d", (_NAN if value is None else value for value in values))
        if name in self._only_text:
            return map(self._equal.setdefault, values, values)
        return values

    def update(self, jobs: StoredJobs) -> bool:
        """Update the rows of active jobs to a later state of the run.

        Return False if the table has to be read again, because there are new columns, new groups,
        or new jobs before existing ones.
        """
        of_numbers = {n for n, column in self._columns.items() if isinstance(column, array)}
        if jobs.names != self.names or any(not jobs.kinds[n] <= {"f", "n"} for n in of_numbers):
            return False
        self._only_text = {n for n in self._only_text if jobs.kinds[n] <= {"s", "n"}}
        numbers = self._columns["index"]
        for batch in jobs.active():
            own = self.ranges.get(batch[0][0])
            if own is None:
                return False
            places = [bisect_left(numbers, index, own.start, own.stop) for index in batch[1]]
            old = bisect_left(places, own.stop)
            if any(numbers[at] != n for at, n in zip(places[:old], batch[1], strict=False)):
                return False
            added = len(places) - old
            for name, values in zip(self.names, batch, strict=True):
                column: Any = self._columns[name]
                kept = [*self._to_column(name, values)]
                for at, value in zip(places, kept[:old], strict=False):
                    column[at] = value
                column[own.stop : own.stop] = (
                    array("d", kept[old:]) if name in of_numbers else kept[old:]
                )
            for group, other in self.ranges.items():
                if other.start >= own.stop:
                    self.ranges[group] = range(other.start + added, other.stop + added)
            self.ranges[batch[0][0]] = range(own.start, own.stop + added)
        self._texts = {}
        return True

    def __len__(self) -> int:
        return sum(map(len, self.ranges.values()))

    def column(self, name: str, group: str) -> Iterator[Any]:
        """Yield the values of a group's jobs, with ``None`` for missing values."""
        own = self.ranges[group]
        column = self._columns[name]
        if isinstance(column, array):
            return (value if value == value else None for value in column[own.start : own.stop])
        return iter(column[own.start : own.stop])

    def find(self, group: str, index: int) -> dict[str, Any] | None:
        """Return the row of a job, or ``None`` if the job does not exist."""
        if group not in self.ranges:
            return None
        own = self.ranges[group]
        try:
            at = self._columns["index"].index(index, own.start, own.stop)
        except ValueError:
            return None
        return dict(zip(self.names, self.row(at), strict=True))

    def row(self, at: int) -> list[Any]:
        """Return the values of the job at this position, in the order of ``names``."""
        values = (self._columns[name][at] for name in self.names)
        return [None if value != value else value for value in values]

    def select(
        self,
        where: Mapping[str, object],
        text: str,
        sort: str | None,
        descending: bool,
        until: int | None = None,
    ) -> tuple[Sequence[int], int]:
        """Return the positions of matching jobs in order, and how many jobs match.

        With ``until``, only the first ``until`` positions are in order, which is faster.
        """
        found: Sequence[int] = range(len(self))
        if "group" in where:
            found = self.ranges.get(str(where["group"]), range(0))
        for name, value in where.items():
            if name != "group":
                wanted, values = _matching_values(value), self._values(name, found)
                found = [at for at, own in zip(found, values, strict=True) if own in wanted]
        if text:
            found = self._holding(text.lower(), found)
        if sort is None:
            return found, len(found)
        return self._sort_positions(found, sort, descending, until), len(found)

    def _values(self, name: str, places: Sequence[int]) -> Iterable[Any]:
        column = self._columns[name]
        if isinstance(places, range):
            return column[places.start : places.stop]
        return map(column.__getitem__, places)

    def _sort_positions(
        self, found: Sequence[int], name: str, descending: bool, until: int | None
    ) -> Sequence[int]:
        """Sort positions by a column. Jobs without a value come last."""
        column = self._columns[name]
        values = self._values(name, found)
        having = [at for at, v in zip(found, values, strict=True) if v is not None and v == v]
        key: Callable[[int], Any] = column.__getitem__
        kinds = set() if isinstance(column, array) else {type(column[at]) for at in having}
        if not (kinds <= {int, float, bool} or kinds == {str}):

            def key(at: int) -> tuple[int, Any]:
                return _order(column[at])

        if until is not None and until <= min(_FEW, len(having)):
            return (nlargest if descending else nsmallest)(until, having, key)
        having.sort(key=key, reverse=descending)
        if len(having) < len(found):
            kept = set(having)
            having += [at for at in found if at not in kept]
        return having

    def _holding(self, text: str, among: Sequence[int]) -> list[int]:
        """Return the positions of those jobs whose name or values contain a text."""
        marks = bytearray(len(self))
        # Numbers contain no letters except e, as in 1e-05.
        with_numbers = not text.strip("0123456789.+-e")
        for name, column in [("", []), *self._columns.items()]:
            if name in _NOT_SEARCHED or (isinstance(column, array) and not with_numbers):
                continue
            searched = self._search_data(name)
            if isinstance(searched, str):
                for at in _lines_with(searched, text):
                    marks[at] = 1
                continue
            wanted = {value for value in searched if text in str(value).lower()}
            if wanted:
                for at in [at for at, value in enumerate(column) if value in wanted]:
                    marks[at] = 1
        return [at for at in among if marks[at]]

    def _search_data(self, name: str) -> str | Collection[Any]:
        """Return the data of a column in the form in which text is searched.

        If the column has few distinct values, these are the values. Otherwise, it is one text with
        a line for each job. The column ``""`` has the names of the jobs.
        """
        if name not in self._texts:
            column: Iterable[Any]
            if not name:
                groups, indices = self._columns["group"], self._columns["index"]
                column = (f"{a}.{b}" for a, b in zip(groups, indices, strict=True))
            else:
                column = self._columns[name]
                with suppress(TypeError):  # for lists and mappings
                    values = {v for v in set(column) if v is not None and v == v}
                    # True equals 1, but as texts they differ.
                    if len(values) <= _FEW and not any(isinstance(v, bool) for v in values):
                        self._texts[name] = values
                        return values
            self._texts[name] = "\n".join(map(_line, column))
        return self._texts[name]


def _matching_values(value: object) -> tuple[object, ...]:
    """Return the values that match a requested value. In URLs, numbers are texts."""
    if not isinstance(value, str):
        return (value,)
    try:
        return (value, float(value))
    except ValueError:
        return (value,)


def _line(value: object) -> str:
    return "" if value is None or value != value else str(value).lower().replace("\n", " ")


def _lines_with(lines: str, text: str) -> Iterator[int]:
    """Yield the numbers of the lines that contain a text."""
    number = at = 0
    while (found := lines.find(text, at)) >= 0:
        number += lines.count("\n", at, found)
        yield number
        at = lines.find("\n", found)
        if at < 0:
            return


def _order(value: object) -> tuple[int, Any]:
    """Return a sort key for a value. Numbers come before texts."""
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))
