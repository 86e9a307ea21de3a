"""Warnings about rules with a name that is both a printed column and a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ensemble_core.config import load, load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
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
    return [one for one in load_text(text, REGISTRY).warnings if "in a table" in one]


LOG = "action: {name: log, message: x}"
SAYS = "action: {name: log, message: 'E is {mean.E:.3f}'}"
WITH = "action: {name: submit, label: sim, with: {parameters: {T: '= mean.E'}}}"


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (f"trigger: idle, name: sim, when: error.E > 1, {LOG}", "error.E"),
        (f"trigger: idle, name: sim, each: [T], when: error.E > 1, {LOG}", "error.E"),
        (f"trigger: job-done, name: sim, each: [T], when: error.E > 1, {LOG}", "error.E"),
        (f"trigger: job-done, name: sim, when: all.mean.E > 1, {LOG}", "mean.E"),
        (f"trigger: idle, name: sim, when: mean.E(T == 1) > 1, {LOG}", "mean.E"),
        (f"trigger: start, when: 'metric(\"mean.sim-E\") > 1', {LOG}", "mean.sim-E"),
        (f"trigger: idle, name: post, when: 'metric(\"mean.sim-E\") > 1', {LOG}", "mean.sim-E"),
        (f"trigger: idle, name: sim, {SAYS}", "mean.E"),
        ("trigger: start, action: {name: log, message: '{mean.sim-E}'}", "mean.sim-E"),
        (f"trigger: metric, name: mean.sim-E, when: '> 1', {LOG}", "mean.sim-E"),
        (f"trigger: idle, name: sim, {WITH}", "mean.E"),
    ],
)
def test_rule_that_covers_rows_where_a_table_covers_results_causes_a_warning_at_the_name(
    rule: str, name: str
) -> None:
    (told,) = warnings(rule)
    column = 6 + rule.index("all." + name if "all." in rule else name)
    assert told.startswith(f"ensemble.yaml:7:{column}: rule 'rule-2' uses {name}: "), told
    assert "all rows that the jobs of 'sim' print" in told
    assert f"'E_result: last.E', and write {name}_result" in told


def test_proposed_name_of_the_result_causes_no_warning() -> None:
    rule = f"trigger: idle, name: sim, when: error.E_result > 1, {LOG}"
    assert warnings(rule, result="{E: last.E, E_result: last.E}") == []


@pytest.mark.parametrize(
    "rule",
    [
        f"trigger: idle, name: sim, when: mean.F > 1, {LOG}",  # only a column
        f"trigger: idle, name: sim, when: mean.G > 1, {LOG}",  # only a result
        f"trigger: idle, name: sim, when: mean.duration > 1 and count.done > 1, {LOG}",
        f"trigger: idle, name: post, when: mean.E > 1 and mean.H > 1, {LOG}",  # another group
        f"trigger: metric, name: mean.post-E, when: '> 1', {LOG}",
        f"trigger: idle, name: sim, when: max.t.E > 1, {LOG}",  # the table
        f"trigger: observed, name: sim, when: mean.E > 1 and E > 1, {LOG}",  # one job's rows
        f"trigger: job-done, name: sim, when: mean.E > 1, {LOG}",
        f"trigger: idle, name: sim, when: last.E > 1, {LOG}",  # the result is the last row
        f"trigger: metric, name: last.sim-E, when: '> 1', {LOG}",
        "trigger: idle, name: sim, action: {name: log, message: '{{mean.E}}, mean.E'}",  # plain text
    ],
)
def test_rule_with_one_meaning_causes_no_warning(rule: str) -> None:
    assert warnings(rule) == []


def test_last_of_a_result_that_is_not_the_last_row_causes_a_warning() -> None:
    rule = f"trigger: idle, name: sim, when: last.E > 1, {LOG}"
    (told,) = warnings(rule, result="{E: mean.E}")
    assert "'E_result: mean.E'" in told


def test_rule_with_several_statistics_of_a_name_causes_one_warning() -> None:
    rules = [f"trigger: idle, name: sim, when: error.E > 1 and mean.E > 1, {SAYS}"] * 2
    told = warnings(*rules)
    assert [one.partition(": in a rule")[0] for one in told] == [
        f"ensemble.yaml:{line}:38: rule {rule!r} uses error.E and mean.E"
        for line, rule in ((7, "rule-2"), (8, "rule-3"))
    ]


@pytest.mark.parametrize(
    ("result", "warned"),
    [("{E: last.E}", True), ("{E: last.E - 1}", True), ("{E: last.energy}", False)],
)
def test_name_counts_as_a_column_of_an_observer_without_fields_if_the_result_reads_it(
    result: str, warned: bool
) -> None:
    rule = f"trigger: idle, name: sim, when: error.E > 1, {LOG}"
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
    assert [one for one in found if "in a table" in one[1]] == []
