"""Errors for statistics (``STAT.NAME``) in rules that can never have a value."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()


def loaded(rule: str) -> list[str]:
    """Return the errors of a file with this rule: place, message and hint."""
    text = f"""
jobs:
  - {{name: sim, command: sim, observe: {{json-lines: {{fields: [E]}}}}}}
  - {{name: post, command: post}}
rules:
  - {{trigger: start, action: {{name: submit}}}}
  - {{{rule}}}
"""
    try:
        load_text(text, REGISTRY)
    except FileErrors as errors:
        return [
            f"{one.where.line}:{one.where.column} {one.what}: {one.hint}" for one in errors.errors
        ]  # type: ignore[union-attr]
    return []


LOG = "action: {name: log, message: x}"


@pytest.mark.parametrize(
    ("rule", "place", "what", "hint"),
    [
        (f"trigger: observed, name: sim, when: maxx.E > 3, {LOG}", "7:42", "no statistic 'maxx'", "'max.E'"),
        (f"trigger: observed, name: sim, when: avg.E > 3, {LOG}", "7:42", "no statistic 'avg'", "'mean.E'"),
        (f"trigger: job-done, name: sim, when: max.EE > 3, {LOG}", "7:42", "no column or result 'EE'", "'max.E'"),
        (f"trigger: job-done, name: post, when: max.duratio > 3, {LOG}", "7:43", "'duratio'", "'max.duration'"),
        (f"trigger: job-done, name: sim, when: count.don > 3, {LOG}", "7:42", "no count 'don'", "'count.done'"),
        (f"trigger: idle, name: sim, when: count.sim.done > 3, {LOG}", "7:38", "no count", "metric('count.sim.done')"),
        (f"trigger: idle, name: sim, when: mean.sim-E > 3, {LOG}", "7:38", "'sim' is a job group", "metric('mean.sim-…')"),
        (f"trigger: idle, when: mean.E > 3, {LOG}", "7:27", "names no single group", "metric('mean.GROUP-E')"),
        (f"trigger: idle, name: [sim, post], when: count.done > 3, {LOG}", "7:46", "no single group", "count.GROUP.done"),
        (f"trigger: quantile, when: quantile.E > 3, {LOG}", "7:15", "no trigger", ""),
        ("trigger: job-done, name: sim, action: {name: log, message: 'at {max.F}'}", "7:74", "yields 'F'", "fields"),
        ("trigger: start, action: {name: log, message: '{mean.E}'}", "7:53", "no single group", "metric"),
        (f"trigger: idle, name: [sim, pots], {LOG}", "7:33", "no job group 'pots'", "'post'"),
        (f"trigger: idle, name: [], {LOG}", "7:27", "empty", ""),
        (f"trigger: job-done, name: [sim, post], {LOG}", "7:31", "expected a string", ""),
    ],
)  # fmt: skip
def test_name_that_can_never_have_a_value_is_rejected_at_its_place(
    rule: str, place: str, what: str, hint: str
) -> None:
    told = loaded(rule)
    assert len(told) == 1
    assert told[0].startswith(place)
    assert what in told[0]
    assert hint in told[0]


@pytest.mark.parametrize(
    "when",
    [
        "max.E > 3",
        "last.duration > 3",
        "count.lost > 0",
        "p95.E > 2",
        "isnan(last.E)",
        "isnan(all.last.E)",
        "isinf(all.last.E(E > 1))",
    ],
)
def test_columns_durations_and_counts_are_known(when: str) -> None:
    assert loaded(f"trigger: observed, name: sim, when: {when}, {LOG}") == []


def test_a_statistic_that_skips_nan_is_named_in_the_error() -> None:
    (told,) = loaded(f"trigger: idle, name: sim, when: isnan(all.mean.E), {LOG}")
    assert "'isnan(all.mean.E)' is never true: 'mean' skips values that are not finite" in told


def test_rule_records_the_names_in_its_condition_and_actions() -> None:
    ensemble = load_text(
        """
jobs: [{name: sim, command: sim, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {trigger: job-done, name: sim, when: max.E > 3, action: [{name: log, message: "{min.T}"}, {name: log, message: "{{other.T}}"}]}
  - {trigger: idle, name: sim, when: max.E > 3, action: {name: log, message: "{count.done}"}}
""",
        REGISTRY,
    )
    of_job, of_group = ensemble.rules[1:]
    assert of_job.reads == {"max.E", "min.T"}
    assert of_job.reads_of is None
    assert of_group.reads == {"max.E", "count.done"}
    assert of_group.reads_of == "sim"
