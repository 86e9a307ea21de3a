"""The built-in statistics, such as mean, variance and quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ensemble_core.builtin import statistic_arithmetic as arithmetic
from ensemble_core.builtin.quantiles import (
    EXACT,
    ExactFirst,
    Interquartile,
    MedianDeviation,
    QuantileEstimate,
)
from ensemble_core.builtin.statistic_arithmetic import LONGEST, Reduce
from ensemble_core.metrics.series import Statistic, TimedStatistic
from ensemble_core.model.durations import seconds
from ensemble_core.plugin.hookspecs import StatisticPlugin, hookimpl

__all__ = ["EXACT", "LONGEST", "ensemble_statistics"]

_DURATION = r"^(?=[\d.]*[1-9])(\d+(\.\d+)?[smhd])+$"
_WINDOW: Mapping[str, Any] = {
    "description": "Use only the last values: a number of values, or a duration (60s, 10m, 1h30m).",
    "oneOf": [
        {"type": "integer", "minimum": 1, "maximum": LONGEST},
        {"type": "string", "pattern": _DURATION},
    ],
}


def _schema(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


# Without ``window``, ``variance``, ``mean``, ``max``, ``min``, ``sum`` and ``ewma`` have, bit for
# bit, the same results as the classes of these names in the Python library river. With ``window``,
# a statistic is recalculated from the stored values, because adding and subtracting values would
# accumulate rounding errors.
@hookimpl
def ensemble_statistics() -> Iterable[StatisticPlugin]:
    """Return the built-in statistics."""
    make: Callable[..., Statistic] = arithmetic.Moments
    variance, mean = partial(make, variance=True), partial(make, variance=False)
    make, both = arithmetic.Fold, {"default": True, "within": True}
    yield _windowed_statistic(
        "variance", "Sample variance", variance, arithmetic.variance, default=True
    )
    yield _windowed_statistic("mean", "Arithmetic mean", mean, arithmetic.mean, **both)
    yield _windowed_statistic("max", "Largest value", partial(make, max, -math.inf), max, **both)
    yield _windowed_statistic("min", "Smallest value", partial(make, min, math.inf), min, **both)
    yield _windowed_statistic(
        "sum", "Sum of the values", partial(make, arithmetic.add_in_order, 0.0), math.fsum
    )
    both = {"default": True, "exact": True}
    yield _windowed_statistic("iqr", "Interquartile range", Interquartile, arithmetic.iqr, **both)
    yield _windowed_statistic(
        "mad", "Median absolute deviation", MedianDeviation, arithmetic.mad, **both
    )
    for name, text, q in (
        ("median", "Median", 0.5),
        ("p90", "90th percentile", 0.9),
        ("p95", "95th percentile", 0.95),
        ("p99", "99th percentile", 0.99),
    ):
        estimate, reduce = partial(QuantileEstimate, q), partial(arithmetic.quantile, q=q)
        yield _windowed_statistic(name, text, estimate, reduce, exact=True, within=True)
    yield StatisticPlugin(
        name="quantile",
        summary="The quantile q; by default 0.5",
        build=_build_quantile,
        options=_schema(
            q={
                "description": "The quantile, between 0 and 1; 0.75 is the 75th percentile.",
                "type": "number",
                "exclusiveMinimum": 0,
                "exclusiveMaximum": 1,
                "default": 0.5,
            },
            window=_WINDOW,
        ),
        within=True,
        timed_when=_has_time_window,
    )
    error = "Standard error of the mean; needs two values"
    yield _windowed_statistic("error", error, arithmetic.StandardError, arithmetic.error)
    yield StatisticPlugin(
        name="change",
        summary="The latest value minus an earlier one; by default the previous one",
        build=_build_change,
        options=_schema(
            window={
                **_WINDOW,
                "description": "Subtract the value this many values earlier, or the first value "
                "within this time (60s, 10m).",
                "default": 1,
            }
        ),
        accepts="all",  # the difference between the values around nan would be no change
        timed_when=_has_time_window,
    )
    yield StatisticPlugin(
        name="last",
        summary="The latest value",
        build=lambda options: arithmetic.Fold(arithmetic.newest, None),
        options=_schema(),
        within=True,
        accepts="all",
    )
    yield StatisticPlugin(
        name="unreadable",
        summary="Number of values that an observer could not read",
        build=lambda options: arithmetic.Unreadable(),
        options=_schema(),
        accepts="unreadable",
    )
    yield StatisticPlugin(
        name="ewma",
        summary="Exponentially weighted moving average",
        build=lambda options: _build_ewma(options.get("alpha", 0.3)),
        options=_schema(
            alpha={
                "description": "Weight of the newest value; a higher weight forgets older values "
                "faster.",
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
        build=lambda options: arithmetic.Rate(seconds(options.get("window", 60))),
        options=_schema(
            window={
                "description": "Length of the window: seconds, or a duration (30s, 10m, 1h).",
                "oneOf": [
                    {"type": "number", "minimum": 0.001},
                    {"type": "string", "pattern": _DURATION},
                ],
                "default": 60,
            }
        ),
        timed=True,
    )


def _windowed_statistic(
    name: str,
    summary: str,
    streaming: Callable[[], Statistic],
    reduce: Reduce,
    *,
    default: bool = False,
    exact: bool = False,
    within: bool = False,
) -> StatisticPlugin:
    """Return a statistic with the option ``window``.

    ``streaming`` creates the statistic over all values; ``reduce`` is a function of stored values.
    With ``exact``, values are stored and reduced until there are too many; then the streaming
    statistic takes over.
    """

    return StatisticPlugin(
        name=name,
        summary=summary,
        build=partial(_build, streaming, reduce, exact),
        options=_schema(window=_WINDOW),
        default=default,
        within=within,
        timed_when=_has_time_window,
    )


def _build(
    streaming: Callable[[], Statistic],
    reduce: Reduce,
    exact: bool,
    options: Mapping[str, Any],
) -> Statistic | TimedStatistic:
    window = options.get("window")
    any_order = partial(arithmetic.in_order, reduce) if exact else reduce
    if isinstance(window, str):
        return arithmetic.TimeWindow(seconds(window), any_order)
    if window is not None:
        return arithmetic.CountWindow(window, any_order)
    return ExactFirst(streaming, reduce) if exact else streaming()


def _build_quantile(options: Mapping[str, Any]) -> Statistic | TimedStatistic:
    q = options.get("q", 0.5)
    return _build(partial(QuantileEstimate, q), partial(arithmetic.quantile, q=q), True, options)


def _build_change(options: Mapping[str, Any]) -> Statistic | TimedStatistic:
    window = options.get("window", 1)
    if isinstance(window, str):
        return arithmetic.TimeWindow(seconds(window), partial(arithmetic.change, least=2))
    return arithmetic.CountWindow(window + 1, partial(arithmetic.change, least=window + 1))


def _build_ewma(alpha: float) -> Statistic:
    return arithmetic.Fold(partial(arithmetic.moving_average, alpha), None)


def _has_time_window(options: Mapping[str, Any]) -> bool:
    return isinstance(options.get("window"), str)
