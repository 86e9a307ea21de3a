"""``for: 5m``: a condition that must be true at every check during some time."""

from __future__ import annotations

import random

import pytest
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.rule_trace import RuleTracer
from ensemble_core.errors import EnsembleError
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.events import (
    Requested,
    Resources,
    Resumed,
    StopRequested,
    TimerElapsed,
)

JOBS = "jobs: [{name: sim, command: x, count: 2, observe: {key-value: {fields: [T]}}}]\n"
START = "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
RULE = "  - {{id: hot, trigger: metric, name: last.sim-T, when: '{}', for: {}, repetitions: {}, "
LOG = "action: {name: log, message: hot}}\n"


def hot(when: str = "> 50", lasts: str = "5m", repetitions: object = 1) -> Story:
    story = Story(JOBS + START + RULE.format(when, lasts, repetitions) + LOG)
    story.start()
    story.begin("sim.0")
    return story


def fires(story: Story) -> int:
    return story.fired().count("hot")


CONDITIONS = ["> 50", ">= 51", "value > 50 and value < 1000"]


@pytest.mark.parametrize("when", CONDITIONS)
def test_condition_that_is_true_during_the_time_fires_when_it_is_over(when: str) -> None:
    story = hot(when)
    story.observe("sim.0", T=60)
    story.wait(299)
    assert fires(story) == 0
    story.wait(2)
    assert fires(story) == 1


@pytest.mark.parametrize("when", CONDITIONS)
def test_many_rows_in_a_moment_are_no_time(when: str) -> None:
    story = hot(when, "1s")
    for value in (60, 60, 60, 60, 40):
        story.observe("sim.0", T=value)
    story.wait(10)
    assert fires(story) == 0


@pytest.mark.parametrize("odd", [40.0, float("nan")])
@pytest.mark.parametrize("when", CONDITIONS)
def test_one_check_at_which_it_is_false_starts_the_time_again(when: str, odd: float) -> None:
    story = hot(when)
    story.observe("sim.0", T=60)
    story.wait(200)
    story.observe("sim.0", T=odd)
    story.observe("sim.0", T=60)
    story.wait(299)
    assert fires(story) == 0
    story.wait(2)
    assert fires(story) == 1


def test_missing_value_interrupts_a_time_and_a_count() -> None:
    text = JOBS.replace("jobs:", "statistics: {s: {statistic: mean, window: 10s}}\njobs:")
    rule = "  - {{id: hot, trigger: metric, name: s.sim-T, when: '> 50', for: {}, "
    for lasts in ("24s", "6"):  # with two heartbeats before the window is empty and one after it
        story = Story("logging: {heartbeat: 5}\n" + text + START + rule.format(lasts) + LOG)
        story.start()
        story.begin("sim.0")
        for _ in range(2):
            story.observe("sim.0", T=60)
            story.wait(1)
        story.wait(19)  # the window is empty
        for _ in range(2):
            story.observe("sim.0", T=60)
        story.wait(4)
        assert fires(story) == 0, lasts


def test_the_smallest_comparisons_and_equality_end_the_time() -> None:
    for when, true, false in [
        ("> 50", 51, 50), (">= 50", 50, 49.9), ("< 50", 49, 50), ("<= 50", 50, 50.1), ("== 50", 50, 51),
    ]:  # fmt: skip
        story = hot(when)
        story.observe("sim.0", T=true)
        story.wait(100)
        story.observe("sim.0", T=true)
        story.wait(100)
        story.observe("sim.0", T=false)
        story.wait(200)
        assert fires(story) == 0, when
        story.observe("sim.0", T=true)
        story.wait(299)
        assert fires(story) == 0, when
        story.wait(2)
        assert fires(story) == 1, when


def test_after_the_time_each_check_fires_as_often_as_the_rule_may() -> None:
    story = hot("> 50", "10s", 3)
    story.observe("sim.0", T=60)
    story.wait(11)
    for _ in range(5):
        story.observe("sim.0", T=60)
    assert fires(story) == 3


def test_time_of_an_instance_ends_with_the_attempt_of_its_job() -> None:
    rule = "  - {id: hot, trigger: observed, name: sim, each: job, when: T > 50, for: 1m, "
    story = Story(JOBS + START + rule + "action: {name: cancel}}\n")
    story.start()
    story.begin("sim.0")
    story.begin("sim.1")
    story.observe("sim.0", T=60)
    story.wait(30)
    story.observe("sim.1", T=60)
    story.observe("sim.0", T=61)
    story.end("sim.1")
    story.wait(31)
    assert fires(story) == 1
    assert [type(each).__name__ for each in story.decisions][-1] == "Cancel"
    story.cancel("sim.0")
    assert story.exit_code is not None  # no timer of a job that is over keeps the run


@pytest.mark.parametrize("trigger", ["trigger: heartbeat", "trigger: interval, seconds: 5"])
def test_rules_that_are_checked_regularly_can_wait_for_a_time(trigger: str) -> None:
    rule = f"  - {{id: hot, {trigger}, when: 'metric(\"last.sim-T\") > 50', for: 1m, "
    story = Story("logging: {heartbeat: 5}\n" + JOBS + START + rule + LOG)
    story.start()
    story.begin("sim.0")
    story.observe("sim.0", T=60)
    story.wait(60)
    assert fires(story) == 0
    story.wait(5.1)
    assert fires(story) == 1


def test_run_waits_for_the_time_of_a_rule_and_says_so_once() -> None:
    story = hot("> 50", "5m")
    story.observe("sim.0", T=60)
    story.end("sim.0")
    story.play("sim.1")
    assert story.exit_code is None
    said = story.messages()
    words = "no job is left; the run waits 298 s for rule 'hot': its condition is true"
    assert said == [f"{words}, and has to be true for 5m"]
    story.wait(300)
    assert (fires(story), story.exit_code) == (1, 0)


def test_disabled_rule_starts_its_time_again() -> None:
    story = hot()
    story.observe("sim.0", T=60)
    story.wait(200)
    rules = story.engine.state.rules
    rules.switch("hot", False, story.now)
    story.wait(150)
    assert fires(story) == 0
    for state in rules.switch("hot", True, story.now):
        story.engine.state.check_soon(state)
    story.tell(Resources(story.now, {"nodes.free": 1.0}))
    story.wait(299)
    assert fires(story) == 0
    story.wait(2)
    assert fires(story) == 1


def test_killed_run_waits_for_the_rest_of_the_time() -> None:
    story = hot()
    story.observe("sim.0", T=60)
    story.wait(200)
    kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
    assert kept is not None
    story.engine = kept
    story.tell(Resumed(story.now))
    story.wait(99)
    assert fires(story) == 0
    story.wait(2)
    assert fires(story) == 1


def test_time_that_ended_without_a_controller_is_looked_at_after_rows_could_be_read() -> None:
    for value, fired in ((60, 1), (40, 0)):
        story = hot()
        story.observe("sim.0", T=60)
        story.wait(100)
        story.now += 1000
        story.tell(Resumed(story.now))
        story.wait(1)
        assert fires(story) == 0
        story.observe("sim.0", T=value)
        story.wait(10)
        assert fires(story) == fired


def test_time_between_a_stop_and_its_resume_does_not_count() -> None:
    story = hot()
    story.observe("sim.0", T=60)
    story.wait(200)
    story.tell(StopRequested(story.now, then="keep"))
    story.now += 500
    story.tell(Resumed(story.now))
    story.wait(99)
    assert fires(story) == 0
    story.wait(2)
    assert fires(story) == 1


def test_accepted_change_of_another_rule_keeps_the_time() -> None:
    for old, seconds in (("message: hot", 101), ("for: 5m", 301)):
        story = hot()
        story.observe("sim.0", T=60)
        story.wait(200)
        story.tell(StopRequested(story.now, then="keep"))
        text = JOBS + START + RULE.format("> 50", "5m", 1) + LOG
        text += RULE.format("> 55", "5m", 1).replace("hot", "other") + LOG
        if old == "for: 5m":
            text = text.replace("> 50", "> 51")
        story.engine.reconfigure(Story(text).ensemble)
        story.tell(Resumed(story.now))
        story.wait(seconds - 2)
        assert fires(story) == 0
        story.wait(2)
        assert fires(story) == 1


def test_many_rules_cost_no_check_while_their_condition_stays_true() -> None:
    rules = "".join(
        f"  - {{id: r{n}, trigger: metric, name: last.sim-T, when: '> {n / 10}', for: 5m, {LOG[:-1]}\n"
        for n in range(100)
    )
    story = Story(JOBS + START + rules)
    story.start()
    story.begin("sim.0")
    story.observe("sim.0", T=60)
    states = story.engine.state.rules.states
    before = [states[f"r{n}"].triggered for n in range(100)]
    for value in (61, 62, 60, 100):
        story.observe("sim.0", T=value)
        story.wait(10)
    assert [states[f"r{n}"].triggered for n in range(100)] == before
    story.observe("sim.0", T=5)  # only the rules above become false
    assert sum(states[f"r{n}"].triggered for n in range(100)) - sum(before) == 50
    story.wait(300)
    assert sum(name.startswith("r") and name[1:].isdigit() for name in story.fired()) == 50


def expected(values: list[tuple[float, float]], until: float, lasts: float) -> bool:
    """Return whether a condition ``> 50`` fires for these values, each with its time."""
    since = None
    for (at, value), following in zip(values, [*(at for at, _ in values[1:]), until], strict=True):
        if not value > 50:
            since = None
            continue
        since = at if since is None else since
        if following >= since + lasts:
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_random_values_fire_as_a_plain_model_says(seed: int) -> None:
    chance = random.Random(seed)
    when = chance.choice(CONDITIONS)
    story = hot(when, "20s")
    seen = []
    for _ in range(25):
        value = chance.choice([60.0, 60.0, 70.0, 60.0, 55.0, 40.0, float("nan")])
        story.observe("sim.0", T=value)
        seen.append((story.now, value))
        if chance.random() < 0.2:
            kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
            assert kept is not None
            story.engine = kept
        story.wait(chance.choice([0.5, 3.0, 7.0]))
    assert bool(fires(story)) == expected(seen, story.now, 20.0)


def test_trace_tells_how_long_the_condition_was_true() -> None:
    story = hot()
    tracer = RuleTracer(story.engine, "hot")
    story.observe("sim.0", T=60)
    story.wait(30)
    story.observe("sim.0", T=61)
    assert [(each.kind, each.held) for each in tracer.verdicts] == [("checks", 30.0)]
    story.observe("sim.0", T=1)
    assert [each.kind for each in tracer.verdicts] == ["condition"]
    (report,) = (each for each in story.engine.report().rules if each.id == "hot")
    assert (report.longest, report.lasts, report.state) == (30.0, 300.0, "held back")


def refused(line: str) -> str:
    with pytest.raises(EnsembleError) as caught:
        Story(JOBS + START + line)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0s", "the time in 'for' is 0"),
        ("-5m", "'-5m' is not a duration"),
        ("5min", 'write "90s", "10m" or "1h30m"; 90 is a number of checks'),
        ("'3'", "to count 3 checks, write 3 without quotes"),
        ("5 parsecs", "is not a duration"),
        ("0", "it must be at least 1"),
    ],
)
def test_times_that_are_none_are_refused(given: str, words: str) -> None:
    assert words in refused(RULE.format("> 50", given, 1) + LOG)


def test_time_without_a_condition_or_longer_than_the_run_is_refused() -> None:
    plain = RULE.format("> 50", "5m", 1) + LOG
    assert "no condition" in refused(plain.replace("when: '> 50', ", ""))
    assert "limits.wall" in refused(plain + "limits: {wall: 4m}\n")
    rows = "  - {trigger: observed, name: sim, when: T > 50, for: 5m, " + LOG
    assert "add 'each: job'" in refused(rows)
    done = "  - {trigger: job-done, name: sim, for: 5m, " + LOG
    assert "not checked regularly" in refused(done)


@pytest.mark.parametrize(("duration", "warned"), [("5m", True), ("6m", False), ("", False)])
def test_time_that_is_longer_than_a_job_may_run_is_warned_of(duration: str, warned: bool) -> None:
    jobs = JOBS.replace("count: 2", f"duration: {duration}" if duration else "count: 2")
    rule = "  - {id: hot, trigger: observed, name: sim, each: job, when: T > 50, for: 5m, "
    said = "\n".join(Story(jobs + START + rule + LOG).ensemble.warnings)
    assert ("rule 'hot' can never fire" in said) is warned


def test_timer_of_a_condition_that_is_false_again_does_nothing() -> None:
    story = hot()
    story.observe("sim.0", T=60)
    story.observe("sim.0", T=1)
    story.tell(TimerElapsed(story.now, "for", "1"))
    assert fires(story) == 0
    assert isinstance(story.engine, Engine)


@pytest.mark.parametrize("way", ["enable", "change"])
@pytest.mark.parametrize("each", ["", "each: job, ", "each: [k], "])
def test_rule_that_is_enabled_again_or_changed_forgets_earlier_checks(each: str, way: str) -> None:
    jobs = JOBS.replace("command: x, count: 2", "command: 'x {k}', parameters: {k: [1, 2]}")
    rule = f"  - {{id: hot, trigger: observed, name: sim, {each}when: 'T > 50', for: "
    if not each:
        rule = "  - {id: hot, trigger: metric, name: last.sim-T, when: 'value > 50', for: "
    text = jobs + START + rule + "10s, repetitions: unlimited, " + LOG
    story = Story(text)
    story.start()
    story.begin("sim.0")
    for _ in range(4):
        story.observe("sim.0", T=60)
        story.wait(5)
    before = fires(story)
    assert before > 0
    if way == "enable":
        for name in ("disable", "enable"):
            story.tell(Requested(story.now, "user", {"name": name, "rules": ["hot"]}))
    else:
        story.engine.reconfigure(Story(text.replace("> 50", "> 55")).ensemble)
    story.observe("sim.0", T=60)
    story.observe("sim.0", T=60)
    assert fires(story) == before
    story.wait(11)
    story.observe("sim.0", T=60)
    story.observe("sim.0", T=60)
    assert fires(story) > before


def test_looking_at_a_rule_whose_time_runs_does_not_change_its_state() -> None:
    story = hot()
    story.observe("sim.0", T=60)
    story.wait(200)
    story.tell(StopRequested(story.now, then="keep"))
    (state,) = (each for each in story.engine.state.rules.states.values() if each.rule.id == "hot")
    before = state.longest
    (rule,) = (each for each in story.engine.report().rules if each.id == "hot")
    assert (rule.longest, state.longest) == (200, before)
    assert before < 200
