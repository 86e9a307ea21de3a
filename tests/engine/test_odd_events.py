"""What odd events, odd plugins and odd moments must not do to a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ensemble_core.model.decisions import Cancel, Decision, Log, Resize, Submit, Terminate
from ensemble_core.model.events import CallReturned, JobEvent, Observed, ResizeOutcome, Resources
from ensemble_core.model.rules import BoundAction
from ensemble_core.testing import Story


def errors(decisions: list[Decision]) -> list[str]:
    return [one.message for one in decisions if isinstance(one, Log) and one.level == "error"]


def with_plan(text: str, plan: Any) -> Story:
    """The story of a file whose last rule has a plugin's action instead of its own."""
    checked = Story(text).ensemble
    *others, last = checked.rules
    action = BoundAction(name="odd", plan=plan)
    return Story(replace(checked, rules=(*others, replace(last, actions=(action,)))))


ONE_JOB = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def test_an_undelivered_request_is_asked_again_before_the_run_may_end() -> None:
    told = Story(
        """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: grow}}
  - {trigger: resize-granted, action: {name: submit, label: a}}
"""
    )
    asked = [one for one in told.start() if isinstance(one, Resize)]
    told.tell(ResizeOutcome(told.now, asked[0].request, "undelivered"))
    assert told.exit_code is None
    again = [one for one in told.wait(5) if isinstance(one, Resize)]
    assert len(again) == 1
    told.tell(ResizeOutcome(told.now, again[0].request, "granted", size=2))
    assert told.submitted() == ["a.0"]


def test_a_request_under_way_keeps_a_rule_on_the_nodes_waiting() -> None:
    told = Story(
        """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: grow}}
  - {trigger: metric, name: nodes.up, when: ">= 2", action: {name: submit, label: a}}
"""
    )
    told.start({"nodes.up": 1})
    assert told.exit_code is None
    told.tell(Resources(told.now, {"nodes.up": 2}))
    assert told.submitted() == ["a.0"]


def test_a_condition_sees_the_queue_as_it_is_now() -> None:
    told = Story(
        """
jobs: [{name: a, command: x, count: 3}, {name: b, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, name: a, when: 'metric("queue.run") == 2', action: {name: submit, label: b}}
"""
    )
    told.start()
    told.begin("a.0")
    told.begin("a.1")
    assert told.submitted() == ["a.0", "a.1", "a.2", "b.0"]


def test_a_rule_that_joins_sees_the_queue_as_it_is_now() -> None:
    told = Story(
        """
jobs: [{name: a, command: x}, {name: b, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: late, enabled: false, trigger: metric, name: queue.run, when: 1, action: {name: submit, label: b}}
  - {trigger: job-start, name: a, action: {name: enable, rules: late}}
"""
    )
    told.start()
    told.begin("a.0")
    assert "b.0" in told.submitted()


@pytest.mark.parametrize("status", ["0", None, 0.5, [1]])
def test_a_status_that_is_no_number_is_a_failure_and_no_crash(status: Any) -> None:
    told = Story(
        """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-fail, action: {name: log, message: "failed with {status}"}}
"""
    )
    told.start()
    told.play("a.0", status=status)
    assert told.metric("count.a.failed") == 1
    assert told.exit_code == 0


@pytest.mark.parametrize("value", ["hot", None, 10**400, [1.0]])
def test_an_observed_value_that_is_no_number_is_left_out(value: Any) -> None:
    told = Story(
        """
jobs: [{name: a, command: x, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: metric, name: mean.a-T, when: 2, action: {name: log, message: warm}}
"""
    )
    told.start()
    told.begin("a.0")
    told.observe("a.0", T=value, P=1.0)
    told.observe("a.0", T=2.0)
    told.end("a.0")
    assert told.metric("mean.a-T") == 2.0
    assert told.exit_code == 0


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(1001.0, "a.0", "exception", None),  # type: ignore[arg-type]
        JobEvent(None, "a.0", "memo"),  # type: ignore[arg-type]
        Observed(1001.0, "a.0", "odd", 3),  # type: ignore[arg-type]
        object(),
    ],
)
def test_an_event_that_makes_no_sense_is_told_of_and_the_run_goes_on(event: Any) -> None:
    told = Story(ONE_JOB)
    told.start()
    decided = told.engine.handle(event)
    assert len(errors(decided)) == 1
    told.play("a.0")
    assert told.metric("count.a.success") == 1
    assert told.exit_code == 1


def test_what_an_action_gives_instead_of_decisions_is_refused() -> None:
    told = with_plan(ONE_JOB, lambda firing, options: [{"name": "submit"}])
    decided = told.start()
    assert len(errors(decided)) == 1
    assert all(isinstance(one, Decision) for one in decided)


def test_a_submit_that_an_action_hands_on_twice_is_done_once() -> None:
    def plan(firing: Any, options: Any) -> Any:
        submit = firing.submit("a")
        return [submit, submit]

    told = with_plan(ONE_JOB, plan)
    decided = told.start()
    assert told.submitted() == ["a.0"]
    assert told.metric("count.a.submitted") == 1
    assert len(errors(decided)) == 1


PACED = """
limits: {submits_per_second: 1}
jobs: [{name: a, command: x, count: 4}, {name: b, command: x}]
"""


def test_nothing_is_decided_after_a_terminate_that_a_held_jobs_cancel_led_to() -> None:
    told = Story(
        PACED
        + """
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, action: {name: cancel, label: a}}
  - {trigger: job-cancel, action: {name: terminate, exit_code: 3}}
"""
    )
    told.start()
    decided = told.begin("a.0")
    assert isinstance(decided[-1], Terminate)
    assert decided[-1].cancel == ("a.0",)
    assert [one.jobs for one in decided if isinstance(one, Cancel)] == [("a.0",)]
    assert told.exit_code == 3


def test_held_jobs_that_are_cancelled_and_submitted_again_are_a_chain() -> None:
    told = Story(
        PACED
        + """
rules:
  - {trigger: start, action: [{name: submit, label: a}, {name: cancel, label: a}]}
  - id: again
    trigger: job-cancel
    repetitions: 100000
    action: [{name: submit, label: b}, {name: cancel, label: b}]
"""
    )
    decided = told.start()
    assert any("caused one another" in message for message in errors(decided))
    assert not any("raised" in message for message in errors(decided))


def test_paced_jobs_all_go_at_a_time_of_today() -> None:
    told = Story(
        """
limits: {submits_per_second: 3}
jobs: [{name: a, command: x, count: 30}]
rules: [{trigger: start, action: {name: submit, label: a}}]
""",
        now=1.7e9 + 0.1,
    )
    told.start()
    for _ in range(2000):
        timer = told.engine.next_timer()
        if timer is None:
            break
        assert timer.when > told.now, "time stands still"
        told.wait(timer.when - told.now)
    assert [one for one in told.decisions if isinstance(one, Submit)]
    assert len(told.submitted()) == 30


def test_as_many_jobs_as_the_limit_says_are_submitted() -> None:
    told = Story("limits: {jobs: 1}\n" + ONE_JOB)
    told.start()
    assert told.submitted() == ["a.0"]


def test_a_rule_that_is_enabled_while_it_is_on_fires_no_more_for_it() -> None:
    told = Story(
        """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: [{name: enable, rules: end}, {name: submit, label: a}]}
  - {id: end, trigger: job-success, repetitions: 1, action: {name: log, message: over}}
"""
    )
    told.start()
    told.play("a.0")
    assert told.fired().count("end") == 1
    assert not told.engine.state.rules.index.occasions.by_name


def test_jobs_that_come_later_do_not_overtake_those_that_wait_for_their_turn() -> None:
    told = Story(
        """
limits: {submits_per_second: 1}
jobs: [{name: a, command: x, count: 3}, {name: b, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: interval, seconds: 0.5, action: {name: submit, label: b}}
"""
    )
    told.start()
    told.wait(10)
    assert told.submitted() == ["a.0", "a.1", "a.2", "b.0"]


def test_a_disabled_rules_resize_is_not_asked_again() -> None:
    told = Story(
        """
jobs: [{name: a, command: x, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: more, trigger: job-start, action: {name: grow}}
  - {trigger: job-success, action: {name: disable, rules: more}}
"""
    )
    told.start()
    (asked,) = (one for one in told.begin("a.0") if one.type == "resize")
    warned = told.tell(ResizeOutcome(told.now, asked.request, "undelivered", reason="no route"))  # type: ignore[attr-defined]
    assert [one.message for one in warned if one.type == "log"] == [  # type: ignore[attr-defined]
        "grow could not be delivered and will be asked again: no route"
    ]
    told.end("a.0")
    assert not [one for one in told.wait(100) if one.type == "resize"]


def test_a_slow_action_behind_terminate_is_not_called() -> None:
    told = Story(
        """
jobs: [{name: a, command: x}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, action: [{name: terminate}, {name: custom, label: f}]}
custom: |
  def f(**kwargs):
      pass
"""
    )
    told.start()
    assert [one.type for one in told.begin("a.0")] == ["fired", "terminate"]


def test_what_a_function_returns_after_the_end_is_not_done() -> None:
    told = Story(
        """
jobs: [{name: a, command: x, count: 2}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, action: {name: custom, label: f}}
  - {trigger: job-success, action: {name: terminate}}
custom: |
  def f(**kwargs):
      pass
"""
    )
    told.start()
    (call,) = (one for one in told.begin("a.0") if one.type == "call")
    told.end("a.0")
    spec = {"action": {"name": "submit", "label": "a"}}
    assert told.tell(CallReturned(told.now, call.call, (spec,))) == []  # type: ignore[attr-defined]
