"""Conditions with missing values: ``or`` and ``and`` need only the values that decide them. The
summary names the missing values of a rule."""

from __future__ import annotations

import math

import pytest
from ensemble_testing import Story

from ensemble_core.display.why_not_fired import why_not_fired
from ensemble_core.model.conditions import parse

ROWS = """
jobs: [{name: md, command: lmp, observe: {json-lines: {}}}]
rules:
  - {trigger: start, action: {name: submit, label: md}}
  - {id: hot, trigger: observed, name: md, when: WHEN, action: {name: cancel}}
"""


def nothing(path: str) -> float | None:
    """Return ``None``, as for a metric without a value."""
    return None


def verdict(when: str, **fields: float) -> bool | None:
    return parse(when, has_value=False).verdict(None, fields, nothing)


@pytest.mark.parametrize("when", ["NonFinite > 0 or Temp > 10", "Temp > 10 or NonFinite > 0"])
def test_one_true_part_of_an_or_is_enough_in_any_order(when: str) -> None:
    assert verdict(when, Temp=20) is True
    assert verdict(when, NonFinite=1) is True
    assert verdict(when, Temp=5) is None
    assert verdict(when, Temp=5, NonFinite=0) is False
    assert verdict(when, Temp=math.nan, NonFinite=1) is True


@pytest.mark.parametrize("when", ["Step > 100 and Temp > 10", "Temp > 10 and Step > 100"])
def test_one_false_part_makes_an_and_false(when: str) -> None:
    assert verdict(when, Temp=20, Step=200) is True
    assert verdict(when, Temp=20) is None
    assert verdict(when, Temp=5) is False


def test_not_of_a_missing_value_is_missing() -> None:
    assert verdict("not (Temp > 10)") is None
    assert verdict("not (Temp > 10 and Step > 100)", Temp=5) is True
    assert verdict("not (Temp > 10 or Step > 100)", Temp=5) is None


def test_an_invalid_operation_counts_as_a_missing_value() -> None:
    assert verdict("sqrt(Temp) > 1 or Step > 100", Temp=-1, Step=200) is True
    assert verdict("sqrt(Temp) > 1 or Step > 100", Temp=-1, Step=50) is None
    assert verdict("1 / Temp > 1 or metric('count.md.failed') > 1 or Step > 1", Temp=0, Step=2)


def test_missing_values_in_untaken_branches_do_not_matter() -> None:
    assert verdict("(Press if Temp > 10 else 3) > 2", Temp=5) is True
    assert verdict("(Press if Temp > 10 else 3) > 2", Temp=20) is None
    assert verdict("1 < Temp < Press", Temp=0) is False
    assert verdict("(Step > 1 if Press > 0 or Temp > 1 else 0) and Step", Temp=2, Step=2) is True
    assert verdict("((Press or Temp) + 1 > 2) or Press", Temp=2) is True


def test_a_job_with_nan_is_cancelled_by_the_known_part_of_a_condition() -> None:
    story = Story(ROWS.replace("WHEN", "NonFinite > 0 or Temp > 10"))
    story.start()
    story.begin("md.0")
    assert story.observe("md.0", Temp=2.0) == []
    assert [decision.type for decision in story.observe("md.0", Temp=1e6)] == ["fired", "cancel"]


def test_the_summary_names_a_column_that_no_row_had() -> None:
    story = Story(ROWS.replace("WHEN", "Tmep > 10"))
    story.start()
    story.begin("md.0")
    story.observe("md.0", Temp=20.0)
    report = story.engine.report()
    (rule,) = [rule for rule in report.rules if rule.id == "hot"]
    assert why_not_fired(rule).endswith("it last saw Tmep without a value")


def test_rows_without_the_column_do_not_hide_its_last_value() -> None:
    story = Story(ROWS.replace("WHEN", "Temp > 10"))
    story.start()
    story.begin("md.0")
    story.observe("md.0", Temp=3.0)
    story.observe("md.0", WallTime=1.0)
    (rule,) = [rule for rule in story.engine.report().rules if rule.id == "hot"]
    assert why_not_fired(rule).endswith("it last saw Temp=3.0")
