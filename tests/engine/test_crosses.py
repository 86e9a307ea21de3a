"""``crosses``: a rule fires when its condition becomes true, and not while it is true."""

from __future__ import annotations

import random

import pytest
from ensemble_testing import Story

from ensemble_core.engine.rule_trace import RuleTracer
from ensemble_core.errors import EnsembleError
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.model.events import Requested, Resumed, StopRequested

JOBS = "jobs: [{name: sim, command: x, count: 2, observe: {key-value: {fields: [T]}}}]\n"
START = "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
RULE = "  - {{id: up, trigger: metric, name: last.sim-T, crosses: '{}', repetitions: unlimited, {}"
LOG = "action: {name: log, message: x}}\n"
#: Conditions that are true for the same values: one comparison, and several.
CONDITIONS = ["> 50", "value > 50 and value < 1000"]


def crossing(when: str = "> 50", more: str = "") -> Story:
    story = Story(JOBS + START + RULE.format(when, more) + LOG)
    story.start()
    story.begin("sim.0")
    return story


def firings(story: Story, *values: float) -> list[int]:
    """Return how often the rule has fired after each of these values."""
    found = []
    for value in values:
        story.observe("sim.0", T=value)
        found.append(story.fired().count("up"))
    return found


@pytest.mark.parametrize("when", CONDITIONS)
def test_rule_fires_when_its_condition_becomes_true_and_not_while_it_is(when: str) -> None:
    assert firings(crossing(when), 40, 60, 70, 60, 40, 45, 55, 56) == [0, 1, 1, 1, 1, 1, 2, 2]


def test_rule_fires_in_both_directions_of_a_comparison() -> None:
    assert firings(crossing("< 50"), 60, 40, 30, 60, 40) == [0, 1, 1, 1, 2]
    assert firings(crossing("<= 50"), 60, 50, 60, 50) == [0, 1, 1, 2]
    assert firings(crossing(">= 50"), 49, 50, 49, 50) == [0, 1, 1, 2]
    assert firings(crossing("== 50"), 49, 50, 50, 49, 50) == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("when", CONDITIONS)
def test_condition_that_is_true_at_the_first_check_fires_only_with_at_first(when: str) -> None:
    assert firings(crossing(when), 60, 70, 40, 60) == [0, 0, 0, 1]
    assert firings(crossing(when, "at_first: true, "), 60, 70, 40, 60) == [1, 1, 1, 2]


@pytest.mark.parametrize("when", CONDITIONS)
def test_nan_is_on_neither_side(when: str) -> None:
    nan = float("nan")
    assert firings(crossing(when), 40, nan, 60, nan, 60, 40, nan, 60) == [0, 0, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("condition", ["T > 50", "last.T > 50", 'metric("last.sim-T") > 50'])
def test_nan_in_a_row_is_on_neither_side(condition: str) -> None:
    nan = float("nan")
    rule = f"  - {{id: up, trigger: observed, name: sim, each: job, crosses: '{condition}', "
    story = Story(JOBS + START + rule + "repetitions: unlimited, " + LOG)
    story.start()
    story.begin("sim.0")
    assert firings(story, 60, nan, 60, 40, nan, 60, nan, 60) == [0, 0, 0, 0, 0, 1, 1, 1]


def test_nan_that_does_not_decide_is_ignored() -> None:
    nan = float("nan")
    rule = "  - {id: up, trigger: observed, name: sim, each: job, crosses: T > 50 and P > 5, "
    jobs = JOBS.replace("fields: [T]", "fields: [T, P]")
    story = Story(jobs + START + rule + "repetitions: 9, " + LOG)
    story.start()
    story.begin("sim.0")
    for values in ({"T": 60, "P": 9}, {"T": nan, "P": 1}, {"T": 60, "P": 9}):
        story.observe("sim.0", **values)
    assert story.fired().count("up") == 1


def test_counts_cross_from_their_value_at_the_start() -> None:
    story = Story(
        JOBS + START + RULE.format("> 0", "").replace("last.sim-T", "count.sim.done") + LOG
    )
    story.start()
    story.play("sim.0")
    assert story.fired().count("up") == 1
    story.play("sim.1")
    assert story.fired().count("up") == 1


def test_each_job_crosses_apart() -> None:
    rule = "  - {id: up, trigger: observed, name: sim, each: job, crosses: T > 50, repetitions: 5, "
    story = Story(JOBS + START + rule + LOG)
    story.start()
    for job in ("sim.0", "sim.1"):
        story.begin(job)
    for job, value in [("sim.0", 40), ("sim.1", 60), ("sim.0", 60), ("sim.1", 70), ("sim.0", 61)]:
        story.observe(job, T=value)
    assert story.fired().count("up") == 1


def test_condition_that_must_be_true_for_a_time_crosses_when_the_time_is_over() -> None:
    story = crossing("> 50", "for: 10s, ")
    firings(story, 40, 60)
    story.wait(8)
    assert firings(story, 40, 60)[-1] == 0
    story.wait(11)
    assert firings(story, 70, 80, 40, 60)[-1] == 1
    story.wait(11)
    assert firings(story, 70) == [2]


@pytest.mark.parametrize("before", [40, 60])
def test_killed_or_stopped_run_knows_the_side_after_a_resume(before: float) -> None:
    for stopped in (False, True):
        story = crossing()
        firings(story, 40, before)
        if stopped:
            story.tell(StopRequested(story.now, then="keep"))
        kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
        assert kept is not None
        story.engine = kept
        story.tell(Resumed(story.now))
        assert firings(story, 61, 40, 60) == [1, 1, 2]


def test_rule_that_is_enabled_again_starts_without_a_firing() -> None:
    story = crossing()
    firings(story, 40)
    for name in ("disable", "enable"):
        story.tell(Requested(story.now, "user", {"name": name, "rules": "up"}))
        if name == "disable":
            firings(story, 60)
    assert firings(story, 70, 40, 60) == [0, 0, 1]


def test_accepted_change_keeps_the_side() -> None:
    story = crossing()
    firings(story, 40, 60)
    story.tell(StopRequested(story.now, then="keep"))
    other = RULE.format("> 55", "").replace("id: up", "id: other")
    story.engine.reconfigure(
        Story(JOBS + START + RULE.format("> 50", "") + LOG + other + LOG).ensemble
    )
    story.tell(Resumed(story.now))
    assert firings(story, 70, 40, 60) == [1, 1, 2]
    assert story.fired().count("other") == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_values_fire_as_a_plain_model_says(seed: int) -> None:
    chance = random.Random(seed)
    first = chance.random() < 0.5
    story = crossing(chance.choice(CONDITIONS), f"at_first: {str(first).lower()}, ")
    inside, fired = (False if first else None), 0
    for _ in range(30):
        value = chance.choice([40.0, 50.0, 51.0, 60.0, float("nan")])
        if value == value:
            fired += value > 50 and inside is False
            inside = value > 50
        if chance.random() < 0.2:
            kept = snapshot.load(snapshot.dump(story.engine), story.ensemble)
            assert kept is not None
            story.engine = kept
        assert firings(story, value) == [fired]


def test_adding_crossing_rules_does_not_change_how_often_others_fire() -> None:
    plain = (
        "  - {id: plain, trigger: metric, name: last.sim-T, when: '> 50', repetitions: unlimited, "
    )
    counted = plain.replace("plain", "counted").replace("repetitions", "for: 2, repetitions")
    values = [40, 60, 61, 40, 70, 71, 72]
    fired = []
    for more in (
        "",
        RULE.format("> 50", "") + LOG + RULE.format("< 45", "for: 2s, ").replace("up", "d") + LOG,
    ):
        story = Story(JOBS + START + plain + LOG + more + counted + LOG)
        story.start()
        story.begin("sim.0")
        firings(story, *values)
        fired.append([story.fired().count(name) for name in ("plain", "counted")])
    assert fired[0] == fired[1] == [5, 3]


def test_why_says_that_the_condition_was_true_already() -> None:
    story = crossing()
    tracer = RuleTracer(story.engine, "up")
    kinds = []
    for value in (40, 60, 61, 40):
        firings(story, value)
        kinds += [each.kind for each in tracer.verdicts]
    assert kinds == ["condition", "fired", "crossed", "condition"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (RULE.format("> 50", "when: '> 3', "), "'when' or 'crosses', not both"),
        (RULE.format("> 50", "").replace("crosses: '> 50'", "at_first: true"), "needs 'crosses'"),
        ("  - {trigger: start, crosses: '1 > 0', ", "occurs once"),
        (RULE.format("> x", ""), "unknown name 'x'"),
        (RULE.format("> 50", "").replace("last.sim-T", "last.sim-V"), "last.sim-V"),
    ],
)
def test_crossings_that_cannot_be_are_refused(line: str, words: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        Story(JOBS + START + line + LOG)
    assert words in str(caught.value)
