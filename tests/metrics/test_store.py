"""Paths of metrics, and results of series."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.store import parse_path

GROUPS = ("sim", "sim-long")
STATISTICS = ("mean", "p90")


class Largest:
    """A plugin's statistic."""

    def __init__(self) -> None:
        self.value = -math.inf

    def update(self, value: float) -> None:
        self.value = max(self.value, value)

    def get(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("queue.run", ("gauge", "", "", "")),
        ("count.sim.success", ("count", "sim", "success", "")),
        ("mean.sim-duration", ("series", "sim", "duration", "mean")),
        ("p90.sim-duration.failed", ("series", "sim", "duration.failed", "p90")),
        ("p90.sim-pending.cancelled", ("series", "sim", "pending.cancelled", "p90")),
        # The longest matching group, and an observer's column.
        ("mean.sim-long-Temp", ("series", "sim-long", "Temp", "mean")),
        ("mean.sim-c_msd[4].x", ("series", "sim", "c_msd[4].x", "mean")),
        # Gauges, and statistics over them.
        ("waiting.next", ("gauge", "", "", "")),
        ("backlog.sim-long", ("gauge", "", "", "")),
        ("count.rule.grow", ("gauge", "", "", "")),
        ("mean.queue.sched", ("series", "", "queue.sched", "mean")),
        ("p90.backlog.sim", ("series", "", "backlog.sim", "p90")),
    ],
)
def test_path_is_parsed_into_kind_group_variable_and_statistic(
    text: str, expected: tuple[str, ...]
) -> None:
    path = parse_path(text, GROUPS, STATISTICS)
    assert (path.kind, path.group, path.variable, path.statistic) == expected


def test_job_group_named_rule_keeps_its_counts() -> None:
    groups = (*GROUPS, "rule")
    assert parse_path("count.rule.success", groups, STATISTICS).kind == "count"
    assert parse_path("count.rule.grow", groups, STATISTICS).kind == "gauge"


def test_unknown_rule_in_a_count_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(EnsembleError) as error:
        parse_path("count.rule.gorw", GROUPS, STATISTICS, ("grow", "shrink"))
    assert "'count.rule.grow'" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("count.sim.sucess", "count.sim.success"),
        ("maen.sim-duration", "mean.sim-duration"),
        ("queue.ran", "queue.run"),
        ("waiting.nxt", "waiting.next"),
        ("mean.queue.sced", "mean.queue.sched"),
        ("backlog.sin", "backlog.sim"),
    ],
)
def test_invalid_path_is_rejected_with_a_suggestion(text: str, meant: str) -> None:
    with pytest.raises(EnsembleError) as error:
        parse_path(text, GROUPS, STATISTICS)
    assert meant in str(error.value.hint)


def test_series_skips_values_that_are_not_finite() -> None:
    series = Series([StatisticSpec(name="largest", build=Largest)])
    for value in (1.0, math.nan, 3.0, math.inf, 2.0):
        series.record(value, 0.0)
    assert series.get("largest", 0.0) == 3.0
    assert (series.count, series.low, series.high) == (3, 1.0, 3.0)


@pytest.mark.parametrize("value", [3, 2.5, None, float("nan")])
def test_statistic_may_return_numbers_of_any_class(value: float | None) -> None:
    class Says(Largest):
        def get(self) -> Any:
            return value

    told: list[tuple[str, Exception]] = []
    series = Series(
        [StatisticSpec(name="says", build=Says)], lambda name, error: told.append((name, error))
    )
    series.record(1.0, 0.0)
    assert series.get("says", 0.0) == (None if value != value else value)
    assert not told
