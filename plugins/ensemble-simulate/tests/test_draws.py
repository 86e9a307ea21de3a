"""Tests of a model's distributions: notation, drawn values, and invalid input."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest
from ensemble_simulate.distributions import Stream, parse

from ensemble_core import EnsembleError


def _drawn(text: object, count: int = 4000, **names: float) -> list[float]:
    random = Random(7)
    draw = parse(text, tuple(names))
    return [draw.number(names, random) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("60 * L ** 2 / cores", 120.0), ("= L", 4.0)],
)
def test_numbers_durations_and_arithmetic_have_their_value(text: object, seconds: float) -> None:
    assert set(_drawn(text, 3, L=4, cores=8)) == {seconds}


def test_a_condition_is_one_or_zero() -> None:
    assert _drawn("L > 3", 1, L=4) == [1.0]
    assert _drawn("L > 3", 1, L=2) == [0.0]


def test_distributions_have_the_moments_of_their_arguments() -> None:
    assert statistics.mean(_drawn("normal(5m, 10)")) == pytest.approx(300, abs=1)
    assert statistics.stdev(_drawn("normal(5m, 10)")) == pytest.approx(10, rel=0.05)
    assert statistics.median(_drawn("lognormal(60 * L, 0.5)", L=2)) == pytest.approx(120, rel=0.05)
    logs = [math.log(each) for each in _drawn("lognormal(2m, 0.5)")]
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.05)
    assert statistics.mean(_drawn("exponential(10)")) == pytest.approx(10, rel=0.06)
    low, high = min(_drawn("uniform(2, 1m)")), max(_drawn("uniform(2, 1m)"))
    assert 2 <= low < 3
    assert 59 < high <= 60


def test_recorded_values_are_drawn() -> None:
    assert set(_drawn(["1m", 2.5, 7])) == {60.0, 2.5, 7.0}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("60 * LL", "'LL'", "did you mean 'L'?"),
        ("norml(3, 4)", "'norml'", "did you mean 'normal'?"),
        ("normal(3)", "1 argument, expected 2", "normal(MEAN, DEVIATION)"),
        ("uniform(1, 2, 3)", "3 arguments, expected 2", "uniform(LOW, HIGH)"),
        ('metric("mean.sim-x")', "uses a metric", "parameters"),
        ([], "needs at least one value", None),
        (["1m", "x"], "only numbers and durations", None),
        (True, "True is not a number", "arithmetic"),
        ({"a": 1}, "not a number", "normal"),
    ],
)
def test_an_invalid_number_is_rejected_with_a_hint(
    text: object, said: str, hint: str | None
) -> None:
    with pytest.raises(EnsembleError) as caught:
        parse(text, ("L", "cores"))
    assert said in caught.value.what
    assert hint is None or hint in str(caught.value.hint)


def test_a_stream_is_uniform_and_independent_of_its_start() -> None:
    numbers = [Stream(f"job.{index}").random() for index in range(4000)]
    assert numbers == [Stream(f"job.{index}").random() for index in range(4000)]
    counts = [sum(low <= 10 * each < low + 1 for each in numbers) for low in range(10)]
    chi_square = sum((count - 400) ** 2 / 400 for count in counts)
    assert chi_square < 27.9  # 0.1 % of uniform samples exceed it
    one = Stream("one")
    assert {one.choice("abc") for _ in range(100)} == {"a", "b", "c"}
    assert len({one.random() for _ in range(100)}) == 100
