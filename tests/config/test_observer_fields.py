"""Hints for invalid column names in rules."""

from __future__ import annotations

from functools import cache

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError, FileErrors
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry


@cache
def installed() -> Registry:
    return discover()


def errors(observe: str, rule: str) -> list[EnsembleError]:
    text = f"""
jobs: [{{name: sim, command: sim, {observe}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{{rule}}}
"""
    try:
        load_text(text, installed())
    except FileErrors as found:
        return list(found.errors)
    except EnsembleError as error:
        return [error]
    return []


FINAL = "observe: {json-lines: {fields: [final, step]}},"
LOG = 'action: {name: log, message: "%s"}'


@pytest.mark.parametrize(
    "rule",
    [
        "trigger: observed, name: sim, " + LOG % "{loss}",
        "trigger: observed, name: sim, when: loss > 1, " + LOG % "high",
        "trigger: metric, name: mean.sim-loss, when: '> 1', " + LOG % "high",
    ],
)
def test_hint_says_to_add_a_column_to_the_fields(rule: str) -> None:
    (error,) = errors(FINAL, rule)
    assert error.hint == "add 'loss' to the fields of json-lines"


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("trigger: metric, name: mean.sim-finall, " + LOG % "x", "did you mean 'mean.sim-final'?"),
        ("trigger: observed, name: sim, " + LOG % "{finall}", "did you mean {final}?"),
        ("trigger: observed, name: sim, " + LOG % "{indx}", "did you mean {index}?"),
    ],
)
def test_misspelt_name_gets_a_suggestion_instead(rule: str, hint: str) -> None:
    (error,) = errors(FINAL, rule)
    assert error.hint is not None
    assert error.hint.startswith(hint)


def test_hint_for_a_group_without_observer_says_to_add_one() -> None:
    (error,) = errors("", "trigger: observed, name: sim, " + LOG % "{loss}")
    assert error.hint is not None
    assert error.hint.startswith("give the job group an observer that yields it ('observe:')")


def test_hint_says_that_a_column_is_in_rows_only() -> None:
    (error,) = errors(FINAL, "trigger: job-finish, name: sim, " + LOG % "{final}")
    assert error.hint is not None
    assert error.hint.startswith("only rows of output have 'final' (trigger: observed)")


def test_any_name_is_accepted_without_fields() -> None:
    rule = "trigger: observed, name: sim, when: loss > 1, " + LOG % "{loss}"
    assert errors("observe: {json-lines: {}},", rule) == []
