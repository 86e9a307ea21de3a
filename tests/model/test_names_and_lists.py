"""Mistakes with lists and brackets in formulas, and rounding functions."""

from __future__ import annotations

import pytest

from ensemble_core.errors import EnsembleError
from ensemble_core.model import conditions
from ensemble_core.model.expressions import expression


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('cause in ("timeout")', "write == 'timeout', or ('timeout',)"),
        ('cause not in ( "timeout" )', "write != 'timeout'"),
        ("T in (3)", "write == 3, or (3,)"),
        ("T in 3", "write == 3"),
        ('cause in ("timeout"', "quote text that contains a comma"),
    ],
)
def test_brackets_around_one_value_are_not_a_list(text: str, hint: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        conditions.parse(text, has_value=False)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    [
        'cause in ("timeout",)',
        'cause in ("a", "b")',
        '"node" in note',
        'group in "a b"',
        "T in (1, 2)",
    ],
)
def test_in_searches_lists_and_texts(text: str) -> None:
    conditions.parse(text, has_value=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("= ceil(2.1) + floor(2.9)", 5),
        ("= ceil(-0.5)", 0),
        ("= floor(T / 2)", 1),
        ("= ceil(1e400)", None),
        ('= "cold" if T < 5 else "hot"', "cold"),
        ('= "a" if T in (1, 2) else "b"', "b"),
    ],
)
def test_expressions_can_round_and_choose_texts(text: str, value: object) -> None:
    assert expression(text, texts=True).result({"T": 3}, {}.get) == value


def test_an_expression_cut_at_a_comma_has_a_hint() -> None:
    with pytest.raises(EnsembleError) as caught:
        expression("= min(T")
    assert "quote text that contains a comma" in str(caught.value.hint)
