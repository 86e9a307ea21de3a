"""Warnings about rules that use a result while jobs run, if it is also a printed column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ensemble_core.config import load, load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
WARNING = "not the rows that jobs print"
ROOT = Path(__file__).parents[2]


def warnings(
    *rules: str,
    observe: str = "{key-value: {fields: [E, F]}}",
    result: str = "{E: last.E, G: last.F}",
    more: str = "",
) -> list[str]:
    """Return the warnings about names of a file with these rules, which begin in line 7."""
    listed = "\n".join(f"  - {{{rule}}}" for rule in rules)
    text = f"""
jobs:
  - {{name: sim, command: sim, parameters: {{T: [1, 2]}}, observe: {observe}, result: {result}}}
  - {{name: post, command: post, observe: {{key-value: {{fields: [E]}}}}, result: {{H: last.E}}}}
rules:
  - {{trigger: start, action: {{name: submit}}}}
{listed}
results:
  t: {{of: sim, by: [T], columns: {{E: mean.E, e: error.E}}}}
{more}
"""
    return [one for one in load_text(text, REGISTRY).warnings if WARNING in one]


LOG = "action: {name: log, message: x}"
SAYS = "action: {name: log, message: 'E is {mean.E:.3f}'}"
WITH = "action: {name: submit, label: sim, with: {parameters: {T: '= mean.E'}}}"


@pytest.mark.parametrize(
    ("rule", "name", "rows"),
    [
        (f"trigger: observed, name: sim, when: all.error.E > 1, {LOG}", "error.E", ""),
        (f"trigger: observed, name: sim, each: [T], when: error.E > 1, {LOG}", "error.E", ""),
        (f"trigger: job-success, name: sim, each: [T], when: error.E > 1, {LOG}", "error.E", ""),
        (f"trigger: job-start, name: sim, when: all.mean.E > 1, {LOG}", "mean.E", ""),
        (f"trigger: observed, name: sim, when: all.mean.E(T == 1) > 1, {LOG}", "mean.E", ""),
        (
            f"trigger: start, when: 'metric(\"mean.sim-E\") > 1', {LOG}",
            "mean.sim-E",
            "mean.sim-rows.E",
        ),
        (
            f"trigger: observed, name: post, when: 'metric(\"mean.sim-E\") > 1', {LOG}",
            "mean.sim-E",
            "mean.sim-rows.E",
        ),
        (
            "trigger: start, action: {name: log, message: '{mean.sim-E}'}",
            "mean.sim-E",
            "mean.sim-rows.E",
        ),
        (
            f"trigger: metric, name: mean.sim-E, when: '> 1', {LOG}",
            "mean.sim-E",
            "mean.sim-rows.E",
        ),
        (
            f"trigger: metric, name: last.sim-E, when: '> 1', {LOG}",
            "last.sim-E",
            "last.sim-rows.E",
        ),
        (f"trigger: observed, name: sim, each: [T], {WITH}", "mean.E", ""),
    ],
)
def test_rule_that_uses_a_result_while_jobs_run_causes_a_warning_at_the_name(
    rule: str, name: str, rows: str
) -> None:
    (told,) = warnings(rule)
    column = 6 + rule.index("all." + name if "all." in rule else name)
    assert told.startswith(f"ensemble.yaml:7:{column}: rule 'rule-2' uses {name} while "), told
    assert "'E' is a result of 'sim'" in told
    assert f"If you mean the rows, write {rows or name.replace('.', '.rows.')}." in told
    # The proposed name causes no warning and no error.
    assert warnings(rule.replace(name, rows or name.replace(".", ".rows."))) == []


@pytest.mark.parametrize(
    "rule",
    [
        f"trigger: idle, name: sim, when: error.E > 1, {LOG}",  # means the results
        f"trigger: idle, name: sim, each: [T], when: error.E > 1, {LOG}",
        f"trigger: job-done, name: sim, each: [T], when: error.E > 1, {LOG}",
        f"trigger: job-done, name: sim, when: all.mean.E > 1, {LOG}",
        f"trigger: idle, name: sim, {SAYS}",
        f"trigger: observed, name: sim, each: [T], when: mean.F > 1, {LOG}",  # only a column
        f"trigger: observed, name: sim, each: [T], when: mean.G > 1, {LOG}",  # only a result
        f"trigger: metric, name: mean.post-E, when: '> 1', {LOG}",  # another group
        f"trigger: start, when: max.t.E > 1, {LOG}",  # the table
        f"trigger: observed, name: sim, when: mean.E > 1 and E > 1, {LOG}",  # one job's rows
        f"trigger: job-success, name: sim, when: mean.E > 1, {LOG}",
        "trigger: start, action: {name: log, message: '{{mean.E}}, mean.E'}",  # plain text
    ],
)
def test_rule_whose_meaning_is_clear_causes_no_warning(rule: str) -> None:
    assert warnings(rule) == []


def test_rule_with_several_statistics_of_a_name_causes_one_warning() -> None:
    says = "action: {name: log, message: 'E is {mean.E:.3f}'}"
    rules = [
        f"trigger: observed, name: sim, each: [T], when: error.E > 1 and mean.E > 1, {says}"
    ] * 2
    told = warnings(*rules)
    assert [one.partition(" while")[0] for one in told] == [
        f"ensemble.yaml:{line}:53: rule {rule!r} uses error.E and mean.E"
        for line, rule in ((7, "rule-2"), (8, "rule-3"))
    ]


@pytest.mark.parametrize(
    ("result", "warned"),
    [("{E: last.E}", True), ("{E: last.rows.E - 1}", True), ("{E: last.energy}", False)],
)
def test_name_counts_as_a_column_of_an_observer_without_fields_if_the_result_reads_it(
    result: str, warned: bool
) -> None:
    rule = f"trigger: observed, name: sim, each: [T], when: error.E > 1, {LOG}"
    assert bool(warnings(rule, observe="{key-value: {}}", result=result)) is warned


def test_examples_and_pages_cause_no_such_warning() -> None:
    found = []
    for path in [
        *(ROOT / "examples").rglob("*.yaml"),
        *ROOT.glob("ensemble_core/cli/templates/**/*.yaml"),
    ]:
        try:
            found += [(path, one) for one in load(str(path), REGISTRY).warnings]
        except EnsembleError:
            continue  # needs a plugin that is not installed
    for path in (ROOT / "docs").rglob("*.md"):
        for text in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            try:
                found += [(path, one) for one in load_text(text, REGISTRY).warnings]
            except EnsembleError:
                continue  # a part of a file
    assert [one for one in found if WARNING in one[1]] == []


FIELDS = """
jobs:
  - {name: sim, command: 'sim {name} {duration} {size}',
     parameters: {name: [a, b], duration: [1, 2], size: [1]}, observe: {json-lines: {fields: [E]}}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-success, name: sim, when: "WHEN", action: {name: log, message: x}}
"""


@pytest.mark.parametrize(
    ("when", "names"),
    [
        ("name == 'a'", ["name"]),
        ("size == 1 and duration > 1 and name != 'b'", ["duration", "name"]),
        ("size == 1", []),
        ("mean.E(name == 'a') > 1", []),
    ],
)
def test_a_parameter_that_a_field_of_the_event_hides_causes_a_warning(
    when: str, names: list[str]
) -> None:
    found = load_text(FIELDS.replace("WHEN", when), REGISTRY).warnings
    told = [one for one in found if "is a field of the event, not the parameter" in one]
    assert [one.partition("'")[2].partition("'")[0] for one in told] == names
    assert all(one.startswith("ensemble.yaml:7:") for one in told)


@pytest.mark.parametrize(
    "key",
    [
        "result: {rate: last.E / duration}",
        "fail_if: duration > 1",
        "retry: {times: 1, when: duration > 1}",
        "retry: {times: 1, with: {parameters: {size: '= 2 * duration'}}}",
        "retry: {times: 1, with: {parameters: {size: '{duration}'}}}",
    ],
)
def test_a_hidden_parameter_in_a_key_of_a_job_group_causes_a_warning(key: str) -> None:
    text = FIELDS.replace("observe:", f"{key}, observe:").replace("WHEN", "exit_code == 0")
    (told,) = load_text(text, REGISTRY).warnings
    assert "'duration' in " in told
    assert "is a field of the event, not the parameter of this name" in told


def test_a_hidden_parameter_in_a_message_causes_a_warning() -> None:
    text = FIELDS.replace("message: x", "message: 'done {size} {name} {job}'")
    (told,) = load_text(text.replace("WHEN", "exit_code == 0"), REGISTRY).warnings
    assert "'name' in 'done {size} {name} {job}' is a field of the event" in told


@pytest.mark.parametrize(
    ("trigger", "hidden"),
    [
        ("job-start", ["timestamp"]),
        ("job-submit", ["timestamp"]),
        ("job-done", ["duration", "timestamp"]),
        ("job-fail", ["duration", "timestamp"]),
    ],
)
def test_an_event_before_the_end_of_a_job_hides_no_parameter_named_duration(
    trigger: str, hidden: list[str]
) -> None:
    text = FIELDS.replace("size: [1]", "size: [1], timestamp: [3]").replace("job-success", trigger)
    found = load_text(text.replace("WHEN", "duration > 5 and timestamp > 0"), REGISTRY).warnings
    told = [one for one in found if "is a field of the event, not the parameter" in one]
    assert [one.partition("'")[2].partition("'")[0] for one in told] == hidden
