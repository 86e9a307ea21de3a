"""Every verdict of the engine has words in ``why``, in the summary and in the dashboard."""

from __future__ import annotations

from typing import get_args

import pytest
from ensemble_testing import Story

from ensemble_core.cli.why_text import Span, conclude, describe_span
from ensemble_core.cli.why_text import Story as History
from ensemble_core.display.why_not_fired import held_back_words, why_not_fired
from ensemble_core.engine.report import RuleReport
from ensemble_core.engine.rule_evaluation import VerdictKind as Considered
from ensemble_core.engine.rule_index import InactiveReason
from ensemble_core.engine.rule_trace import Kind, RuleTracer, Verdict
from ensemble_core.model.decisions import Submit
from ensemble_core.model.events import Requested


def literals(kind: object) -> list[str]:
    found: list[str] = []
    for each in get_args(kind):
        found += [each] if isinstance(each, str) else literals(each)
    return found


def test_the_sets_of_verdicts_are_complete() -> None:
    assert set(literals(Kind)) == {*literals(Considered), "ended"}
    assert set(literals(InactiveReason)) < set(literals(Considered))


@pytest.mark.parametrize("kind", literals(Kind))
def test_each_verdict_has_its_own_words_in_why(kind: Kind) -> None:
    story = Story(FILE)
    rule = story.engine.state.rules.states["metric"].rule
    words = {
        each: describe_span(Span(Verdict(each), 1, 0.0, ""), rule, 0.0)  # type: ignore[arg-type]
        for each in literals(Kind)
    }
    assert [other for other, text in words.items() if text == words[kind]] == [kind]


@pytest.mark.parametrize("kind", [k for k in literals(Considered) if k != "fired"])
def test_each_verdict_has_words_in_the_summary(kind: Considered) -> None:
    (words,) = held_back_words({kind: 2}, held=2, needed=9, lasts=0.0, may_fire="once")
    assert words
    report = RuleReport(
        id="r", label="r", triggered=2, state="held back", held_back={kind: 2}, longest=2, checks=9
    )
    assert words in why_not_fired(report)


FILE = """
logging: {heartbeat: 1}
jobs: [{name: sim, command: x, observe: {key-value: {fields: [T]}}}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: metric, trigger: metric, name: last.sim-T, when: '> 50', for: 9, action: {name: log, message: x}}
  - {id: beat, trigger: heartbeat, when: "metric('last.sim-T') > 50", for: 9, action: {name: log, message: x}}
  - {id: tick, trigger: interval, seconds: 1, when: "metric('last.sim-T') > 50", for: 9, action: {name: log, message: x}}
"""


@pytest.mark.parametrize(("rule", "needed"), [("metric", 9), ("beat", 9), ("tick", 9)])
def test_a_rule_with_for_says_how_often_its_condition_held(rule: str, needed: int) -> None:
    # One timer, because the tracer has the verdicts of the last event only.
    lines = [line for line in FILE.splitlines() if "id:" not in line or f"id: {rule}," in line]
    story = Story("\n".join(lines))
    history = History(RuleTracer(story.engine, rule))
    told: list[str] = []

    def note() -> None:
        bound = history.rule
        assert bound is not None
        for verdict in history.tracer.verdicts:
            history.take(verdict, story.engine.state.events, story.now)
            told.append(describe_span(Span(verdict, 1, 0.0, ""), bound, 0.0))

    story.start()
    story.begin("sim.0")
    for value in (60, 61):
        story.observe("sim.0", {"T": value})
        note()
        story.wait(1.2 if rule in ("beat", "tick") else 0)
        note()
    said = f"true 2 of {needed} times in a row"
    assert any(said in each for each in told)
    assert history.rule is not None
    sentence = conclude(history.rule, history)
    assert said in sentence
    assert "limit" not in sentence
    assert "never updated" not in sentence
    report = next(each for each in story.engine.report().rules if each.id == rule)
    assert said in why_not_fired(report)
    assert "false" not in why_not_fired(report)


def test_a_retry_that_came_too_late_is_explained() -> None:
    story = Story(
        """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: first, trigger: job-fail, action: {name: retry}}
  - {id: second, trigger: job-fail, action: {name: retry}}
"""
    )
    story.start()
    story.play("a.0", status=256)
    report = next(each for each in story.engine.report().rules if each.id == "second")
    assert "had already retried the job" in why_not_fired(report)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("{command: 'x {T}', parameters: {T: [1]}, at_once: 1, name: sim}", "at_once: 1"),
        ("{command: 'x {T}', parameters: {T: [1]}, name: sim}", "limits.jobs"),
    ],
)
def test_a_request_whose_jobs_are_held_names_them_and_the_reason(fields: str, reason: str) -> None:
    head = "" if "at_once" in reason else "limits: {jobs: 1}\n"
    story = Story(
        f"{head}jobs: [{fields}]\nrules: [{{trigger: start, action: {{name: submit, label: sim}}}}]"
    )
    story.start()
    action = {"name": "submit", "label": "sim", "with": {"parameters": {"T": [0.1]}}}
    decided = story.tell(Requested(story.now, "me", action))
    assert [each.jobs for each in decided if isinstance(each, Submit)] == [()]
    messages = [each.message for each in decided if each.type == "log"]  # type: ignore[attr-defined]
    assert messages[-1].startswith("sim.1 (T=0.1) is held by ")
    assert reason in messages[-1]
