"""``each``, ``for`` and ``repetitions`` of rules: valid uses and errors."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.rules import UNLIMITED
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
LOG = "action: {name: log, message: x}"


def load(rules: str, limits: str = "{}") -> Ensemble:
    return load_text(
        f"""
limits: {limits}
jobs:
  - {{name: sim, command: "sim {{T}} {{seed}}", parameters: {{T: [1, 2], seed: [1, 2]}}, observe: {{json-lines: {{fields: [E]}}}}}}
  - {{name: post, command: "post {{T}}", parameters: {{T: [1, 2]}}}}
rules:
  - {{trigger: start, action: {{name: submit}}}}
{rules}
""",
        REGISTRY,
    )


def told(rule: str) -> list[str]:
    try:
        load(f"  - {{{rule}}}")
    except FileErrors as errors:
        return [
            f"{one.where.line if one.where else 0}:{one.where.column if one.where else 0} "
            f"{one.what}: {one.hint}"
            for one in errors.errors
        ]
    return []


@pytest.mark.parametrize(
    ("rule", "at", "what", "hint"),
    [
        (f"trigger: start, each: job, {LOG}", "each: ", "'start' has no job", "job-done"),
        (f"trigger: idle, name: sim, each: job, {LOG}", "each: ", "'idle' has no job", "job-done"),
        (f"trigger: interval, seconds: 5, each: [T], {LOG}", "each: ", "got 'interval'", ""),
        (f"trigger: heartbeat, each: [T], {LOG}", "each: ", "got 'heartbeat'", "idle"),
        (f"trigger: metric, name: mean.sim-E, each: [T], {LOG}", "each: ", "got 'metric'", "mean.NAME > 5"),
        (f"trigger: metric, name: mean.sim-E, each: job, {LOG}", "each: ", "'metric' has no job", "observed"),
        (f"trigger: resize-granted, each: job, {LOG}", "each: ", "has no job", ""),
        (f"trigger: observed, each: [T], {LOG}", "each: ", "needs a job group", "add 'name: sim'"),
        (f"trigger: idle, each: [T], {LOG}", "each: ", "needs a job group", "add 'name: sim'"),
        (f"trigger: observed, name: sim, each: T, {LOG}", "each: ", "'T'", "each: [T]"),
        (f"trigger: observed, name: sim, each: [sed], {LOG}", "each: [", "no parameter 'sed'", "'seed'"),
        (f"trigger: observed, name: post, each: [x], {LOG}", "each: [", "no parameter 'x'", "T"),
        (f"trigger: idle, name: [sim, post], each: [T, seed], {LOG}", "each: [T, ", "'post' has no parameter 'seed'", "T"),
        (f"trigger: observed, name: sim, each: [], {LOG}", "each: ", "empty", ""),
        (f"trigger: observed, name: sim, each: 5, {LOG}", "each: ", "the number 5", ""),
        (f"trigger: observed, name: sim, each: [T, T], {LOG}", "each: ", "", ""),
        (f"trigger: observed, name: sim, each: [5], {LOG}", "each: [", "the number 5", ""),
        (f"trigger: observed, name: sim, for: 3, {LOG}", "", "'for'", "each: job"),
        (f"trigger: heartbeat, for: 0, {LOG}", "for: ", "at least 1", ""),
        (f"trigger: heartbeat, for: 5s, {LOG}", "", "no condition ('when')", "interval"),
        (f"trigger: heartbeat, repetitions: 0, {LOG}", "repetitions: ", "at least 1", "repetitions: unlimited"),
        (f"trigger: heartbeat, repetitions: .inf, {LOG}", "repetitions: ", "", "repetitions: unlimited"),
        (f"trigger: heartbeat, repetitions: inf, {LOG}", "repetitions: ", "'inf'", "repetitions: unlimited"),
        (f"trigger: heartbeat, repetitions: for ever, {LOG}", "repetitions: ", "", "repetitions: unlimited"),
        ("trigger: heartbeat, action: {name: log, message: x, repetitions: -1}", "repetitions: ", "", "repetitions: unlimited"),
        (f"trigger: idle, name: sim, each: [T], when: seed > 1, {LOG}", "when: ", "'seed'", "T"),
        ("trigger: idle, name: sim, each: [T], action: {name: log, message: '{sed}'}", "message: '", "no field 'sed'", ""),
    ],
)  # fmt: skip
def test_wrong_each_for_or_repetitions_is_reported_at_its_place(
    rule: str, at: str, what: str, hint: str
) -> None:
    line = f"  - {{{rule}}}"
    found = told(rule)
    assert len(found) == 1, found
    place, _, rest = found[0].partition(" ")
    row, column = map(int, place.split(":"))
    assert row == 8
    assert not at or column == line.index(at) + len(at) + 1, found
    assert what in rest
    assert hint in rest


def test_rule_is_bound_with_its_instances_looks_and_repetitions() -> None:
    one, two = load(
        f"""
  - {{trigger: idle, name: [sim, post], each: [T], repetitions: unlimited, when: count.done > T, {LOG}}}
  - {{trigger: heartbeat, for: 5, when: 'metric("count.sim.open") > 2', {LOG}}}
"""
    ).rules[1:]
    assert one.each == ("T",)
    assert one.repetitions == UNLIMITED
    assert one.groups == ("sim", "post")
    assert one.reads == {"count.done"}
    assert one.reads_of is None
    assert two.checks == 5


def test_endless_idle_rule_causes_a_warning() -> None:
    rule = (
        "  - {trigger: idle, name: sim, repetitions: unlimited, action: {name: submit, label: sim}}"
    )
    assert [one for one in load(rule).warnings if "endlessly" in one]
    assert not [one for one in load(rule, "{jobs: 100}").warnings if "endlessly" in one]
    assert [one for one in load(rule, "{chain: 5}").warnings if "endlessly" in one]
    quiet = rule.replace("{name: submit, label: sim}", "{name: log, message: x}")
    assert not [one for one in load(quiet).warnings if "endlessly" in one]


def again(trigger: str, more: str = "") -> str:
    return f"  - {{trigger: {trigger}, name: sim, {more} action: {{name: retry}}}}\n"


@pytest.mark.parametrize(
    ("rules", "warned"),
    [
        (again("job-fail") + again("job-fail"), True),
        (again("job-fail") + again("job-clean", "when: exit_code == 2,"), True),
        (again("job-fail", "when: exit_code == 1,") + again("job-fail", "when: exit_code == 2,"), False),
        (again("job-fail") + again("job-fail").replace("sim", "post"), False),
        (again("job-fail"), False),
    ],
)  # fmt: skip
def test_two_rules_that_retry_the_same_job_cause_a_warning(rules: str, warned: bool) -> None:
    assert any("both retry the same job" in one for one in load(rules).warnings) == warned


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("trigger: job-fail, repetitions: unlimited, action: {name: retry}", "has no limit"),
        ("trigger: job-start, action: {name: retry}", "'job-start' does not report ends of jobs"),
    ],
)
def test_retry_needs_a_limit_and_an_end_of_a_job(rule: str, what: str) -> None:
    assert [one for one in told(rule) if what in one]


def test_rule_that_retries_has_an_instance_for_each_job() -> None:
    assert load(again("job-fail")).rules[1].each == "job"
