"""Curve of one job's values of one variable, thinned to a limited number of points."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

#: Number of floats that a bucket stores: four points with four values each.
_WIDTH = 16
_NAN = math.nan
_finite = math.isfinite


class Point(NamedTuple):
    """One value of a curve."""

    row: float  # index among the curve's values
    clock: float  # step or time that the job printed with the value; nan if none
    time: float  # when the value was read, in seconds since the epoch
    value: float  # nan if the printed value was not finite


#: A point while the curve is read. It is a plain tuple, because creating a named tuple takes twice
#: as long.
_Numbers = tuple[float, float, float, float]


class Curve:
    """Points in reading order, thinned so that extreme values stay.

    Consecutive values form a bucket, of which the first, lowest, highest and last are kept. If
    there are more than ``limit`` buckets, neighbours are merged.
    """

    __slots__ = (
        "_breaks",
        "_clock",
        "_count",
        "_now",
        "_numbers",
        "_restarted",
        "_span",
        "clocked",
        "gaps",
        "last",
        "limit",
        "newest",
        "rows",
    )

    def __init__(self, limit: int) -> None:
        self.limit = max(2, limit)
        #: Numbers of all values, of those that are not finite, and of those with a clock.
        self.rows = self.gaps = self.clocked = 0
        #: The newest finite point, and the newest point of all, as :class:`Point`.
        self.last: _Numbers | None = None
        self.newest: _Numbers | None = None
        self._span = 1
        self._numbers = array("d")
        self._breaks = bytearray()
        self._now: list[_Numbers] = []
        self._count = 0
        self._restarted = False
        self._clock = -math.inf

    def add(
        self, clock: float | None, time: float, value: float, *, restarted: bool = False
    ) -> None:
        """Add a row. The flag ``restarted`` says that the output restarted before the row.

        Raises ``TypeError`` or ``OverflowError`` for a value that is not a number, and then adds
        nothing.
        """
        finite = _finite(value)
        at = _NAN
        if clock is not None and _finite(clock):
            at = clock
            self.clocked += 1
            if at < self._clock:
                restarted = True
            self._clock = at
        if restarted and self.rows:
            self._close()
            self._restarted = True
        row = self.rows
        self.rows = row + 1
        now = self._now
        if finite:
            self.newest = self.last = point = (row, at, time, value)
            if not now or now[0][3] != now[0][3]:
                self._now = [point, point, point, point]
            else:
                if value < now[1][3]:
                    now[1] = point
                elif value > now[2][3]:
                    now[2] = point
                now[3] = point
        else:
            self.gaps += 1
            self.newest = point = (row, at, time, _NAN)
            if not now:
                self._now = [point, point, point, point]
        self._count += 1
        if self._count >= self._span:
            self._close()

    def here(self) -> Point | None:
        """Return the newest row, with the newest finite value (nan without one)."""
        if self.newest is None:
            return None
        row, clock, time, _ = self.newest
        return Point(row, clock, time, _NAN if self.last is None else self.last[3])

    def shrink(self, limit: int) -> None:
        """Keep at most this many buckets from now on."""
        self.limit = max(2, limit)
        while len(self._breaks) > self.limit:
            self._join()

    def _close(self) -> None:
        """Complete the current bucket."""
        if not self._now:
            return
        for point in self._now:
            self._numbers.extend(point)
        self._breaks.append(self._restarted)
        self._now, self._count, self._restarted = [], 0, False
        while len(self._breaks) > self.limit:
            self._join()

    def _join(self) -> None:
        """Merge neighbouring buckets.

        Buckets on both sides of a break are merged only if there are breaks between nearly all
        buckets.
        """
        numbers, breaks = self._numbers, self._breaks
        freely = sum(breaks) > self.limit // 4
        joined, kept = array("d"), bytearray()
        at, count = 0, len(breaks)
        while at < count:
            here = numbers[at * _WIDTH : (at + 1) * _WIDTH]
            kept.append(breaks[at])
            at += 1
            if at < count and (freely or not breaks[at]):
                here = _merge(here, numbers[at * _WIDTH : (at + 1) * _WIDTH])
                at += 1
            joined.extend(here)
        self._numbers, self._breaks = joined, kept
        self._span *= 2

    def points(self) -> Iterator[tuple[Point, bool]]:
        """Return the kept points in order, each with a flag whether the output restarted before
        it.
        """
        numbers = self._numbers
        for bucket, begun in enumerate(self._breaks):
            at = bucket * _WIDTH
            found = [Point(*numbers[at + 4 * n : at + 4 * n + 4]) for n in range(4)]
            yield from _first_of_each_row(found, bool(begun))
        if self._now:
            yield from _first_of_each_row([Point(*point) for point in self._now], self._restarted)


def _first_of_each_row(found: list[Point], begun: bool) -> Iterator[tuple[Point, bool]]:
    before = -1.0
    for point in sorted(found, key=lambda point: point.row):
        if point.row != before:
            yield point, begun
            before, begun = point.row, False


def _merge(one: array[float], two: array[float]) -> array[float]:
    if one[3] != one[3]:
        return two
    if two[3] != two[3]:
        return one
    low = one if one[7] <= two[7] else two
    high = one if one[11] >= two[11] else two
    return one[:4] + low[4:8] + high[8:12] + two[12:]
