"""Quantiles: exact for the first values, then estimates in constant memory.

The estimates are those of the P² algorithm of Jain and Chlamtac (1985).
"""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any

from ensemble_core.builtin.statistic_arithmetic import Reduce, reduce_finite
from ensemble_core.metrics.statistic_state import put_state, state_of

#: Up to this number of values, quantiles without a window are exact. Estimates from few values are
#: poor: the estimated 99th percentile of six values may be smaller than five of them.
EXACT = 1000


# The order of operations is that of the class ``Quantile`` in the Python library river, so both
# give the same results bit for bit (a test checks this). River itself would add scipy to every
# installation.
class QuantileEstimate:
    """P² estimate of the quantile ``q``, which is between 0 and 1."""

    __slots__ = ("_heights", "_places", "_q", "_wanted")

    def __init__(self, q: float) -> None:
        self._q = q
        #: The values at five markers: the smallest value, the quantile, the largest value, and
        #: halfway between these. With fewer than five values: the sorted values.
        self._heights: list[float] = []
        #: ``_places``: the number of values up to each marker except the first. ``_wanted``: the
        #: ideal number for each of the three inner markers.
        self._places = (2.0, 3.0, 4.0, 5.0)
        self._wanted = (1.0 + 2.0 * q, 1.0 + 4.0 * q, 3.0 + 2.0 * q)

    def update(self, value: float) -> None:
        self.follow((value,))

    def update_all(self, values: Sequence[float]) -> None:
        self.follow(values)

    def follow(self, values: Sequence[float]) -> list[float]:
        """Add values, and return the estimate after each of them."""
        found: list[float] = []
        begun = len(self._heights)
        for value in values[: 5 - begun] if begun < 5 else ():
            self._heights.append(value)
            self._heights.sort()
            found.append(self.get())
        if len(found) < len(values):
            self._move_markers(values[len(found) :] if found else values, found)
        return found

    def _move_markers(self, values: Sequence[float], found: list[float]) -> None:
        # Unrolled, because loops over the markers would take twice as long.
        h0, h1, h2, h3, h4 = self._heights
        n1, n2, n3, n4 = self._places
        w1, w2, w3 = self._wanted
        q, half, more = self._q, self._q / 2.0, (1.0 + self._q) / 2.0
        for value in values:
            n4 += 1.0
            if value < h1:
                n1 += 1.0
                n2 += 1.0
                n3 += 1.0
                if value < h0:
                    h0 = value
            elif value < h3:
                n3 += 1.0
                if value < h2:
                    n2 += 1.0
            elif value > h4:
                h4 = value
            w1 += half
            w2 += q
            w3 += more
            ahead = w1 - n1
            if ahead >= 1.0:
                if n2 - n1 > 1.0:
                    h1 = _moved_height(h0, h1, h2, 1.0, n1, n2, 1.0)
                    n1 += 1.0
            elif ahead <= -1.0 and n1 > 2.0:
                h1 = _moved_height(h0, h1, h2, 1.0, n1, n2, -1.0)
                n1 -= 1.0
            ahead = w2 - n2
            if ahead >= 1.0:
                if n3 - n2 > 1.0:
                    h2 = _moved_height(h1, h2, h3, n1, n2, n3, 1.0)
                    n2 += 1.0
            elif ahead <= -1.0 and n2 - n1 > 1.0:
                h2 = _moved_height(h1, h2, h3, n1, n2, n3, -1.0)
                n2 -= 1.0
            ahead = w3 - n3
            if ahead >= 1.0:
                if n4 - n3 > 1.0:
                    h3 = _moved_height(h2, h3, h4, n2, n3, n4, 1.0)
                    n3 += 1.0
            elif ahead <= -1.0 and n3 - n2 > 1.0:
                h3 = _moved_height(h2, h3, h4, n2, n3, n4, -1.0)
                n3 -= 1.0
            found.append(h2)
        self._heights = [h0, h1, h2, h3, h4]
        self._places = n1, n2, n3, n4
        self._wanted = w1, w2, w3

    def get(self) -> float:
        heights = self._heights
        if self._places[3] > 5.0:
            return heights[2]
        if not heights:
            return 0.0
        return heights[min(int(len(heights) * self._q), len(heights) - 1)]


def _moved_height(
    low: float, height: float, high: float, before: float, place: float, after: float, step: float
) -> float:
    """Return the height of a marker after it moves by ``step`` (1 or -1).

    The move follows a parabola, or a line if the parabola would pass a neighbour. ``low`` and
    ``high`` are the heights of the neighbours; ``before`` and ``after`` are their places.
    """
    left = (place - before + step) * (high - height) / (after - place)
    right = (after - place - step) * (height - low) / (place - before)
    moved = height + step / (after - before) * (left + right)
    if low < moved < high:
        return moved
    if step > 0.0:
        return height + step * (high - height) / (after - place)
    return height + step * (low - height) / (before - place)


class Interquartile:
    """Estimate of the interquartile range: the difference of two estimated quantiles."""

    __slots__ = ("_lower", "_upper")

    def __init__(self) -> None:
        self._lower, self._upper = QuantileEstimate(0.25), QuantileEstimate(0.75)

    def update(self, value: float) -> None:
        self.update_all((value,))

    def update_all(self, values: Sequence[float]) -> None:
        self._lower.update_all(values)
        self._upper.update_all(values)

    def get(self) -> float:
        return self._upper.get() - self._lower.get()


class MedianDeviation:
    """Estimate of the median absolute deviation: the median distance from the current median."""

    __slots__ = ("_distance", "_median")

    def __init__(self) -> None:
        self._median, self._distance = QuantileEstimate(0.5), QuantileEstimate(0.5)

    def update(self, value: float) -> None:
        self.update_all((value,))

    def update_all(self, values: Sequence[float]) -> None:
        medians = self._median.follow(values)
        self._distance.update_all(
            [abs(value - median) for value, median in zip(values, medians, strict=True)]
        )

    def get(self) -> float:
        return self._distance.get()


class ExactFirst:
    """Statistic that is exact for the first values, and an estimate after that."""

    __slots__ = ("_estimate", "_kept", "_model", "_ordered", "_reduce")

    def __init__(self, estimate: Callable[[], Any], reduce: Reduce) -> None:
        self._estimate = estimate
        self._reduce = reduce
        self._model: Any = None
        #: ``_kept``: the values in the order of arrival, which the estimate needs. ``_ordered``: a
        #: sorted copy of the values up to the last read.
        self._kept: list[float] = []
        self._ordered: list[float] = []

    def update(self, value: float) -> None:
        if self._model is None and len(self._kept) < EXACT:
            self._kept.append(value)
        else:
            self.update_all((value,))

    def update_all(self, values: Sequence[float]) -> None:
        if self._model is None:
            self._kept.extend(values)
            if len(self._kept) <= EXACT:
                return
            self._model = self._estimate()
            values, self._kept, self._ordered = self._kept, [], []
        self._model.update_all(values)

    def get(self) -> float | None:
        if self._model is not None:
            estimate: float = self._model.get()
            return estimate
        kept, ordered = self._kept, self._ordered
        if len(ordered) + 1 == len(kept):
            insort(ordered, kept[-1])
        elif len(ordered) < len(kept):
            self._ordered = ordered = sorted(kept)
        return reduce_finite(ordered, self._reduce)

    def __getstate__(self) -> tuple[Any, ...]:
        model = self._model
        state = None if model is None else state_of(model, self._estimate())
        return self._kept, self._ordered, model is not None, state

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._kept, self._ordered, estimated, model = state
        if estimated:
            self._model = self._estimate()
            put_state(self._model, model)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExactFirst:
        twin = ExactFirst(self._estimate, self._reduce)
        twin._model = copy.deepcopy(self._model, memo)
        twin._kept, twin._ordered = self._kept.copy(), self._ordered.copy()
        return twin
