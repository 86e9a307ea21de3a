"""Estimate of a quantile in constant memory: the P² algorithm of Jain and Chlamtac (1985).

Five markers stand at the smallest value, the quantile, the largest value, and halfway in between.
Each new value moves the markers along the parabola through their neighbours. The arithmetic is in
the order of river's ``Quantile``, so that both give the same number to the last bit (a test holds
it); river itself would bring scipy into every installation. Used by ``reducers``.
"""

from __future__ import annotations

__all__ = ["Interquartile", "MedianDeviation", "QuantileEstimate"]


class QuantileEstimate:
    """P² estimate of the quantile ``q``, which is between 0 and 1."""

    __slots__ = ("_heights", "_places", "_q", "_wanted")

    def __init__(self, q: float) -> None:
        self._q = q
        #: The value at each marker; how many values it should have up to itself, and how many it
        #: has. Until there are five values, the heights are the values in order.
        self._heights: list[float] = []
        self._wanted = [1.0, 1.0 + 2.0 * q, 1.0 + 4.0 * q, 3.0 + 2.0 * q, 5.0]
        self._places = [1.0, 2.0, 3.0, 4.0, 5.0]

    def update(self, value: float) -> None:
        heights, places, wanted = self._heights, self._places, self._wanted
        if len(heights) < 5:
            heights.append(value)
            heights.sort()
            return
        if value < heights[1]:
            above = 1
            if value < heights[0]:
                heights[0] = value
        elif value < heights[3]:
            above = 2 if value < heights[2] else 3
        else:
            above = 4
            if value > heights[4]:
                heights[4] = value
        for marker in range(above, 5):
            places[marker] += 1.0
        q = self._q
        wanted[1] += q / 2.0
        wanted[2] += q
        wanted[3] += (1.0 + q) / 2.0
        for marker in (1, 2, 3):
            ahead = wanted[marker] - places[marker]
            if ahead >= 1.0:
                if places[marker + 1] - places[marker] > 1.0:
                    self._move(marker, 1)
            elif ahead <= -1.0 and places[marker - 1] - places[marker] < -1.0:
                self._move(marker, -1)

    def _move(self, marker: int, step: int) -> None:
        """Move a marker by one place, along a parabola; along a line where that would pass a
        neighbour."""
        heights, places = self._heights, self._places
        low, height, high = heights[marker - 1 : marker + 2]
        before, place, after = places[marker - 1 : marker + 2]
        left = (place - before + step) * (high - height) / (after - place)
        right = (after - place - step) * (height - low) / (place - before)
        moved = height + step / (after - before) * (left + right)
        if not low < moved < high:
            beyond = marker + step
            moved = height + step * (heights[beyond] - height) / (places[beyond] - place)
        heights[marker], places[marker] = moved, place + step

    def get(self) -> float:
        heights = self._heights
        if self._places[4] > 5.0:
            return heights[2]
        if not heights:
            return 0.0
        return heights[min(int(len(heights) * self._q), len(heights) - 1)]


class Interquartile:
    """Estimate of the interquartile range: the difference of two quantiles."""

    __slots__ = ("_lower", "_upper")

    def __init__(self) -> None:
        self._lower, self._upper = QuantileEstimate(0.25), QuantileEstimate(0.75)

    def update(self, value: float) -> None:
        self._lower.update(value)
        self._upper.update(value)

    def get(self) -> float:
        return self._upper.get() - self._lower.get()


class MedianDeviation:
    """Estimate of the median absolute deviation: the median of the distances to what the median
    was then."""

    __slots__ = ("_distance", "_median")

    def __init__(self) -> None:
        self._median, self._distance = QuantileEstimate(0.5), QuantileEstimate(0.5)

    def update(self, value: float) -> None:
        self._median.update(value)
        self._distance.update(abs(value - self._median.get()))

    def get(self) -> float:
        return self._distance.get()
