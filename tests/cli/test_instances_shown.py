"""Tests of descriptions of rules with ``each`` or ``repetitions``."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.cli.why_text import describe_rule
from ensemble_core.display.summary import rule_lines
from ensemble_core.display.text_style import TextStyle


@pytest.mark.parametrize(
    ("rule", "described"),
    [
        ("trigger: job-done, name: sim, each: job", "job-done of sim; may fire once for each job"),
        (
            "trigger: idle, name: [sim, post], each: [T], repetitions: 2",
            "idle of sim and post; may fire twice for each T",
        ),
        ("trigger: heartbeat, repetitions: unlimited", "heartbeat; may fire any number of times"),
    ],
)
def test_description_of_a_rule_with_each(rule: str, described: str) -> None:
    told = Story(
        f"""
jobs:
  - {{name: sim, command: "sim {{T}}", parameters: {{T: [1, 2]}}}}
  - {{name: post, command: "post {{T}}", parameters: {{T: [1, 2]}}}}
rules:
  - {{trigger: start, action: {{name: submit}}}}
  - {{{rule}, action: {{name: log, message: x}}}}
"""
    )
    assert describe_rule(told.ensemble.rules[1]) == described


def test_summary_counts_matches_of_exhausted_instances() -> None:
    told = Story(
        """
jobs: [{name: sim, command: sim, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {id: hot, trigger: observed, name: sim, each: job, when: E > 3, action: {name: log, message: x}}
"""
    )
    told.start()
    told.begin("sim.0")
    for _ in range(5):
        told.observe("sim.0", E=4.0)
    lines = rule_lines(told.engine.report().rules, TextStyle())
    assert any("matched 4 times more after firing once (each: job)" in line for line in lines), (
        lines
    )
