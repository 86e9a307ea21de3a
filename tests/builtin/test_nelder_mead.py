"""Tests of Nelder-Mead: it finds the minimum in few points, and a resume keeps its path."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from ensemble_testing import PlayedGenerator

from ensemble_core import Constraint, EnsembleError, Exchange, Generator, Point, Variable, Vocs
from ensemble_core.builtin.generators import ensemble_generators

OPTIONS = {"start": {}, "step": 0.25, "tolerance": 1e-4}
(NELDER_MEAD,) = [each for each in ensemble_generators() if each.name == "nelder-mead"]
X, Y = Variable(name="x", low=-2.0, high=2.0), Variable(name="y", low=-1.0, high=3.0)
VALLEY = Vocs(variables=(X, Y), objectives={"E": "minimize"})


def built(vocs: Vocs, **options: Any) -> Generator:
    return NELDER_MEAD.build(vocs, {**OPTIONS, **options})


def valley(point: Mapping[str, Any]) -> dict[str, float]:
    """Return Rosenbrock's function, which is 0 at (1, 1)."""
    return {"E": (1 - point["x"]) ** 2 + 100 * (point["y"] - point["x"] ** 2) ** 2}


def found(played: PlayedGenerator, goal: float = 1.0) -> Point:
    return min(
        (point for point in played.points if point.values),
        key=lambda point: goal * point.values["E"],
    )


@pytest.mark.parametrize("at_once", [1, 3])
def test_simplex_finds_the_minimum_of_rosenbrocks_function_and_ends(at_once: int) -> None:
    played = PlayedGenerator(lambda: built(VALLEY), VALLEY, at_once)
    played.play(1000, valley)
    assert len(played.points) < 200
    best = found(played)
    assert math.isclose(best.parameters["x"], 1.0, abs_tol=1e-3)
    assert math.isclose(best.parameters["y"], 1.0, abs_tol=1e-3)
    assert not played.generator.suggest(1)


def test_simplex_maximizes_on_a_logarithmic_range_up_to_its_end() -> None:
    rate = Variable(name="x", low=1e-6, high=1.0, log=True)
    vocs = Vocs(variables=(rate, Y), objectives={"E": "maximize"})
    played = PlayedGenerator(lambda: built(vocs), vocs)
    played.play(500, lambda p: {"E": -((math.log10(p["x"]) + 3.5) ** 2) + p["y"]})
    best = found(played, -1.0)
    assert math.isclose(math.log10(best.parameters["x"]), -3.5, abs_tol=1e-2)
    assert math.isclose(best.parameters["y"], 3.0, abs_tol=1e-3)


def test_lost_and_infeasible_points_count_as_worst() -> None:
    vocs = Vocs(
        variables=(X, Y), objectives={"E": "minimize"}, constraints={"c": Constraint("<", 1.0)}
    )

    def value(point: Mapping[str, Any]) -> dict[str, float] | None:
        x, y = point["x"], point["y"]
        if y > 2.2:
            return None
        return {"E": (x - 1) ** 2 + (y - 1.5) ** 2, "c": x + 0.8}

    played = PlayedGenerator(lambda: built(vocs, start={"x": -1.0, "y": 2.0}), vocs)
    played.play(500, value)
    best = min(
        (p for p in played.points if p.values and p.values["c"] < 1), key=lambda p: p.values["E"]
    )
    assert 0.1 < best.parameters["x"] < 0.2  # as close to 1 as the constraint allows
    assert math.isclose(best.parameters["y"], 1.5, abs_tol=0.1)


def test_simplex_starts_at_the_best_point_of_earlier_generators() -> None:
    played = PlayedGenerator(lambda: built(VALLEY, start={"x": -2.0}), VALLEY)
    places = [(0.5, 0.5), (1.2, 1.4), (-1.0, 1.0)]
    played.learn(
        Point(number=i, parameters={"x": x, "y": y}, state="done", values=valley({"x": x, "y": y}))
        for i, (x, y) in enumerate(places)
    )
    (first,) = played.play(1, valley)
    assert (round(first["x"], 9), round(first["y"], 9)) == (1.2, 1.4)


@pytest.mark.parametrize("at_once", [1, 3])
def test_resumed_simplex_makes_the_same_moves(at_once: int) -> None:
    undisturbed = PlayedGenerator(lambda: built(VALLEY), VALLEY, at_once).play(1000, valley)
    played = PlayedGenerator(lambda: built(VALLEY), VALLEY, at_once)
    for _ in range(60):
        played.play(2, valley)
        played.renew()
    assert played.play(1000, valley) == undisturbed


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(
    ("low", "high", "options"),
    [
        (0.0, 8.0, {}),
        (2.2, 4.0, {}),
        (0.0, 4.0, {"step": 0.4}),
        (0.0, 4.0, {"tolerance": 1e-2}),
        (0.0, 4.0, {"start": {"x": 3.5}}),
    ],
)
def test_simplex_resumed_with_a_changed_file_finds_the_minimum(
    low: float, high: float, options: Mapping[str, Any], at_once: int
) -> None:
    before, after = (
        Vocs(variables=(Variable(name="x", low=one, high=other),), objectives={"E": "minimize"})
        for one, other in ((0.0, 4.0), (low, high))
    )

    def bowl(point: Mapping[str, Any]) -> dict[str, float]:
        return {"E": (point["x"] - 2.7) ** 2}

    def fit(points: Iterable[Point]) -> tuple[Point, ...]:
        return tuple(each for each in points if after.refused(each.parameters) is None)

    for calls in range(1, 40):
        played = PlayedGenerator(lambda: built(before), before, at_once)
        played.play(calls, bowl)
        # As in a run, points that the changed problem rejects are counted but not passed on.
        changed = built(after, **options)
        changed.resume([Exchange(fit(e.ingested), (), e.suggested) for e in played.exchanges])
        points = list(played.points)
        told = {point.number for each in played.exchanges for point in each.ingested}
        over = [point for point in points if point.number not in told]
        while over:
            for point in over:
                point.state, point.values = "done", bowl(point.parameters)
            changed.ingest(fit(over))
            suggested = changed.suggest(at_once)
            over = [Point(number=len(points) + i, parameters=p) for i, p in enumerate(suggested)]
            points += over
            assert len(points) < 200
        best = min(points, key=lambda point: point.values["E"])
        for point in (best, points[-1]):
            assert math.isclose(point.parameters["x"], 2.7, abs_tol=0.05)


def test_unsupported_problems_are_rejected() -> None:
    check = NELDER_MEAD.check
    assert check is not None
    several = Vocs(variables=(X,), objectives={"E": "minimize", "F": "minimize"})
    with pytest.raises(EnsembleError, match="takes a single objective; this generator has 2"):
        check(several, OPTIONS)
    words = Vocs(variables=(Variable(name="k", values=("a", "b")),), objectives={"E": "minimize"})
    with pytest.raises(EnsembleError, match="needs ranges, but 'k' has a list of values"):
        check(words, OPTIONS)
    with pytest.raises(EnsembleError, match=r"invalid start x = 7.0: it is from -2 to 2"):
        check(VALLEY, {**OPTIONS, "start": {"x": 7.0}})
    with pytest.raises(EnsembleError, match=r"invalid start z = 7.0: there is no such variable"):
        check(VALLEY, {**OPTIONS, "start": {"z": 7.0}})
