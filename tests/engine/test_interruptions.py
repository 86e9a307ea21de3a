"""Jobs that the queue suspends or requeues: what counts as running, and what as waiting."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.engine.report import GroupReport
from ensemble_core.journal.snapshot_encoding import dump, load

FILE = """
jobs:
  - {name: sim, command: sim, count: 2, tasks: 4, observe: {json-lines: {}}}
rules:
  - {trigger: start, action: {name: submit}}
"""


def story(rules: str = "", text: str = FILE) -> Story:
    told = Story(text + rules)
    told.start()
    return told


def group(told: Story) -> GroupReport:
    return told.engine.report().groups[0]


def counts(told: Story) -> tuple[int, int, int]:
    found = group(told)
    return found.waiting, found.running, found.suspended


def gauges(told: Story) -> list[float | None]:
    return [told.metric(f"queue.{name}") for name in ("sched", "run", "suspended", "active")]


@pytest.mark.parametrize("asked", ["from the start", "in the middle"])
def test_a_suspended_job_does_not_run(asked: str) -> None:
    told = story()
    if asked == "from the start":
        assert gauges(told) == [0, 0, 0, 2]
    told.begin("sim.0")
    told.suspend("sim.0", after=10)
    assert counts(told) == (1, 0, 1)
    assert gauges(told) == [0, 0, 1, 2]
    told.unsuspend("sim.0", after=100)
    assert counts(told) == (1, 1, 0)
    assert gauges(told) == [0, 1, 0, 2]
    told.end("sim.0", duration=5)
    assert told.metric("mean.sim-duration") == 15
    assert told.metric("used.core_hours") == pytest.approx(4 * 15 / 3600)


@pytest.mark.parametrize("asked", ["from the start", "in the middle"])
def test_a_requeued_job_waits_again(asked: str) -> None:
    told = story()
    if asked == "from the start":
        assert gauges(told) == [0, 0, 0, 2]
        assert told.metric("waiting.jobs") == 2
    told.begin("sim.0", pending=20)
    told.requeue("sim.0", after=5)
    assert counts(told) == (2, 0, 0)
    assert gauges(told) == [1, 0, 0, 2]
    assert told.metric("waiting.jobs") == 2
    told.job("sim.0", "alloc", "start", after=100)
    assert counts(told) == (1, 1, 0)
    assert gauges(told) == [0, 1, 0, 2]
    told.end("sim.0", duration=8)
    assert told.metric("mean.sim-duration") == 13, "both times that it ran"
    assert told.metric("mean.sim-pending") == (20 + 100) / 2, "each wait"
    assert told.metric("used.core_hours") == pytest.approx(4 * 13 / 3600)


def test_the_fields_of_a_requeued_job_cover_both_times() -> None:
    told = story(
        '\n  - {trigger: job-finish, action: {name: log, message: "{duration} {pending}"}}\n'
    )
    told.begin("sim.0", pending=20)
    told.requeue("sim.0", after=5, pending=100)
    told.end("sim.0", duration=8)
    assert told.messages() == ["13 120"]


def test_a_suspended_job_can_be_requeued_or_end() -> None:
    told = story()
    for job in ("sim.0", "sim.1"):
        told.begin(job)
        told.suspend(job, after=10)
    assert counts(told) == (0, 0, 2)
    told.requeue("sim.0", after=30)
    told.cancel("sim.1")
    assert counts(told) == (1, 0, 0)
    assert gauges(told) == [1, 0, 0, 1]
    told.cancel("sim.0")
    assert gauges(told) == [0, 0, 0, 0]
    assert told.metric("used.core_hours") == pytest.approx(4 * 20 / 3600)


def test_an_allocated_job_that_did_not_start_can_be_requeued() -> None:
    told = story()
    told.job("sim.0", "submit", "alloc")
    assert gauges(told) == [0, 1, 0, 2]
    told.requeue("sim.0")
    assert gauges(told) == [1, 0, 0, 2]
    told.play("sim.0", duration=3)
    assert told.metric("mean.sim-duration") == 3
    assert told.metric("count.sim.success") == 1


def test_an_interruption_that_changes_nothing_triggers_no_rule() -> None:
    rules = "".join(
        f"\n  - {{trigger: job-{name}, repetitions: 9, action: {{name: log, message: '{name}'}}}}"
        for name in ("suspend", "unsuspend", "requeue", "sched", "start")
    )
    told = story(rules)
    told.job("sim.0", "submit", "suspend", "unsuspend", "requeue")
    assert told.messages() == []
    told.job("sim.0", "alloc", "start", "start", "unsuspend")
    assert told.messages() == ["start"]
    told.job("sim.0", "suspend", "suspend", "unsuspend", "unsuspend")
    assert told.messages()[1:] == ["suspend", "unsuspend"]
    told.job("sim.0", "requeue", "requeue", "suspend")
    assert told.messages()[3:] == ["requeue", "sched"]
    told.job("sim.0", "alloc", "start")
    told.end("sim.0")
    told.job("sim.0", "suspend", "requeue")
    assert told.messages()[5:] == ["start"]
    assert counts(told) == (1, 0, 0)


def test_a_job_that_does_not_run_is_not_silent() -> None:
    told = story(
        "\n  - {trigger: silent, name: sim, seconds: 1m, repetitions: 9,"
        ' action: {name: log, message: "{job}"}}'
    )
    told.begin("sim.0")
    told.begin("sim.1")
    told.suspend("sim.0", after=30)
    told.requeue("sim.1")
    told.wait(1000)
    assert told.messages() == []
    told.unsuspend("sim.0")
    told.job("sim.1", "alloc", "start")
    told.wait(59)
    assert told.messages() == []
    told.wait(1)
    assert told.messages() == ["sim.0", "sim.1"]


LIMITED = """
limits: {core_hours: 1}
jobs:
  - {name: sim, command: sim, count: 2, duration: 1h}
rules:
  - {trigger: start, action: {name: submit}}
"""


def test_a_suspended_job_keeps_the_rest_of_its_claim_on_a_limit() -> None:
    told = story(text=LIMITED)
    told.begin("sim.0")
    told.suspend("sim.0", after=900)
    told.job("sim.0", "memo", after=7200)
    assert told.metric("used.core_hours") == 0.25
    assert told.metric("committed.core_hours") == 0.75
    told.unsuspend("sim.0")
    told.job("sim.0", "memo", after=900)
    assert told.metric("used.core_hours") == 0.5
    assert told.metric("committed.core_hours") == 0.5
    assert told.submitted(told.end("sim.0", duration=0)) == []


def test_a_requeued_job_can_use_its_whole_time_again() -> None:
    told = story(text=LIMITED.replace("core_hours: 1", "core_hours: 2.2"))
    assert told.submitted() == ["sim.0", "sim.1"]
    told.begin("sim.0")
    told.requeue("sim.0", after=900)
    told.job("sim.0", "memo", after=7200)
    assert told.metric("used.core_hours") == 0.25
    assert told.metric("committed.core_hours") == 2
    told.begin("sim.0")
    told.end("sim.0", duration=900)
    assert told.metric("used.core_hours") == 0.5
    assert told.metric("committed.core_hours") == 1


def test_waiting_times_at_a_heartbeat_count_from_the_requeue() -> None:
    told = story(
        "\n  - {trigger: metric, name: max.sim-pending, when: '> 500',"
        " action: {name: log, message: slow}}",
        text="logging: {heartbeat: 10}\n" + FILE.replace("count: 2", "count: 1"),
    )
    told.begin("sim.0", pending=10)
    told.wait(1000)
    told.requeue("sim.0")
    told.wait(490)
    assert told.messages() == []
    told.wait(20)
    assert told.messages() == ["slow"]


@pytest.mark.parametrize("at", range(1, 8))
def test_a_snapshot_keeps_interruptions(at: int) -> None:
    steps = [
        lambda told: told.begin("sim.0", pending=1),
        lambda told: told.suspend("sim.0", after=2),
        lambda told: told.unsuspend("sim.0", after=3),
        lambda told: told.requeue("sim.0", after=4),
        lambda told: told.job("sim.0", "alloc", "start", after=5),
        lambda told: told.suspend("sim.0", after=6),
        lambda told: told.end("sim.0", duration=7),
    ]
    told = story(text=LIMITED)
    gauges(told)
    for number, step in enumerate(steps, 1):
        step(told)
        if number == at:
            again = load(dump(told.engine), told.ensemble)
            assert again is not None
            told.engine = again
    names = ("mean.sim-duration", "mean.sim-pending", "used.core_hours", "committed.core_hours")
    assert [told.metric(name) for name in names] == [2 + 4 + 6, 3, 12 / 3600, 0]
    assert gauges(told) == [0, 0, 0, 1], "the other job is held"
