"""Figure of a generator's points: ``ensemble plot RUN GENERATOR``."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

from ensemble_core import UsageError
from ensemble_plot.table_picture import Curve, Drawn, TablePicture


def generator_picture(name: str, vocs: Any, standing: Any, title: str | None) -> TablePicture:
    """Return the picture of a generator's points.

    If the generator has two objectives, they are drawn against each other. Otherwise, each
    objective is drawn over the points in their order. Raises :class:`UsageError` if no point is
    finished.
    """
    done = [point for point in standing.points if point.state == "done" and point.repeats is None]
    if not done:
        raise UsageError(
            f"nothing to draw: no point of generator {name!r} is finished",
            hint=f"'ensemble results RUN {name}' lists the points",
            code="nothing-to-draw",
        )
    objectives = tuple(vocs.objectives)
    if len(objectives) == 2:
        x, ys = objectives[0], objectives[1:]
        curves = _front(vocs, standing, done)
    else:
        x, ys = "point", objectives
        curves = [curve for y in ys for curve in _objective_curves(vocs, done, y)]
    return TablePicture(name, x, ys, tuple(curves), title)


def _objective_curves(vocs: Any, done: Sequence[Any], y: str) -> list[Curve]:
    """Return the curves of an objective over the points' numbers, and of the best value so far."""
    good = [point for point in done if vocs.feasible(point.values)]
    best: list[Any] = []
    for point in good:
        improves = not best or vocs.better(point.values, best[-1].values, y)
        best.append(point if improves else best[-1])
    numbers = [point.number for point in good]
    values = [point.values[y] for point in best]
    line = [Curve(y, "best so far", numbers, values, drawn="steps-post")] if best else []
    return [*_dots(vocs, done, None, y), *line]


def _front(vocs: Any, standing: Any, done: Sequence[Any]) -> list[Curve]:
    """Return the curves of the second objective over the first, and the steps of the Pareto
    front.
    """
    x, y = vocs.objectives
    numbers = {*standing.front}
    front = sorted(
        (point for point in done if point.number in numbers), key=lambda point: point.values[x]
    )
    steps: Drawn = "steps-post" if vocs.objectives[x] == "minimize" else "steps-pre"
    xs, ys = [point.values[x] for point in front], [point.values[y] for point in front]
    line = [Curve(y, "Pareto front", xs, ys, drawn=steps)] if front else []
    return [*_dots(vocs, done, x, y), *line]


def _dots(vocs: Any, done: Sequence[Any], x: str | None, y: str) -> list[Curve]:
    """Return the points over ``x`` (``None``: over their numbers).

    Points that violate a constraint look different.
    """
    curves = []
    for feasible, label in ((True, "points"), (False, "violates a constraint")):
        found = [point for point in done if vocs.feasible(point.values) == feasible]
        if found:
            xs = [point.number if x is None else point.values[x] for point in found]
            errors = [point.errors.get(y, nan) for point in found]
            known = any(y in point.errors for point in found)
            ys = [point.values[y] for point in found]
            curves.append(Curve(y, label, xs, ys, errors if known else [], drawn="dots"))
    return curves
