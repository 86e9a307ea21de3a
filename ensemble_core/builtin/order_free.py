"""Statistics with equal results, bit for bit, in whichever order values are added and removed."""

from __future__ import annotations

import heapq
import math
from typing import Literal

Moment = Literal["sum", "mean", "variance", "error"]

#: Sort key: the signed value, then a tie-break between equal values (an integer before a float, 0.0
#: before -0.0).
_Key = tuple[float, int]


class Extreme:
    """Smallest (``sign`` 1) or largest (``sign`` -1) value."""

    __slots__ = ("_grows", "_heap", "_live", "_sign")

    def __init__(self, sign: int, *, grows: bool) -> None:
        self._sign = sign
        #: True if values are only added. Then only the extreme value is stored.
        self._grows = grows
        #: May contain removed values, until they reach the top.
        self._heap: list[_Key] = []
        #: How often each value has been added and not removed.
        self._live: dict[_Key, int] = {}

    def _key(self, value: float) -> _Key:
        is_float = isinstance(value, float)
        below = is_float and not value and math.copysign(1.0, value) < 0
        return self._sign * value, is_float + below

    def add(self, value: float) -> None:
        """Add a value."""
        key, live = self._key(value), self._live
        if self._grows:
            self._heap = [min(key, *self._heap)] if self._heap else [key]
            return
        count = live.get(key, 0)
        live[key] = count + 1
        if not count:
            heapq.heappush(self._heap, key)

    def remove(self, value: float) -> None:
        """Remove a value that was added."""
        key, live = self._key(value), self._live
        if live[key] > 1:
            live[key] -= 1
            return
        del live[key]
        if len(self._heap) > 2 * len(live) + 64:
            self._heap = list(live)
            heapq.heapify(self._heap)

    def get(self) -> float | None:
        """Return the current result, or ``None`` without values."""
        heap, live = self._heap, self._live
        while heap and not self._grows and heap[0] not in live:
            heapq.heappop(heap)
        return self._sign * heap[0][0] if heap else None


class ExactMoments:
    """Sum, mean, sample variance or standard error of the mean, rounded only once at the end."""

    __slots__ = ("_moment", "sums")

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self.sums = _Sums(squares=moment in ("variance", "error"))

    def share(self, other: object) -> bool:
        """Share the sums of another statistic over the same values.

        Return False if ``other`` has no such sums.

        Both must be new. From then on, add values to ``other`` only.
        """
        if not isinstance(other, ExactMoments):
            return False
        other.sums.with_squares |= self.sums.with_squares
        self.sums = other.sums
        return True

    def add(self, value: float) -> None:
        """Add a value."""
        self.sums.put(value, 1)

    def remove(self, value: float) -> None:
        """Remove a value that was added."""
        self.sums.put(value, -1)

    def get(self) -> float | None:
        """Return the current result, or ``None``.

        It is ``None`` if there are too few values or the result is too large for a float.
        """
        sums = self.sums
        count, shift, total = sums.count, sums.shift, sums.total
        try:
            if self._moment == "mean":
                return total / (count << shift) if count else None
            if self._moment == "sum":
                return total / (1 << shift) if count else None
            if count < 2:
                return None
            of_squares = count * sums.squares - total * total
            if self._moment == "variance":
                return of_squares / (count * (count - 1) << 2 * shift)
            return math.sqrt(of_squares / (count * count * (count - 1) << 2 * shift))
        except OverflowError:
            return None


class _Sums:
    """Exact sums of values and, with ``with_squares``, of their squares."""

    __slots__ = ("count", "shift", "squares", "total", "with_squares")

    def __init__(self, *, squares: bool) -> None:
        self.with_squares = squares
        # The unit of the sums is 2**-shift: so small that every value is an integer multiple of it.
        self.count = self.shift = self.squares = self.total = 0

    def put(self, value: float, sign: int) -> None:
        """Add a value ``sign`` times."""
        units, denominator = value.as_integer_ratio()
        shift = denominator.bit_length() - 1
        more = shift - self.shift
        if more > 0:
            self.total <<= more
            self.squares <<= 2 * more
            self.shift = shift
        elif more:
            units <<= -more
        self.count += sign
        self.total += sign * units
        if self.with_squares:
            self.squares += sign * units * units
