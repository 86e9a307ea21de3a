"""Gauges that the engine computes from the run's jobs, and statistics of gauges."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.random_draw import draw
from ensemble_core.errors import FileErrors
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.events import Resources, TimerElapsed

SIZES = """
jobs:
  - {name: mid, command: x, nodes: 4}
  - {name: small, command: x, nodes: 1}
  - {name: large, command: x, nodes: 8}
rules:
  - trigger: start
    action:
      - {name: submit, label: mid}
      - {name: submit, label: small}
      - {name: submit, label: large}
"""


def beat(told: Story) -> list[str]:
    """Wait for a heartbeat, and return the rules that fired."""
    return told.fired(told.wait(10))


def test_gauges_have_the_number_and_sizes_of_waiting_jobs() -> None:
    told = Story(SIZES)
    told.start()
    assert [told.metric(f"waiting.{name}") for name in ("jobs", "nodes")] == [3, 13]
    sizes = ("next", "smallest", "largest")
    assert [told.metric(f"waiting.{name}") for name in sizes] == [4, 1, 8]
    assert told.metric("waiting.random") in (1, 4, 8)
    told.begin("mid.0")
    assert [told.metric(f"waiting.{name}") for name in sizes] == [1, 1, 8]
    told.begin("small.0")
    told.begin("large.0")
    every = ("jobs", "nodes", *sizes, "random")
    assert [told.metric(f"waiting.{name}") for name in every] == [0] * 6
    assert told.metric("queue.active") == 3
    for job in ("mid.0", "small.0", "large.0"):
        told.end(job)
    assert told.metric("queue.active") == 0


def test_the_next_job_is_the_oldest_of_the_most_urgent() -> None:
    told = Story(SIZES.replace("nodes: 8", "nodes: 8, urgency: 20"))
    told.start()
    assert told.metric("waiting.next") == 8


@pytest.mark.parametrize("asked", ["at-once", "later"])
def test_the_next_job_is_the_first_submitted_regardless_of_file_order(
    asked: str,
) -> None:
    told = Story("""
jobs:
  - {name: large, command: ./large, nodes: 8, count: 2}
  - {name: small, command: ./small, nodes: 1, count: 2}
rules:
  - {trigger: start, action: {name: submit-next, groups: [large, small], count: 4, order: ascending}}
""")
    told.start()
    found = []
    for job in ("small.0", "small.1", "large.0", "large.1"):
        if asked == "at-once" or job != "small.0":
            found.append(told.metric("waiting.next"))
        told.begin(job)
    assert found == [1, 1, 8, 8][-len(found) :]
    assert told.metric("waiting.next") == 0


def test_a_random_size_is_drawn_at_each_heartbeat_with_the_frequency_of_waiting_jobs() -> None:
    told = Story(
        SIZES.replace("nodes: 1", "nodes: 1, count: 8")
        + "  - {trigger: heartbeat, repetitions: 1000, action: {name: log, message: beat}}\n"
        + "logging: {heartbeat: 10}"
    )
    told.start()
    drawn = []
    for _ in range(200):
        beat(told)
        drawn.append(told.metric("waiting.random"))
    assert set(drawn) == {1, 4, 8}
    assert 120 < drawn.count(1) < 195  # the expected value is 160


def test_waiting_sizes_are_checked_at_submits_and_heartbeats() -> None:
    told = Story(
        SIZES
        + """
  - {id: seen, trigger: metric, name: waiting.largest, when: "< 8", repetitions: 9,
     action: {name: log, message: x}}
logging: {heartbeat: 10}
"""
    )
    assert "seen" not in told.fired(told.start())
    assert "seen" not in told.fired(told.begin("large.0"))
    assert beat(told) == ["seen"]


def test_the_number_of_firings_is_a_metric() -> None:
    told = Story(
        """
jobs: [{name: sim, command: x, count: 4}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: bad, trigger: job-fail, name: sim, repetitions: 9, action: {name: log, message: bad}}
  - {trigger: metric, name: count.rule.bad, when: 2, action: {name: terminate, exit_code: 3}}
"""
    )
    told.start()
    for job in ("sim.0", "sim.1"):
        told.begin(job)
    assert told.fired(told.end("sim.0", status=256)) == ["bad"]
    assert told.fired(told.end("sim.1", status=256)) == ["bad", "rule-3"]
    assert told.metric("count.rule.bad") == 2


MEAN = """
jobs: [{name: sim, command: x, count: 3}]
statistics: {moved: {statistic: change, window: 2}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: mean, trigger: metric, name: mean.waiting.jobs, when: "< 2.5", action: {name: log, message: x}}
  - {id: moved, trigger: metric, name: moved.waiting.jobs, when: "< 0", action: {name: log, message: x}}
  - {id: free, trigger: metric, name: max.nodes.free, when: "> 5", action: {name: log, message: x}}
logging: {heartbeat: 10}
"""


def test_statistics_over_a_gauge_sample_it_at_heartbeats() -> None:
    told = Story(MEAN)
    assert told.fired(told.start()) == ["rule-1"]
    assert told.metric("mean.waiting.jobs") is None
    assert beat(told) == []
    assert told.metric("mean.waiting.jobs") == 3
    told.begin("sim.0")
    assert told.metric("mean.waiting.jobs") == 3
    told.begin("sim.1")
    assert beat(told) == ["mean"]
    assert told.metric("mean.waiting.jobs") == 2
    assert told.metric("moved.waiting.jobs") is None  # no value two heartbeats ago
    assert beat(told) == ["moved"]
    assert told.metric("moved.waiting.jobs") == -2
    told.tell(Resources(told.now, {"nodes.free": 6}))
    assert beat(told) == ["free"]


def test_gauges_and_their_statistics_survive_a_snapshot() -> None:
    told = Story(MEAN)
    told.start()
    beat(told)
    told.begin("sim.0")
    beat(told)
    state = dump(told.engine)
    again = load(state, told.ensemble)
    assert isinstance(again, Engine)
    assert dict(again.snapshot()) == dict(told.engine.snapshot())
    event = TimerElapsed(told.now + 10, "heartbeat", "")
    assert again.handle(event) == told.engine.handle(event)
    assert dict(again.snapshot()) == dict(told.engine.snapshot())


def test_a_statistic_over_a_gauge_needs_heartbeats() -> None:
    assert Story(MEAN.replace("logging: {heartbeat: 10}", "")).ensemble.heartbeat > 0
    with pytest.raises(FileErrors, match=r"mean\.waiting\.jobs.* is sampled at each heartbeat"):
        Story(MEAN.replace("heartbeat: 10", "heartbeat: 0"))


def test_a_draw_is_reproducible_and_reaches_all_values() -> None:
    assert [draw(7, number, 5) for number in range(6)] == [draw(7, n, 5) for n in range(6)]
    assert {draw(7, number, 5) for number in range(100)} == {0, 1, 2, 3, 4}
