"""Figures of a generator's points: ``ensemble plot RUN GENERATOR``, also with ``--parallel``.

With ``--parallel``, each parameter and each result has a vertical axis, and each finished point is
a line across the axes. Otherwise objectives are drawn over the points, or against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Literal

from ensemble_core import UsageError
from ensemble_plot.table_picture import ABOVE, PAPER, Curve, Drawn, TablePicture, plain


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


#: Width per axis, and height of the figure, in inches.
_SHARE, _HEIGHT = 3.2 / 2.54, 6.6 / 2.54
_BEST = "#D55E00"
_FAINT = "#9a9a9a"
#: Maximum number of values of an axis that each have a mark.
_MOST = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """A vertical axis: a range of numbers, or a list of values."""

    name: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    values: tuple[Any, ...] = ()  # instead of the range from low to high
    goal: str = ""
    steps: Sequence[Any] = ()

    def height(self, value: Any) -> float:
        """Return the position of a value, from 0 at the bottom to 1 at the top."""
        if self.values:
            return self.values.index(value) / max(1, len(self.values) - 1)
        if self.low == self.high:
            return 0.5
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def marks(self) -> list[tuple[float, str]]:
        """Return the heights of the axis' marks, each with the text beside it."""
        if self.values:
            every = -(-len(self.values) // _MOST)
            return [(self.height(each), f"{each}") for each in self.values[::every]]
        if self.low == self.high:
            return [(0.5, f"{self.low:.4g}")]
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        marked = [self.low, middle, self.high]
        if self.steps:
            marked = sorted({self.steps[0], self.steps[len(self.steps) // 2], self.steps[-1]})
        return [(self.height(each), f"{each:.3g}") for each in marked]


@dataclass(frozen=True, slots=True)
class Line:
    """A point as a line across the axes."""

    point: int
    values: tuple[Any, ...]  # in the order of the axes
    kind: Literal["best", "done", "misses"]  # "misses": violates a constraint
    # by the first objective, among points of one kind: 0 for the worst, 1 for the best
    shade: float


@dataclass(frozen=True, slots=True)
class ParallelPicture:
    """A generator's points as lines across vertical axes."""

    generator: str
    axes: tuple[Axis, ...]
    lines: tuple[Line, ...]
    title: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the picture as plain data."""
        names = [axis.name for axis in self.axes]
        lines = [
            {"point": each.point, "kind": each.kind, **dict(zip(names, each.values, strict=True))}
            for each in self.lines
        ]
        return {"generator": self.generator, "axes": names, "lines": lines}


def parallel_picture(name: str, vocs: Any, standing: Any, title: str | None) -> ParallelPicture:
    """Return the picture of a generator's points.

    Raises :class:`UsageError` if no point is finished.
    """
    done = [point for point in standing.points if point.state == "done"]
    if not done:
        raise UsageError(
            f"nothing to draw: no point of generator {name!r} is finished",
            hint=f"'ensemble results RUN {name}' lists the points",
            code="nothing-to-draw",
        )
    axes = []
    for variable in vocs.variables:
        if variable.values:
            axes.append(Axis(variable.name, values=tuple(variable.values)))
        else:
            low, high = float(variable.low), float(variable.high)
            axes.append(Axis(variable.name, low, high, variable.log, steps=variable.steps))
    for output in vocs.outputs:
        found = [point.values[output] for point in done]
        goal = vocs.objectives.get(output, "")
        axes.append(Axis(output, min(found), max(found), goal=goal))
    lines = []
    for kind, found in _kinds(vocs, standing, done):
        for place, point in enumerate(found):
            values = (*point.parameters.values(), *(point.values[each] for each in vocs.outputs))
            lines.append(Line(point.number, values, kind, place / max(1, len(found) - 1)))
    return ParallelPicture(name, tuple(axes), tuple(lines), title)


def _kinds(
    vocs: Any, standing: Any, done: list[Any]
) -> Iterator[tuple[Literal["best", "done", "misses"], list[Any]]]:
    """Return the points in drawing order, by kind: within each kind, worse points come first."""
    objective, goal = next(iter(vocs.objectives.items()))
    done.sort(key=lambda point: (point.values[objective], point.number), reverse=True)
    if goal == "maximize":
        done.reverse()
    front = {*standing.front}
    good = [point for point in done if vocs.feasible(point.values)]
    yield "misses", [point for point in done if not vocs.feasible(point.values)]
    yield "done", [point for point in good if point.number not in front]
    yield "best", [point for point in good if point.number in front]


def draw_parallel(
    picture: ParallelPicture, form: str, size: tuple[float, float] | None = None
) -> bytes:
    """Return the figure as bytes in this format. ``size`` is the width and height in inches."""
    from ensemble_plot.drawing import figure_bytes, new_figure

    def draw() -> Any:
        figure = new_figure(size or (_SHARE * max(3, len(picture.axes)), _HEIGHT))
        ax = figure.subplots()
        for line in picture.lines:
            _draw_line(ax, picture, line)
        _draw_legend(ax, picture.lines)
        for place, axis in enumerate(picture.axes):
            ax.axvline(place, color="#222222", linewidth=0.8, zorder=3)
            for height, text in axis.marks():
                plain(_mark(ax, place, height, text))
        ax.set_xlim(-0.2, len(picture.axes) - 0.55)
        ax.set_ylim(-0.04, 1.06)
        ax.set_yticks([])
        goals = {"minimize": " (min)", "maximize": " (max)"}
        names = [f"{axis.name}{goals.get(axis.goal, '')}" for axis in picture.axes]
        for text in ax.set_xticks(range(len(names)), names):
            plain(text.label1)
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        if picture.title is not None:
            plain(figure.suptitle(picture.title, fontsize=9))
        return figure

    return figure_bytes(draw, form, PAPER)


def _draw_line(ax: Any, picture: ParallelPicture, line: Line) -> None:
    from matplotlib import colormaps

    heights = [axis.height(value) for axis, value in zip(picture.axes, line.values, strict=True)]
    # Worse points are paler. The palest colour would be invisible on white, so it is not used.
    looks: dict[str, Any] = {"color": colormaps["Blues"](0.3 + 0.7 * line.shade), "zorder": 2}
    if line.kind == "best":
        looks = {"color": _BEST, "linewidth": 2.0, "zorder": 2.5}
    elif line.kind == "misses":
        looks = {"color": _FAINT, "linestyle": ":", "linewidth": 0.8, "zorder": 0.5}
    ax.plot(range(len(heights)), heights, **looks)


def _mark(ax: Any, place: int, height: float, text: str) -> Any:
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6}
    return ax.text(place + 0.05, height, text, fontsize=6.5, va="center", bbox=paper, zorder=4)


def _draw_legend(ax: Any, lines: Sequence[Line]) -> None:
    from matplotlib.lines import Line2D

    best = sum(line.kind == "best" for line in lines)
    named = {
        "best": ("best" if best == 1 else "Pareto front", _BEST, "-", 2.0),
        "done": ("darker: better", "#2a6fb0", "-", 1.0),
        "misses": ("violates a constraint", _FAINT, ":", 0.8),
    }
    kinds = [kind for kind in named if any(line.kind == kind for line in lines)]
    handles = [
        Line2D([], [], color=colour, linestyle=dashes, linewidth=width, label=label)
        for label, colour, dashes, width in (named[kind] for kind in kinds)
    ]
    above: dict[str, Any] = ABOVE
    for text in ax.legend(handles=handles, **above).get_texts():
        plain(text)
