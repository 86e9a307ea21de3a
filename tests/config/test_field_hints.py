"""Names that no row will have: what the file's author is told to write instead."""

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
def test_a_name_that_the_fields_leave_out_is_to_be_added_to_them(rule: str) -> None:
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
def test_a_misspelt_name_is_no_field_to_be_added(rule: str, hint: str) -> None:
    (error,) = errors(FINAL, rule)
    assert error.hint is not None
    assert error.hint.startswith(hint)


def test_without_an_observer_a_rows_field_wants_one_and_not_literal_braces() -> None:
    (error,) = errors("", "trigger: observed, name: sim, " + LOG % "{loss}")
    assert error.hint is not None
    assert error.hint.startswith("give the job group an observer that yields it ('observe:')")


def test_a_rows_field_at_the_end_of_a_job_is_said_to_be_in_rows_only() -> None:
    (error,) = errors(FINAL, "trigger: job-finish, name: sim, " + LOG % "{final}")
    assert error.hint is not None
    assert error.hint.startswith("only rows of output have 'final' (trigger: observed)")


def test_without_fields_any_name_may_come() -> None:
    rule = "trigger: observed, name: sim, when: loss > 1, " + LOG % "{loss}"
    assert errors("observe: {json-lines: {}},", rule) == []
