"""The built-in statistics: streaming reducers, most of them river's. A plugin like any other.

Over all values, ``variance``, ``mean``, ``max``, ``min``, ``sum`` and ``ewma`` are river's own
classes. The quantiles (``median``, ``p90``, ``iqr``, ``mad`` …) are exact for the first
``EXACT`` values, which is where river's estimate is poor (the 99th percentile of six values may
come out below the largest five), and river's constant-memory estimate after that.

With the option ``window`` a statistic is over the last values only, and is exact: it is computed
from the values in the window rather than by adding the new and taking away the old, which drifts.
``window: 50`` is the last 50 values; ``window: 60s`` (``10m``, ``1h30m``) those of the last minute.
Either way at most ``LONGEST`` values are kept; older ones leave early.

Values are finite: the metric store drops others before any statistic sees them. Nothing here looks
at a clock. river is imported when a statistic is built, not before.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import Statistic, TimedStatistic
from ensemble_core.plugin.hookspecs import StatisticPlugin, hookimpl

__all__ = ["EXACT", "LONGEST", "ensemble_metrics"]

#: Values up to which quantiles without a window are exact.
EXACT = 1000
#: Values that a window keeps at most.
LONGEST = 10_000
#: Parts of the window of ``rate``; its value is that exact.
_BUCKETS = 60

Reduce = Callable[[Sequence[float]], float]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = r"^(?=[\d.]*[1-9])(\d+(\.\d+)?[smhd])+$"
_WINDOW: Mapping[str, Any] = {
    "description": "Only the last values: how many, or those of how long (60s, 10m, 1h30m).",
    "oneOf": [
        {"type": "integer", "minimum": 1, "maximum": LONGEST},
        {"type": "string", "pattern": _DURATION},
    ],
}


def _schema(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


@hookimpl
def ensemble_metrics() -> Iterable[StatisticPlugin]:
    """The statistics that come with Ensemble."""
    yield _windowed("variance", "Sample variance", "Var", _variance, default=True)
    yield _windowed("mean", "Arithmetic mean", "Mean", _mean, default=True, within=True)
    yield _windowed("max", "Largest value", "Max", max, default=True, within=True)
    yield _windowed("min", "Smallest value", "Min", min, default=True, within=True)
    yield _windowed("sum", "Sum of the values", "Sum", math.fsum)
    yield _windowed("iqr", "Interquartile range", "IQR", _iqr, default=True, exact=True)
    yield _windowed("mad", "Median absolute deviation", "MAD", _mad, default=True, exact=True)
    for name, text, q in (
        ("median", "Median", 0.5),
        ("p90", "90th percentile", 0.9),
        ("p95", "95th percentile", 0.95),
        ("p99", "99th percentile", 0.99),
    ):
        reduce = partial(_quantile, q=q)
        yield _windowed(name, text, "Quantile", reduce, exact=True, within=True, arguments={"q": q})
    yield StatisticPlugin(
        name="quantile",
        summary="A quantile of your choice; q is a half by default",
        build=_build_quantile,
        options=_schema(
            q={
                "description": "Which quantile, between 0 and 1; 0.75 is the 75th percentile.",
                "type": "number",
                "exclusiveMinimum": 0,
                "exclusiveMaximum": 1,
                "default": 0.5,
            },
            window=_WINDOW,
        ),
        within=True,
        timed_when=_by_time,
    )
    yield StatisticPlugin(
        name="last",
        summary="The latest value",
        build=lambda options: _Last(),
        options=_schema(),
        within=True,
    )
    yield StatisticPlugin(
        name="ewma",
        summary="Exponentially weighted moving average",
        build=_build_ewma,
        options=_schema(
            alpha={
                "description": "Weight of the newest value; higher forgets faster.",
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "default": 0.3,
            }
        ),
    )
    yield StatisticPlugin(
        name="rate",
        summary="Values per second over the last minute",
        build=lambda options: _Rate(_seconds(options.get("window", 60))),
        options=_schema(
            window={
                "description": "How far to look back: seconds, or 30s, 10m, 1h.",
                "oneOf": [
                    {"type": "number", "minimum": 0.001},
                    {"type": "string", "pattern": _DURATION},
                ],
                "default": 60,
            }
        ),
        timed=True,
    )


def _windowed(
    name: str,
    summary: str,
    river_class: str,
    reduce: Reduce,
    *,
    default: bool = False,
    exact: bool = False,
    within: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> StatisticPlugin:
    def build(options: Mapping[str, Any]) -> Statistic | TimedStatistic:
        return _build(river_class, arguments or {}, reduce, exact, options)

    return StatisticPlugin(
        name=name,
        summary=summary,
        build=build,
        options=_schema(window=_WINDOW),
        default=default,
        within=within,
        timed_when=_by_time,
    )


def _build(
    river_class: str,
    arguments: Mapping[str, Any],
    reduce: Reduce,
    exact: bool,
    options: Mapping[str, Any],
) -> Statistic | TimedStatistic:
    window = options.get("window")
    any_order = partial(_in_order, reduce) if exact else reduce
    if isinstance(window, str):
        return _TimeWindow(_seconds(window), any_order)
    if window is not None:
        return _CountWindow(window, any_order)
    from river import stats

    model: Statistic = getattr(stats, river_class)(**arguments)
    return _ExactFirst(model, reduce) if exact else model


def _build_quantile(options: Mapping[str, Any]) -> Statistic | TimedStatistic:
    q = options.get("q", 0.5)
    return _build("Quantile", {"q": q}, partial(_quantile, q=q), True, options)


def _build_ewma(options: Mapping[str, Any]) -> Statistic:
    from river import stats

    model: Statistic = stats.EWMean(fading_factor=options.get("alpha", 0.3))
    return model


def _by_time(options: Mapping[str, Any]) -> bool:
    return isinstance(options.get("window"), str)


def _seconds(window: float | str) -> float:
    if not isinstance(window, str):
        return float(window)
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", window)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not re.match(_DURATION, window) or not seconds:
        raise EnsembleError(
            f"{window!r} is not a length of time", hint="write for example 60s, 10m or 1h30m"
        )
    return seconds


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1)


def _in_order(reduce: Reduce, values: Sequence[float]) -> float:
    return reduce(sorted(values))


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Of ordered values, with linear interpolation between neighbours."""
    place = q * (len(ordered) - 1)
    below = int(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def _iqr(ordered: Sequence[float]) -> float:
    return _quantile(ordered, 0.75) - _quantile(ordered, 0.25)


def _mad(ordered: Sequence[float]) -> float:
    median = _quantile(ordered, 0.5)
    return _quantile(sorted(abs(value - median) for value in ordered), 0.5)


def _reduced(values: Sequence[float], reduce: Reduce) -> float | None:
    """The value over these; ``None`` for none of them, or where it is too large for a float."""
    if not values:
        return None
    try:
        result = reduce(values)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


class _ExactFirst:
    """Exact over the first values, river's estimate from then on."""

    __slots__ = ("_kept", "_model", "_ordered", "_reduce")

    def __init__(self, model: Any, reduce: Reduce) -> None:
        self._model = model
        self._reduce = reduce
        self._kept: list[float] | None = []
        #: How many of the first of these are in order; a reader orders the rest.
        self._ordered = 0

    def update(self, value: float) -> None:
        if self._kept is not None:
            if len(self._kept) < EXACT:
                self._kept.append(value)
            else:
                self._kept = None
        self._model.update(value)

    def update_all(self, values: Sequence[float]) -> None:
        if self._kept is not None:
            if len(self._kept) + len(values) <= EXACT:
                self._kept.extend(values)
            else:
                self._kept = None
        update = self._model.update
        for value in values:
            update(value)

    def get(self) -> float | None:
        kept = self._kept
        if kept is None:
            estimate: float | None = self._model.get()
            return estimate
        fresh = len(kept) - self._ordered
        if fresh == 1:
            insort(kept, kept.pop())
        elif fresh:
            kept.sort()
        self._ordered = len(kept)
        return _reduced(kept, self._reduce)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ExactFirst:
        import copy

        twin = _ExactFirst(copy.deepcopy(self._model, memo), self._reduce)
        twin._kept = None if self._kept is None else self._kept.copy()
        twin._ordered = self._ordered
        return twin


class _CountWindow:
    """Exact over the last so many values."""

    __slots__ = ("_reduce", "_values")

    def __init__(self, size: int, reduce: Reduce) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._reduce = reduce

    def update(self, value: float) -> None:
        self._values.append(value)

    def get(self) -> float | None:
        return _reduced(self._values, self._reduce)

    def __deepcopy__(self, memo: dict[int, Any]) -> _CountWindow:
        twin = _CountWindow(1, self._reduce)
        twin._values = self._values.copy()
        return twin


class _TimeWindow:
    """Exact over the values of the last ``seconds``, as far as they fit.

    A value that comes late, with an earlier timestamp than the one before it, counts as if it came
    with that one.
    """

    __slots__ = ("_reduce", "_seconds", "_stamps", "_values")

    def __init__(self, seconds: float, reduce: Reduce) -> None:
        self._seconds = seconds
        self._reduce = reduce
        self._values: deque[float] = deque(maxlen=LONGEST)
        self._stamps: deque[float] = deque(maxlen=LONGEST)

    def update(self, value: float, timestamp: float) -> None:
        stamps = self._stamps
        if stamps and timestamp < stamps[-1]:
            timestamp = stamps[-1]
        self._values.append(value)
        stamps.append(timestamp)
        while stamps[0] <= timestamp - self._seconds:
            stamps.popleft()
            self._values.popleft()

    def get(self, now: float) -> float | None:
        # Reading changes nothing: who looks, and when, must not alter what rules see later.
        first = bisect_right(self._stamps, now - self._seconds)
        return _reduced(list(self._values)[first:], self._reduce)

    def __deepcopy__(self, memo: dict[int, Any]) -> _TimeWindow:
        twin = _TimeWindow(self._seconds, self._reduce)
        twin._values = self._values.copy()
        twin._stamps = self._stamps.copy()
        return twin


class _Last:
    """The latest value."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: float | None = None

    def update(self, value: float) -> None:
        self._value = value

    def get(self) -> float | None:
        return self._value


class _Rate:
    """Values per second over the trailing window, to within one sixtieth of it.

    The first value starts the watch and is not counted itself. There is no rate before a tenth of
    the window has passed, as the first moments say little; until the window is full, the rate is
    over the time that has passed. Counts in at most ``_BUCKETS`` + 1 parts of the window are kept.
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
        # A part includes its end, not its beginning, as the window does.
        part = math.ceil((timestamp - self._first) / self._width - 1e-9) - 1
        buckets = self._buckets
        if buckets and part <= buckets[-1][0]:
            buckets[-1][1] += 1  # a late one counts as if it came with the latest
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
            # The part in which the window begins counts as far as it lies within.
            count += values * min(1.0, max(0.0, part + 1 - begin))
        return count / min(passed, self._window)
