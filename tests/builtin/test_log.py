"""Tests of the action ``log``: placeholders in messages."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_testing import FakeFiring

from ensemble_core.builtin.actions import ensemble_actions

(LOG,) = [record for record in ensemble_actions() if record.name == "log"]


def told(message: str, **fields: Any) -> tuple[str, str]:
    assert LOG.plan is not None
    (decision,) = LOG.plan(FakeFiring(fields=fields), {"message": message})
    said = decision.to_dict()
    return said["message"], said["level"]


def test_missing_column_becomes_a_question_mark_and_a_warning() -> None:
    message, level = told("{job} is bound by {bound:.1f}, {bound}", job="a.0")
    assert message == "a.0 is bound by ?, ? (the event has no 'bound')"
    assert level == "warning"


def test_missing_name_with_a_dot_becomes_a_question_mark_too() -> None:
    """The names of columns may be unknown before the run, so ``validate`` cannot refuse it."""
    assert told("{foo.bar_baz}") == ("? (the event has no 'foo.bar_baz')", "warning")


def test_placeholder_is_replaced_by_the_rows_value() -> None:
    assert told("bound by {bound:.1f}", bound=2) == ("bound by 2.0", "info")


@pytest.mark.parametrize("text", ['{"a": 1}', "{x.y:80/tcp}", "{host:port}", "${HOME}"])
def test_other_braces_are_unchanged(text: str) -> None:
    assert told(text) == (text, "info")


def test_doubled_braces_become_single_ones() -> None:
    assert told("{{bound}}") == ("{bound}", "info")
