"""Precedence of names that are shared by fields of jobs, parameters and columns."""

from __future__ import annotations

from ensemble_testing import Story


def told(head: str, rule: str) -> list[str]:
    story = Story(f"{head}\nrules:\n  - {{trigger: start, action: {{name: submit}}}}\n  - {rule}\n")
    story.start()
    story.begin("sim.1")
    story.observe("sim.1", {"T": 7.0, "attempt": 9.0, "E": 1.0})
    story.end("sim.1")
    return [*story.messages(), *story.ensemble.warnings]


PLAIN = "jobs: [{name: sim, command: sim, replicas: 2, observe: {json-lines: {fields: [E]}}}]"
SWEEP = """jobs:
  - {name: sim, command: "sim {T} {run}", parameters: {T: [1, 2], run: [8]}, observe: {json-lines: {fields: [T, attempt, E]}}}
"""


def test_conditions_may_use_attempt_replica_and_the_runs_tag() -> None:
    rule = "{trigger: job-done, when: attempt == 0 and replica == 1, action: {name: log, message: '{attempt} {replica} {index}'}}"
    assert told(PLAIN, rule) == ["0 1 1"]


def test_columns_and_parameters_override_them() -> None:
    rule = "{trigger: observed, when: attempt == 9 and run == 8, action: {name: log, message: '{attempt:.0f} {run}'}}"
    assert told(SWEEP, rule) == ["9 8"]


def test_a_parameter_overrides_a_column_with_a_warning() -> None:
    rule = "{id: hot, trigger: observed, when: T == 2, action: {name: log, message: '{T} {last.T:.0f}'}}"
    message, warning = told(SWEEP, rule)
    assert message == "2 7"
    assert "'T', which is both a parameter and a column" in warning
    assert "last.T" in warning


def test_unused_ambiguous_names_cause_no_warning() -> None:
    rule = "{id: hot, trigger: observed, when: E == 1, action: {name: log, message: x}}"
    assert told(SWEEP, rule) == ["x"]
