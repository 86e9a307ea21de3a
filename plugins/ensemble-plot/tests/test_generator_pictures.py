"""Tests that compare pictures of a generator's points with approved reference pictures."""

from __future__ import annotations

import io
import json
import math
import random
from pathlib import Path
from typing import Any, Literal

import matplotlib.image
import numpy as np
import pytest
from click.testing import CliRunner
from ensemble_plot.generator_picture import generator_picture, parallel_picture
from ensemble_plot.image_file import render

import ensemble_core as ensemble
from ensemble_core import Constraint, Point, Variable, Vocs
from ensemble_core.cli.main import main

REFERENCE = Path(__file__).parent / "reference"
#: Limit for :func:`apart`. A shift by two pixels gives 6, different points give 15.
LIMIT = 9
VARIABLES = (
    Variable(name="x", low=-5.0, high=5.0),
    Variable(name="n", values=(8, 16, 32)),
    Variable(name="rate", low=1e-5, high=0.1, log=True),
)


class Standing:
    """The points of a generator and its Pareto front."""

    def __init__(self, vocs: Vocs, seed: int) -> None:
        chance = random.Random(seed)
        self.points = []
        for number in range(18):
            found = {each.name: each.at(chance.random()) for each in VARIABLES}
            x, n, rate = found.values()
            energy = (x - 1) ** 2 + abs(math.log10(rate) + 3) - n / 16
            values = {"E": energy, "peak": abs(x), "cost": n * 0.3 + 5 / (1 + abs(x))}
            self.points.append(Point(number=number, parameters=found, state="done", values=values))
        good = [point for point in self.points if vocs.feasible(point.values)]
        self.front = [
            point.number
            for point in good
            if not any(dominates(vocs, other, point) for other in good)
        ]


def dominates(vocs: Vocs, one: Point, other: Point) -> bool:
    pairs = [(one.values[name], other.values[name]) for name in vocs.objectives]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def picture(kind: str, seed: int = 11) -> Any:
    objectives: dict[str, Literal["minimize", "maximize"]] = {"E": "minimize"}
    if kind == "pareto-front":
        objectives["cost"] = "minimize"
    vocs = Vocs(
        variables=VARIABLES,
        objectives=objectives,
        constraints={"peak": Constraint("<", 2.5)},
    )
    made = parallel_picture if kind == "parallel" else generator_picture
    return made("search", vocs, Standing(vocs, seed), None)


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = matplotlib.image.imread(io.BytesIO(data), "png")
    return found[..., :3] * 255


def blocks(data: bytes) -> np.ndarray[Any, Any]:
    """Return the mean colours of squares of 12 pixels, which hardly change if a line moves by a
    pixel.
    """
    found = pixels(data)
    rows, columns = (length // 12 for length in found.shape[:2])
    squares = found[: rows * 12, : columns * 12].reshape(rows, 12, columns, 12, 3)
    mean: np.ndarray[Any, Any] = squares.mean(axis=(1, 3))
    return mean


def apart(one: bytes, other: bytes) -> float:
    """Return the root mean square difference of the squares' colours (0 to 255)."""
    first, second = blocks(one), blocks(other)
    assert first.shape == second.shape
    return float(np.sqrt(((first - second) ** 2).mean()))


@pytest.mark.parametrize("kind", ["best-so-far", "pareto-front", "parallel"])
def test_a_picture_of_a_generator_equals_the_approved_one(kind: str) -> None:
    """The limit tolerates fonts that differ between versions of matplotlib."""
    reference = (REFERENCE / f"{kind}.png").read_bytes()
    assert apart(render(picture(kind), "png", None), reference) < LIMIT
    assert apart(render(picture(kind, seed=7), "png", None), reference) > LIMIT


SEARCH = """
jobs:
  - {name: sim, command: "echo E={a} F={a}{b}", observe: {key-value: {}},
     result: {E: last.E, F: last.F}}
generators:
  - {name: low, use: grid, group: sim, variables: {a: {values: [3, 1, 2]}, b: {values: [0, 5]}},
     objectives: {E: maximize}, constraints: {F: "< 35"}}
  - {name: never, use: grid, group: sim, variables: {a: {values: [1]}, b: {values: [1]}},
     objectives: {E: minimize}, enabled: false}
results: {all: {of: sim, columns: {E: E}, plot: {x: index, y: E}}}
"""


def test_parallel_coordinates_have_a_line_for_each_point_with_the_best_on_top(
    tmp_path: Path,
) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    run = ensemble.run(tmp_path / "search.yaml", executor="local", state=tmp_path, tag="t")
    assert run.exit_code == 0

    def plot(*words: str) -> Any:
        return CliRunner().invoke(main, ["plot", "t", *words, "--state", str(tmp_path)])

    result = plot("low", "--parallel", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["axes"] == ["a", "b", "E", "F"]
    lines = [(line["kind"], line["a"], line["b"], line["F"]) for line in told["lines"]]
    assert lines == [
        ("misses", 3, 5, 35.0),
        ("done", 1, 0, 10.0),
        ("done", 1, 5, 15.0),
        ("done", 2, 0, 20.0),
        ("done", 2, 5, 25.0),
        ("best", 3, 0, 30.0),
    ]
    file = tmp_path / "low.svg"
    assert plot("low", "--parallel", "-o", str(file)).exit_code == 0
    texts = file.read_text()
    for text in ("a", "b", "E (max)", "F", "best", "violates a constraint", "darker: better"):
        assert f"<!-- {text} -->" in texts
    for words, said in [
        (("never", "--parallel"), "no point of generator 'never' is finished"),
        (("all", "--parallel"), "--parallel needs a generator"),
        (("--parallel",), "--parallel needs the name of a generator"),
    ]:
        result = plot(*words, "-o", str(file))
        assert result.exit_code == 2
        assert said in f"{result.output} {result.exception}"


@pytest.mark.parametrize("count", [1, 2, 4, 18])
def test_no_tick_is_between_two_points(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from ensemble_plot import drawing

    vocs = Vocs(variables=VARIABLES, objectives={"E": "minimize"})
    standing = Standing(vocs, 11)
    del standing.points[count:]
    kept: list[Any] = []
    saved = drawing.figure_bytes
    monkeypatch.setattr(
        drawing,
        "figure_bytes",
        lambda draw, *more: saved(lambda: kept.append(draw()) or kept[0], *more),
    )
    render(generator_picture("search", vocs, standing, None), "svg", None)
    ax = kept[0].axes[0]
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize(
    ("high", "step", "marks"),
    [(9, 1, ["2", "6", "9"]), (9, 4, ["2", "6"]), (12, 4, ["2", "6", "10"])],
)
def test_the_marks_of_an_axis_with_steps_are_possible_values(
    high: int, step: int, marks: list[str]
) -> None:
    steps = Variable(name="n", low=2, high=high, step=step)
    vocs = Vocs(variables=(steps,), objectives={"E": "minimize"})
    standing = Standing(vocs, 11)
    for point in standing.points:
        point.parameters = {"n": 3}
    axis = parallel_picture("search", vocs, standing, None).axes[0]
    assert [text for _, text in axis.marks()] == marks
