"""Reducers whose result does not depend on the order of the values, to the last bit.

Values can also be removed. Tables use these reducers for their statistics, so that the cost of
adding a job does not grow with the number of jobs and rows.
"""

from __future__ import annotations

import heapq
import math
from typing import Literal

__all__ = ["ExactMoments", "Extreme", "Moment"]

Moment = Literal["sum", "mean", "variance", "error"]

#: Sort key: the signed value, then a tie-break between equal values (an integer before a float, 0.0
#: before -0.0).
_Key = tuple[float, int]


class Extreme:
    """Smallest (``sign`` 1) or largest (``sign`` -1) value, in a heap.

    A removed value leaves the heap when it reaches the top. With ``grows``, values are only added,
    so only the extreme is kept.
    """

    __slots__ = ("_grows", "_heap", "_live", "_sign")

    def __init__(self, sign: int, *, grows: bool) -> None:
        self._sign = sign
        self._grows = grows
        self._heap: list[_Key] = []
        #: How many times each value is present (added and not removed).
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
    """Sum, mean, sample variance or standard error of the mean, rounded only once, at the end.

    The sums are exact, because they are kept as integers in units of ``2 ** -shift``.
    """

    __slots__ = ("_count", "_moment", "_shift", "_squares", "_total")

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._count = self._shift = self._squares = self._total = 0

    def add(self, value: float) -> None:
        """Add a value."""
        self._put(value, 1)

    def remove(self, value: float) -> None:
        """Remove a value that was added."""
        self._put(value, -1)

    def _put(self, value: float, sign: int) -> None:
        units, denominator = value.as_integer_ratio()
        shift = denominator.bit_length() - 1
        more = shift - self._shift
        if more > 0:
            self._total <<= more
            self._squares <<= 2 * more
            self._shift = shift
        else:
            units <<= -more
        self._count += sign
        self._total += sign * units
        if self._moment in ("variance", "error"):
            self._squares += sign * units * units

    def get(self) -> float | None:
        """Return the current result, or ``None`` with too few values or if the result is too large
        for a float."""
        count, shift = self._count, self._shift
        try:
            if self._moment == "sum":
                return self._total / (1 << shift) if count else None
            if self._moment == "mean":
                return self._total / (count << shift) if count else None
            if count < 2:
                return None
            of_squares = count * self._squares - self._total * self._total
            if self._moment == "variance":
                return of_squares / (count * (count - 1) << 2 * shift)
            return math.sqrt(of_squares / (count * count * (count - 1) << 2 * shift))
        except OverflowError:
            return None
