"""Arithmetic of the built-in statistics, over all values or over a window of the last ones.

The results of :class:`Extreme` and :class:`ExactMoments` are equal, bit for bit, in whichever order
values are added and removed.
"""

from __future__ import annotations

import functools
import heapq
import math
import operator
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ensemble_core.metrics.series import OrderFree

#: Maximum number of values in a window.
LONGEST = 10_000
#: Into how many parts the window of ``rate`` is divided. This number limits the precision.
_BUCKETS = 60

Reduce = Callable[[Sequence[float]], float | None]
Moment = Literal["sum", "mean", "variance", "error"]

#: Sort key: the signed value, then a tie-break between equal values (an integer before a float, 0.0
#: before -0.0).
_Key = tuple[float, int]


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.fsum((value - middle) * (value - middle) for value in values) / (len(values) - 1)


def error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean."""
    return math.sqrt(variance(values) / len(values)) if len(values) > 1 else None


def change(values: Sequence[float], least: int) -> float | None:
    """Return the last value minus the first, or ``None`` for fewer than ``least`` values."""
    return values[-1] - values[0] if len(values) >= least else None


def add_in_order(values: Sequence[float]) -> float:
    """Return the sum of the values, added in order, as if they had arrived one by one."""
    return functools.reduce(operator.add, values)


def moving_average(alpha: float, values: Sequence[float]) -> float | None:
    """Return the exponentially weighted moving average.

    The first of the ``values`` is the previous average, or ``None``.
    """
    mean, rest = None, 1.0 - alpha
    for value in values:
        mean = value if mean is None else alpha * value + rest * mean
    return mean


def newest(values: Sequence[float]) -> float:
    """Return the last of the values."""
    return values[-1]


def in_order(reduce: Reduce, values: Sequence[float]) -> float | None:
    """Return ``reduce`` of the sorted values."""
    return reduce(sorted(values))


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return a quantile of sorted values, with linear interpolation between neighbours."""
    place = q * (len(ordered) - 1)
    below = int(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def iqr(ordered: Sequence[float]) -> float:
    """Return the interquartile range."""
    return quantile(ordered, 0.75) - quantile(ordered, 0.25)


def mad(ordered: Sequence[float]) -> float:
    """Return the median absolute deviation."""
    median = quantile(ordered, 0.5)
    return quantile(sorted(abs(value - median) for value in ordered), 0.5)


def reduce_finite(values: Sequence[float], reduce: Reduce) -> float | None:
    """Return the result of ``reduce`` for the values.

    Return ``None`` without values, or if the result is too large for a float.
    """
    if not values:
        return None
    try:
        result = reduce(values)
    except OverflowError:
        return None
    return result if result is not None and math.isfinite(result) else None


class Fold:
    """Statistic over all values, computed from the previous result and the new values."""

    __slots__ = ("_function", "_result")

    def __init__(self, function: Callable[[Sequence[Any]], Any], start: float | None) -> None:
        self._function = function
        self._result = start

    def update(self, value: float) -> None:
        self._result = self._function((self._result, value))

    def update_all(self, values: Sequence[float]) -> None:
        self._result = self._function((self._result, *values))

    def get(self) -> float | None:
        return self._result

    def order_free(self, *, grows: bool) -> OrderFree | None:
        if self._function in (min, max):
            return Extreme(1 if self._function is min else -1, grows=grows)
        return ExactMoments("sum") if self._function is add_in_order else None


class Unreadable:
    """Number of values that could not be read, which arrive as nan."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def update(self, value: float) -> None:
        self._count += value != value

    def update_all(self, values: Sequence[float]) -> None:
        """Ignore finite numbers."""

    def get(self) -> int:
        return self._count


class Moments:
    """Mean or sample variance of all values, by Welford's algorithm."""

    __slots__ = ("_count", "_mean", "_squares", "_variance")

    def __init__(self, *, variance: bool) -> None:
        self._variance = variance
        self._count = self._mean = self._squares = 0.0

    def update(self, value: float) -> None:
        self._count += 1.0
        distance = value - self._mean
        self._mean = mean = self._mean + 1.0 / self._count * distance
        self._squares += distance * (value - mean)

    def update_all(self, values: Sequence[float]) -> None:
        count, mean, squares = self._count, self._mean, self._squares
        for value in values:
            count += 1.0
            distance = value - mean
            mean += 1.0 / count * distance
            squares += distance * (value - mean)
        self._count, self._mean, self._squares = count, mean, squares

    def get(self) -> float:
        if not self._variance:
            return self._mean
        return self._squares / (self._count - 1.0) if self._count > 1.0 else 0.0

    def order_free(self, *, grows: bool) -> OrderFree:
        return ExactMoments("variance" if self._variance else "mean")


class StandardError(Moments):
    """Standard error of the mean of all values: the square root of variance / count.

    ``None`` for fewer than two values.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(variance=True)

    def get(self) -> float | None:  # type: ignore[override]  # None for fewer than two values
        return math.sqrt(super().get() / self._count) if self._count > 1.0 else None

    def order_free(self, *, grows: bool) -> OrderFree:
        return ExactMoments("error")


class CountWindow:
    """Exact statistic over the last ``size`` values."""

    __slots__ = ("_reduce", "_values")

    def __init__(self, size: int, reduce: Reduce) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._reduce = reduce

    def update(self, value: float) -> None:
        self._values.append(value)

    def get(self) -> float | None:
        return reduce_finite(self._values, self._reduce)

    def __deepcopy__(self, memo: dict[int, Any]) -> CountWindow:
        twin = CountWindow(1, self._reduce)
        twin._values = self._values.copy()
        return twin


class TimeWindow:
    """Exact statistic over the last ``seconds`` seconds, but at most over ``LONGEST`` values."""

    __slots__ = ("_reduce", "_seconds", "_stamps", "_values")

    def __init__(self, seconds: float, reduce: Reduce) -> None:
        self._seconds = seconds
        self._reduce = reduce
        self._values: deque[float] = deque(maxlen=LONGEST)
        self._stamps: deque[float] = deque(maxlen=LONGEST)

    def update(self, value: float, timestamp: float) -> None:
        stamps = self._stamps
        if stamps and timestamp < stamps[-1]:  # a late value
            timestamp = stamps[-1]
        self._values.append(value)
        stamps.append(timestamp)
        while stamps[0] <= timestamp - self._seconds:
            stamps.popleft()
            self._values.popleft()

    def get(self, now: float) -> float | None:
        # Don't drop old values here: reading must not change what rules see later.
        first = bisect_right(self._stamps, now - self._seconds)
        return reduce_finite(list(self._values)[first:], self._reduce)

    def __deepcopy__(self, memo: dict[int, Any]) -> TimeWindow:
        twin = TimeWindow(self._seconds, self._reduce)
        twin._values = self._values.copy()
        twin._stamps = self._stamps.copy()
        return twin


class Rate:
    """Values per second over the last ``window`` seconds, to within a sixtieth of the window.

    The first value is not counted; it only starts the first window. The rate is ``None`` until a
    tenth of this window has passed.
    """

    __slots__ = ("_buckets", "_first", "_width", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._width = window / _BUCKETS
        self._first: float | None = None
        self._buckets: deque[list[int]] = deque()  # [index of the part, values in it], ascending

    def update(self, value: float, timestamp: float) -> None:
        if self._first is None:
            self._first = timestamp
            return
        # Like the window, a part includes its end but not its beginning.
        part = math.ceil((timestamp - self._first) / self._width - 1e-9) - 1
        buckets = self._buckets
        if buckets and part <= buckets[-1][0]:
            buckets[-1][1] += 1  # a late value counts in the latest part
        else:
            buckets.append([max(part, 0), 1])
            while buckets[0][0] < part - _BUCKETS:
                buckets.popleft()

    def get(self, now: float) -> float | None:
        if self._first is None:
            return None
        passed = now - self._first
        if passed < self._window / 10:
            return None
        begin = (passed - self._window) / self._width
        count = 0.0
        for part, values in self._buckets:
            # If the window begins within a part, the values in that part count proportionally.
            count += values * min(1.0, max(0.0, part + 1 - begin))
        return count / min(passed, self._window)


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
