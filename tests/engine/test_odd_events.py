"""Robustness against invalid events, faulty plugins, and events at unexpected times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core.model.decisions import Decision, Log
from ensemble_core.model.events import CallReturned, JobEvent, Observed
from ensemble_core.model.rules import BoundAction


def errors(decisions: list[Decision]) -> list[str]:
    return [one.message for one in decisions if isinstance(one, Log) and one.level == "error"]


def with_plan(text: str, plan: Any) -> Story:
    """Return a story of this file in which the last rule's action is replaced by ``plan``."""
    checked = Story(text).ensemble
    *others, last = checked.rules
    action = BoundAction(name="odd", plan=plan)
    return Story(replace(checked, rules=(*others, replace(last, actions=(action,)))))


ONE_JOB = """
jobs: [{name: a, command: x}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def test_a_condition_uses_current_gauges() -> None:
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


def test_an_added_rule_uses_current_gauges() -> None:
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
def test_a_status_that_is_not_a_number_is_a_failure(status: Any) -> None:
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
def test_an_observed_value_that_is_not_a_number_is_skipped(value: Any) -> None:
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
def test_a_malformed_event_is_reported_and_the_run_continues(event: Any) -> None:
    told = Story(ONE_JOB)
    told.start()
    decided = told.engine.handle(event)
    assert len(errors(decided)) == 1
    told.play("a.0")
    assert told.metric("count.a.success") == 1
    assert told.exit_code == 1


def test_plans_that_return_no_decisions_are_rejected() -> None:
    told = with_plan(ONE_JOB, lambda firing, options: [{"name": "submit"}])
    decided = told.start()
    assert len(errors(decided)) == 1
    assert all(isinstance(one, Decision) for one in decided)


def test_a_submit_yielded_twice_is_carried_out_once() -> None:
    def plan(firing: Any, options: Any) -> Any:
        submit = firing.submit("a")
        return [submit, submit]

    told = with_plan(ONE_JOB, plan)
    decided = told.start()
    assert told.submitted() == ["a.0"]
    assert told.metric("count.a.submitted") == 1
    assert len(errors(decided)) == 1


def test_enabling_an_enabled_rule_does_not_fire_it() -> None:
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
    assert not told.engine.state.rules.index.by_event


def test_a_slow_action_after_terminate_is_not_called() -> None:
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


def test_results_of_functions_after_the_end_are_ignored() -> None:
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


def test_a_resume_uses_the_executors_times() -> None:
    told = Story(ONE_JOB)
    told.start()
    told.tell(JobEvent(told.now, "a.0", "submit", {"reported_at": 12.5}))
    record = told.engine.state.table.records["a.0"]
    assert record.newest == 12.5
    assert record.submitted == told.now
