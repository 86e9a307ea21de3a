"""Metrics, and rules on metrics."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from ensemble_testing import Story

from ensemble_core.engine.rule_evaluation import RuleObserver
from ensemble_core.model.events import Resources


def story(rule: str, count: int = 3, head: str = "") -> Story:
    return Story(
        f"""
{head}
jobs: [{{name: sleep, command: sleep 1, count: {count}}}, {{name: echo, command: echo}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sleep}}}}
  - {{id: seen, trigger: metric, {rule}, action: {{name: log, message: x}}}}
"""
    )


def fires(told: Story, jobs: int, **life: float) -> list[bool]:
    told.start()
    return [
        "seen" in told.fired(told.play(f"sleep.{number}", **life))  # type: ignore[arg-type]
        for number in range(jobs)
    ]


def test_a_number_means_equals() -> None:
    assert fires(story("name: count.sleep.success, when: 2"), 3) == [False, True, False]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ('"> 0.5"', [True, True, True]),
        ('">= 2"', [False, True, True]),
        ('"> 1e0"', [False, True, True]),
        ('"> 1e3"', [False, False, False]),
        ('"< 3"', [True, True, False]),
        ('"<= 1"', [True, False, False]),
        ('"== 2"', [False, True, False]),
        ('"!= 2"', [True, False, True]),
        ('"> -1"', [True, True, True]),
        ('"> 1 and < 3"', [False, True, False]),
        ('"< 2 or > 2"', [True, False, True]),
        ('value * 2 == metric("count.sleep.finished") + 2', [False, True, False]),
    ],
)
def test_comparisons_with_a_metric(when: str, expected: list[bool]) -> None:
    when = when if when.startswith('"') else f"'{when}'"
    assert fires(story(f"name: count.sleep.success, when: {when}, repetitions: 9"), 3) == expected


def test_a_metric_rule_is_not_considered_at_unrelated_events() -> None:
    told = story('name: count.sleep.success, when: ">= 1", repetitions: 9')
    told.start()
    told.begin("sleep.0")
    assert told.fired(told.end("sleep.0")) == ["seen"]
    told.begin("sleep.1")
    told.job("sleep.1", "memo", "memo", "urgency")
    assert told.fired().count("seen") == 1


def test_different_thresholds_of_one_statistic_fire_at_their_values() -> None:
    """The engine reads a statistic only if a threshold may have been crossed."""
    rules = {"is": "2", "lies": '"> 4"', "was": '"<= 1"', "far": "5"}
    told = Story(
        "jobs: [{name: sleep, command: sleep 1, count: 6}]\nrules:\n"
        "  - {trigger: start, action: {name: submit, label: sleep}}\n"
        + "".join(
            f"  - {{id: {name}, trigger: metric, name: max.sleep-duration, when: {when}, "
            f"action: {{name: log, message: x}}}}\n"
            for name, when in rules.items()
        )
    )
    told.start()
    fired = [told.fired(told.play(f"sleep.{n}", duration=n)) for n in range(6)]
    assert fired == [["was"], [], ["is"], [], [], ["lies", "far"]]


def test_submitted_is_counted_at_the_decision_and_triggers_rules() -> None:
    told = story("name: count.sleep.submitted, when: 3")
    assert told.fired(told.start()) == ["rule-1", "seen"]


def test_duration_runs_from_start_to_finish_and_pending_from_submit_to_start() -> None:
    told = story('name: mean.sleep-duration, when: "> 2"')
    told.start()
    told.play("sleep.0", pending=5, duration=2)
    told.play("sleep.1", pending=7, duration=4)
    assert told.metric("mean.sleep-duration") == pytest.approx(3)
    assert told.metric("mean.sleep-pending") == pytest.approx(6)
    assert "seen" in told.fired()


def test_durations_of_successes_and_failures_are_separate() -> None:
    told = story('name: mean.sleep-duration.failed, when: "> 5", repetitions: 9')
    told.start()
    told.play("sleep.0", duration=100)
    told.play("sleep.1", duration=2, status=256)
    assert "seen" not in told.fired()
    told.play("sleep.2", duration=20, status=256)
    assert told.metric("mean.sleep-duration.failed") == pytest.approx(11)
    assert "seen" in told.fired()


def test_pending_times_are_separate_by_outcome() -> None:
    told = story('name: max.sleep-pending.failed, when: "> 5", repetitions: 9')
    told.start()
    told.play("sleep.0", pending=9)
    told.play("sleep.1", pending=4, status=256)
    assert "seen" not in told.fired()
    told.begin("sleep.2", pending=7)
    assert told.metric("max.sleep-pending.failed") == pytest.approx(4), "it may still succeed"
    told.end("sleep.2", status=256)
    assert told.metric("max.sleep-pending.failed") == pytest.approx(7)
    assert told.metric("max.sleep-pending") == pytest.approx(9)
    assert "seen" in told.fired()


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        ("min", 1.0),
        ("max", 6.0),
        ("mean", 3.0),
        ("sum", 9.0),
        ("last", 6.0),
        ("median", 2.0),
        ("variance", 7.0),
    ],
)
def test_every_statistic_can_be_used(statistic: str, expected: float) -> None:
    told = story(f'name: {statistic}.sleep-duration, when: "> 1e9"')
    told.start()
    for number, duration in enumerate((1.0, 2.0, 6.0)):
        told.play(f"sleep.{number}", duration=duration)
    assert told.metric(f"{statistic}.sleep-duration") == pytest.approx(expected)


def test_a_metric_without_a_value_fires_nothing() -> None:
    told = story('name: mean.sleep-duration, when: "< 1000"')
    told.start()
    told.begin("sleep.0")
    assert told.fired() == ["rule-1"]
    assert told.metric("mean.sleep-duration") is None


def test_waiting_jobs_count_once_each_at_a_heartbeat() -> None:
    told = story('name: mean.sleep-pending, when: "> 1e9"', head="logging: {heartbeat: 10}")
    told.start()
    for number in range(3):
        told.job(f"sleep.{number}", "submit", "validate", "depend", "priority")
    told.wait(500)
    series = told.engine.state.metrics.series["sleep", "pending"]
    assert series.count == 0, "nothing is added to the stream until a job starts"
    watch = told.engine.state.rules.index.watches["mean.sleep-pending"]
    assert watch.updates == 50
    assert watch.last == pytest.approx(500), "three samples of 500 s, not fifty heartbeats' worth"
    told.job("sleep.0", "alloc", "start")
    assert series.count == 1


def test_a_long_wait_fires_at_a_heartbeat_although_no_job_event_comes() -> None:
    told = story('name: mean.sleep-pending, when: "> 300"', head="logging: {heartbeat: 60}")
    told.start()
    told.job("sleep.0", "submit")
    assert told.fired(told.wait(290)) == []
    assert told.fired(told.wait(80)) == ["seen"]


def test_a_gauge_of_the_queue_follows_our_jobs() -> None:
    told = story("name: queue.run, when: 2")
    told.start()
    told.begin("sleep.0")
    assert "seen" not in told.fired()
    told.begin("sleep.1")
    assert "seen" in told.fired()
    told.end("sleep.0")
    assert told.metric("queue.run") == 1
    assert told.metric("queue.inactive") == 1


def test_waiting_nodes_is_the_sum_of_waiting_jobs_nodes() -> None:
    told = Story(
        """
jobs: [{name: big, command: x, nodes: 4, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: big}}
  - {id: seen, trigger: metric, name: waiting.nodes, when: ">= 8", action: {name: log, message: x}}
"""
    )
    assert told.fired(told.start()) == ["rule-1", "seen"]
    told.begin("big.0")
    assert told.metric("waiting.nodes") == 4


def test_gauges_of_nodes_come_from_the_executor() -> None:
    told = story('name: nodes.free, when: "> 2"')
    assert "seen" not in told.fired(told.start({"nodes.up": 4, "nodes.free": 1}))
    assert told.fired(told.tell(Resources(told.now, {"nodes.free": 3}))) == ["seen"]
    assert told.metric("nodes.up") == 4


def test_observed_values_become_metrics_without_invalid_ones() -> None:
    told = Story(
        """
jobs: [{name: md, command: lmp, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit, label: md}}
  - {id: hot, trigger: metric, name: mean.md-Temp, when: "> 2", action: {name: log, message: x}}
"""
    )
    told.start()
    told.begin("md.0")
    told.observe("md.0", Temp=1.0)
    told.observe("md.0", Temp=float("nan"))
    told.observe("md.0", Temp=float("inf"))
    assert told.metric("mean.md-Temp") == 1.0
    assert told.fired(told.observe("md.0", Temp=4.0)) == ["hot"]


def test_an_added_rule_fires_if_its_metric_already_matches() -> None:
    told = Story(
        """
jobs: [{name: sleep, command: sleep 1, count: 3}]
rules:
  - {trigger: start, action: {name: submit, label: sleep}}
  - {id: late, trigger: metric, name: count.sleep.success, when: ">= 1", enabled: false, action: {name: log, message: x}}
  - {trigger: job-start, when: index == 2, action: {name: enable, rules: late}}
  - {id: hold, trigger: metric, name: count.sleep.success, when: 99, action: {name: log, message: x}}
"""
    )
    told.start()
    told.play("sleep.0")
    assert "late" not in told.fired()
    told.begin("sleep.2")
    assert "late" in told.fired()


def test_a_named_statistic_over_a_window() -> None:
    told = Story(
        """
statistics: {recent: {statistic: mean, window: 2}, p25: {statistic: quantile, q: 0.25}}
jobs: [{name: sleep, command: sleep 1, count: 4}]
rules:
  - {trigger: start, action: {name: submit, label: sleep}}
  - {id: fast, trigger: metric, name: recent.sleep-duration, when: "< 2", action: {name: log, message: x}}
  - {id: p, trigger: metric, name: p25.sleep-duration, when: "> 1e9", action: {name: log, message: x}}
"""
    )
    told.start()
    for number, duration in enumerate((10.0, 10.0, 1.0, 1.0)):
        told.play(f"sleep.{number}", duration=duration)
    assert told.metric("recent.sleep-duration") == pytest.approx(1.0)
    assert told.fired() == ["rule-1", "fast"]


def test_a_statistic_that_raises_is_reported_without_affecting_others() -> None:
    told = story('name: mean.sleep-duration, when: "> 0"')
    told.start()

    class Broken:
        def update(self, value: float) -> None:
            raise RuntimeError("no")

        def get(self) -> float:
            return 0.0

    cell = told.engine.state.metrics.series["sleep", "duration"]._cells["mean"]
    cell.update = Broken().update
    decided = told.play("sleep.0")
    assert any("statistic 'mean' raised" in getattr(one, "message", "") for one in decided)
    assert told.metric("count.sleep.success") == 1
    assert told.fired() == ["rule-1"]


def test_rules_that_cannot_match_are_not_considered() -> None:
    told = story("name: count.sleep.success, when: 1000")
    told.start()
    observer = Mock(spec=RuleObserver)
    told.engine.observe(observer)
    for number in range(3):
        told.play(f"sleep.{number}")
    assert observer.updated.called
    assert not observer.considered.called
