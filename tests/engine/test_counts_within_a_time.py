"""``count.GROUP.failed(within 10m)``: how many attempts failed in the last ten minutes."""

from __future__ import annotations

import random

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.errors import FileErrors
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.events import Resumed

JOBS = "jobs: [{name: sim, command: x, count: 40}]\n"
START = "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
FAILED = "count.sim.failed(within 2s)"


def study(when: str, *more: str, name: str = FAILED, head: str = "") -> Story:
    keys = "".join(f"{each}, " for each in more)
    rule = f"  - {{id: often, trigger: metric, name: '{name}', {when}, {keys}"
    story = Story(head + JOBS + START + rule + "action: {name: log, message: '{value}'}}\n")
    story.start()
    return story


def fail(story: Story, *times: float) -> None:
    """Let the next jobs fail at these seconds after the start."""
    for time in times:
        wait_until(story, time)
        play(story, f"sim.{story.metric('count.sim.finished'):.0f}", status=256)


def wait_until(story: Story, time: float) -> None:
    if 1000 + time > story.now:
        story.wait(1000 + time - story.now)


def fires(story: Story) -> int:
    return story.fired().count("often")


def play(story: Story, job: str, status: int = 0) -> None:
    story.begin(job)
    story.end(job, status=status, duration=0.0)


def test_three_failures_within_two_seconds_fire_at_the_third_one() -> None:
    story = study("when: '>= 3'", "repetitions: unlimited")
    fail(story, 0.2, 0.4, 3.0, 5.0, 5.2)
    play(story, "sim.5")  # a success
    assert fires(story) == 0
    wait_until(story, 5.4)
    play(story, "sim.6", status=256)
    assert story.messages() == ["3"]
    play(story, "sim.7", status=256)
    assert story.messages() == ["3", "4"]


@pytest.mark.parametrize("when", ["crosses: '>= 2'", "crosses: value >= 2"])
def test_a_count_that_dropped_can_cross_again(when: str) -> None:
    story = study(when, "repetitions: unlimited")
    fail(story, 1, 1, 1.5)
    assert fires(story) == 1
    fail(story, 4.0)  # the others are older than two seconds
    assert fires(story) == 1
    fail(story, 4.4)
    assert fires(story) == 2


@pytest.mark.parametrize("when", ["when: 0", "when: '< 1'", "when: 'value < 1'"])
def test_a_rule_fires_when_the_time_without_failures_is_over_and_the_run_waits_for_it(
    when: str,
) -> None:
    story = study(when, "enabled: false")
    fail(story, 1)
    for state in story.engine.state.rules.switch("often", True, story.now):
        story.engine.state.check_soon(state)
    fail(story, *[2] * 39)
    assert (fires(story), story.exit_code) == (0, None)
    story.wait(1.9)
    assert (fires(story), story.exit_code) == (0, None)
    story.wait(0.2)
    assert (fires(story), story.exit_code) == (1, 1)


def test_the_run_does_not_wait_for_a_rule_that_needs_further_failures() -> None:
    story = study("when: '>= 50'")
    fail(story, *[1] * 40)
    assert story.exit_code is not None


def test_a_count_can_be_high_for_a_time() -> None:
    story = study("when: '>= 2'", "for: 1500ms")
    fail(story, 1, 1.2)
    story.wait(1.4)
    fail(story, 2.9)  # but from 3.0 s to 3.0 s it is 1 or 2, never below 2 before 3.0
    story.wait(0.2)
    assert fires(story) == 1


def test_failures_that_a_rule_on_the_count_waits_for_are_handled() -> None:
    story = study("when: '>= 3'")
    play(story, "sim.0", status=256)
    for n in range(1, 40):
        play(story, f"sim.{n}")
    assert story.exit_code == 0


def test_other_rules_and_messages_read_the_count() -> None:
    text = (
        JOBS + START + "  - {id: often, trigger: job-fail, name: sim, repetitions: unlimited, "
        "when: 'metric(\"count.sim.failed(within 2s)\") > 1', action: {name: log, message: "
        "'{count.sim.failed(within 2s)} of {count.sim.finished(within 1h)}'}}\n"
    )
    story = Story(text)
    story.start()
    play(story, "sim.0")
    fail(story, 1, 1.5)
    assert story.messages() == ["2 of 3"]
    fail(story, 4)
    assert fires(story) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_count_is_that_of_the_ends_also_after_a_kill_and_in_a_replay(seed: int) -> None:
    rng = random.Random(seed)
    story = study("crosses: '>= 3'", "repetitions: unlimited", "at_first: true")
    ends: list[float] = []
    for n in range(40):
        story.wait(rng.choice([0, 0, 0.5, 1.0, 2.0]))
        status = rng.choice([0, 256])
        ends += [story.now] * (status > 0)
        play(story, f"sim.{n}", status=status)
        if rng.random() < 0.2:
            kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
            assert kept is not None
            story.engine = kept
            story.tell(Resumed(story.now))
        assert story.metric(FAILED) == sum(end + 2 > story.now for end in ends)
        if story.exit_code is not None:
            break
    again = Engine(story.ensemble)
    assert [each for event in story.events for each in again.handle(event)] == story.decisions


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("count.sim.failed(within 0s)", "the time in 'count.sim.failed(within 0s)' is 0"),
        ("count.sim.failed(within -1s)", "'-1s' is not a duration"),
        ("count.sim.failed(within soon)", "'soon' is not a duration"),
        ("count.sim.active(within 2s)", "'active' is no number of ends or submits"),
        ("count.sim.rows(within 2s)", "'rows' is no number of ends or submits"),
        ("count.post.failed(within 2s)", "unknown metric 'count.post.failed(within 2s)'"),
        ("count.sim.failed(within 2s", "close the bracket"),
        ("mean.sim-duration(within 2s)", "is no count: only counts have 'within'"),
        ("count.sim.failed(index == 2, within 2s)", "'within' takes one time, alone"),
        ("count.sim.failed( within 2s )", "write count.sim.failed(within 2s)"),
        ("count.sim.failed(within 2s)(within 3s)", "'2s)(within 3s' is not a duration"),
    ],
)
def test_invalid_counts_within_a_time_are_errors(name: str, said: str) -> None:
    with pytest.raises(FileErrors) as found:
        study("when: '> 2'", name=name)
    assert said in str(found.value)


@pytest.mark.parametrize(
    ("when", "better"),
    [
        ("count.sim.failed(within 2s) > 2", "metric('count.sim.failed(within 2s)')"),
        ("count.failed(within 2s) > 2", "metric('count.GROUP.failed(within 2s)')"),
    ],
)
def test_a_count_within_a_time_without_metric_has_a_hint(when: str, better: str) -> None:
    for key in (f"when: '{when}', action: {{name: log, message: x}}",
                f"action: {{name: log, message: '{{{when[:-4]}}}'}}"):  # fmt: skip
        rule = f"  - {{trigger: job-fail, name: sim, {key}}}\n"
        if "sim.failed" in key and "message: x" not in key:
            continue  # valid in a message
        with pytest.raises(FileErrors) as found:
            Story(JOBS + START + rule)
        assert f"write {better}" in str(found.value)


def test_condition_with_a_count_within_a_time_must_be_true_for_a_time() -> None:
    text = """
jobs: [{name: sim, command: "x {user}", parameters: {user: null}, at_once: {jobs: 1, each: [user]}}]
rules:
  - {trigger: start, action: {name: submit, label: sim, with: {parameters: {user: [a, b, a, b]}}}}
  - {id: both, trigger: metric, name: count.sim.submitted, for: 5m, repetitions: unlimited,
     when: 'value > 0 and metric("count.sim.failed(within 3m)") >= 1',
     action: {name: log, message: x}}
"""
    story = Story(text)
    story.start()
    assert [job for job, _ in story.engine.in_queue()] == ["sim.0", "sim.1"]
    story.play("sim.0", status=256)
    assert [job for job, _ in story.engine.in_queue()] == ["sim.1", "sim.2"]
    story.wait(400)
    assert story.fired().count("both") == 0  # the failure was over after three minutes


def test_statistic_of_a_count_is_refused_with_the_form_that_works() -> None:
    text = """
jobs: [{name: sim, command: x}]
statistics: {lately: {statistic: change, window: 2s}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: metric, name: METRIC, when: ">= 3", action: {name: log, message: x}}
"""
    with pytest.raises(FileErrors) as caught:
        Story(text.replace("METRIC", "lately.count.sim.failed"))
    assert "write 'count.sim.failed(within 10m)'" in str(caught.value)
    Story(text.replace("METRIC", "count.sim.failed(within 10m)"))


def test_submitted_jobs_are_counted_when_they_are_submitted() -> None:
    story = study("when: '>= 40'", name="count.sim.submitted(within 2s)")
    assert story.messages() == ["40"]
    fail(story, 5.0)
    assert story.metric("count.sim.submitted(within 2s)") == 0


def test_held_jobs_count_as_cancelled_when_they_are_cancelled() -> None:
    story = Story(
        "limits: {at_once: 1}\n" + JOBS + START + "  - {trigger: job-fail, name: sim, "
        "action: {name: cancel, label: sim}}\n  - {trigger: metric, when: '>= 39', "
        "name: count.sim.cancelled(within 2s), action: {name: log, message: '{value}'}}\n"
    )
    story.start()
    fail(story, 5.0)
    assert story.messages() == ["39"]
