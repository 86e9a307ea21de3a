"""Tests of points that depend only on their numbers, resumed with changed values or ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ensemble_testing import PlayedGenerator

from ensemble_core import Exchange, Point, Variable, Vocs
from ensemble_core.builtin.generators import ensemble_generators
from ensemble_core.config.schema import option_defaults
from ensemble_core.model.generators import Generator

RECORDS = {record.name: record for record in ensemble_generators()}
X = Variable(name="x", low=0.0, high=1.0)


def built(use: str, *variables: Variable, **options: Any) -> tuple[Vocs, Generator]:
    problem = Vocs(variables=variables, objectives={"E": "minimize"})
    return problem, RECORDS[use].build(problem, option_defaults(RECORDS[use].options, options))


def played(use: str, calls: int, *variables: Variable, **options: Any) -> list[Exchange]:
    problem, generator = built(use, *variables, **options)
    game = PlayedGenerator(lambda: generator, problem, at_once=2)
    game.play(calls, lambda parameters: {"E": 1.0})
    return game.exchanges


def values(*given: Any) -> Variable:
    return Variable(name="n", values=given)


def axis(found: list[Mapping[str, Any]]) -> list[Any]:
    return [each["n"] for each in found]


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ((1, 2, 3, 4), [4]),
        ((2, 3, 4), [4]),  # removed values do not shift the others
        ((1, 2, 2.5, 3, 4), [2.5, 4]),
        ((4, 3.0, 2, 1), [4]),
        ((True, "1", 3, 5), [True, "1", 5]),  # True and "1" differ from the recorded 1
        ((5, 6), [5, 6]),
        (("True", 1, 2, 3), ["True"]),
    ],
)
def test_changed_grid_suggests_each_new_combination_once(
    now: tuple[Any, ...], left: list[Any]
) -> None:
    record = played("grid", 2, values(1, 2, 3, 4))
    assert [p.parameters["n"] for each in record for p in each.suggested] == [1, 2, 3]
    _, changed = built("grid", values(*now))
    changed.resume(record)
    assert axis(list(changed.suggest(9))) == left
    assert not changed.suggest(9)


@pytest.mark.parametrize("use", ["random", "sobol", "latin-hypercube"])
def test_no_random_point_is_repeated_if_a_changed_file_rejects_recorded_ones(
    use: str,
) -> None:
    options = {"points": 24} if use == "latin-hypercube" else {}
    record = played(use, 11, X, values(8, 16, 32), **options)
    _, changed = built(use, X, values(8, 16), **options)
    changed.resume(record)
    before = {p.parameters["x"] for each in record for p in each.suggested}
    after = [each["x"] for each in changed.suggest(12)]
    assert len(before) == len(after) == 12
    assert not before & {*after}
    if use == "latin-hypercube":
        assert sorted(int(x * 24) for x in (*before, *after)) == list(range(24))
        assert not changed.suggest(1)


def test_lost_and_pending_points_are_not_suggested_again() -> None:
    under_way = Exchange((), (), (Point(number=0, parameters={"n": 1}),))
    _, resumed = built("grid", values(1, 2))
    resumed.resume([under_way])
    assert axis(list(resumed.suggest(2))) == [2]


def test_resumed_grid_distinguishes_true_from_the_string() -> None:
    record = played("grid", 1, values(True, "True"))
    assert [p.parameters["n"] for each in record for p in each.suggested] == [True, "True"]
    _, again = built("grid", values(True, "True"))
    again.resume([Exchange((), (), (Point(number=0, parameters={"n": True}),))])
    assert axis(list(again.suggest(9))) == ["True"]


def test_variable_with_a_step_has_the_values_of_the_file() -> None:
    tenths = Variable(name="n", low=0.1, high=0.35, step=0.1)
    assert list(tenths.steps) == [0.1, 0.2, 0.3]
    whole = Variable(name="n", low=1, high=6.5, step=2)
    assert [repr(each) for each in whole.steps] == ["1", "3", "5"]
    from_whole = Variable(name="n", low=0, high=1, step=0.25)
    assert [repr(each) for each in from_whole.steps] == ["0.0", "0.25", "0.5", "0.75", "1.0"]
    assert all(each.refused(value) is None for each in (tenths, whole) for value in each.steps)
