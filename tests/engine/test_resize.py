"""Resize requests: granted, denied or undelivered, and rules that wait for the answer."""

from __future__ import annotations

from dataclasses import replace

from ensemble_testing import Story

from ensemble_core.model.decisions import Resize
from ensemble_core.model.events import ResizeOutcome, Resources


def story(rules: str) -> Story:
    return Story(
        f"""
jobs: [{{name: sleep, command: sleep 1, count: 2}}, {{name: echo, command: echo}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sleep}}}}
{rules}
"""
    )


def test_a_granted_resize_triggers_rules() -> None:
    told = story(
        """
  - {trigger: job-start, action: {name: grow, value: 2}}
  - {id: got, trigger: resize-granted, when: size == 4, action: {name: submit, label: echo}}
"""
    )
    told.start()
    decided = told.begin("sleep.0")
    (asked,) = (one for one in decided if one.type == "resize")
    granted = told.tell(ResizeOutcome(told.now, asked.request, "granted", 4))  # type: ignore[attr-defined]
    assert told.submitted(granted) == ["echo.0"]


def test_an_undelivered_resize_is_repeated_in_the_same_firing() -> None:
    told = story("  - {id: g, trigger: job-start, action: {name: grow, value: 2}}")
    told.start()
    decided = told.begin("sleep.0")
    (first,) = (one for one in decided if one.type == "resize")
    told.tell(ResizeOutcome(told.now, first.request, "undelivered"))  # type: ignore[attr-defined]
    (again,) = (one for one in told.wait(2) if one.type == "resize")
    # The same request ID: an executor that carried it out already recognizes it.
    assert again == replace(first, attempt=2)  # type: ignore[call-arg]
    told.tell(ResizeOutcome(told.now, again.request, "denied", reason="full"))  # type: ignore[attr-defined]
    assert not [one for one in told.wait(300) if one.type == "resize"]
    assert told.fired().count("g") == 1


def test_an_undelivered_request_is_repeated_before_the_run_ends() -> None:
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


def test_a_pending_resize_keeps_a_rule_on_nodes_waiting() -> None:
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


def test_a_disabled_rules_resize_is_not_repeated() -> None:
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
        "the request to grow was not delivered (no route); it will be repeated"
    ]
    told.end("a.0")
    assert not [one for one in told.wait(100) if one.type == "resize"]
