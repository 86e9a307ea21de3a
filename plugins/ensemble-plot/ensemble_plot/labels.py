"""Labels beside marks in a picture, placed to avoid the curves and other labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.transforms import Bbox

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: Positions of a label, in points from its mark, best first.
_PLACES = [
    (side * dx, rise)
    for rise in (16, -16, 30, -30, 2, 46, -46, 64, -64)
    for dx in (14, 30, 60, 110)
    for side in (1, -1)
]
_SIZE = 8.5
#: Maximum number of points to check along all curves together.
_LOOKED_AT = 20_000


class Labels:
    """Labels of one panel, placed to avoid its curves.

    The panel's layout must be final, because labels are placed by their positions in pixels.
    """

    def __init__(self, ax: Axes, lines: Sequence[Line2D]) -> None:
        self._ax = ax
        figure = ax.get_figure()
        assert figure is not None
        self._dots = figure.dpi / 72.0
        self._taken: list[Bbox] = []
        self._curves = self._places(lines)

    def _places(self, lines: Sequence[Line2D]) -> Any:
        """Return points along the curves in pixels, one for every few pixels."""
        each = max(4, _LOOKED_AT // max(1, len(lines)))
        found = []
        for line in lines:
            points = self._ax.transData.transform(np.asarray(line.get_xydata()))
            points = points[np.isfinite(points).all(axis=1)]
            if len(points) < 2:
                continue
            if len(points) < each:  # a long straight piece is an obstacle along its whole length
                at = np.linspace(0, len(points) - 1, each)
                places = np.arange(len(points))
                points = np.column_stack(
                    [np.interp(at, places, points[:, 0]), np.interp(at, places, points[:, 1])]
                )
            else:
                points = points[:: max(1, len(points) // each)]
            found.append(points)
        return np.concatenate(found) if found else np.empty((0, 2))

    def avoid(self, marks: Iterable[tuple[float, float]]) -> None:
        """Keep labels off the marks at these places (in data coordinates)."""
        for mark in marks:
            x, y = self._ax.transData.transform(mark)
            self._taken.append(_box(x, y, 10 * self._dots, 10 * self._dots))

    def label_mark(self, x: float, y: float, text: str) -> None:
        """Add a label for the mark at this place (in data coordinates), with a thin line to the
        mark.
        """
        at = self._ax.transData.transform((x, y))
        panel = self._ax.get_window_extent()
        width, height = self._extent(text)
        best, least = _PLACES[0], float("inf")
        for order, (dx, dy) in enumerate(_PLACES):
            left = at[0] + dx * self._dots - (width if dx < 0 else 0)
            box = Bbox.from_bounds(left, at[1] + dy * self._dots - height / 2, width, height)
            cost = order * 0.25 + self._cost(box, panel)
            if cost < least:
                best, least = (dx, dy), cost
        dx, dy = best
        left = at[0] + dx * self._dots - (width if dx < 0 else 0)
        self._taken.append(
            Bbox.from_bounds(left, at[1] + dy * self._dots - height / 2, width, height)
        )
        note = self._ax.annotate(
            text,
            (x, y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right",
            va="center",
            fontsize=_SIZE,
            zorder=7,
            parse_math=False,
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8},
            arrowprops={
                "arrowstyle": "-",
                "color": "#555555",
                "lw": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
            },
        )
        note.set_in_layout(False)

    def label_line(self, x: float, text: str) -> None:
        """Add a label along the vertical line at ``x`` (in data coordinates), as near to the top as
        possible.
        """
        across, along = self._extent(text)  # rotated by 90 degrees
        panel = self._ax.get_window_extent()
        at = self._ax.transData.transform((x, 0.0))[0]
        left = at + along + 4 * self._dots > panel.x1
        shift = -along if left else 0.0
        free = 4 * self._dots
        step = (panel.height - across - 2 * free) / 4
        if step <= 0:
            return
        boxes = [
            Bbox.from_bounds(at + shift, panel.y1 - free - across - step * down, along, across)
            for down in range(5)
        ]
        costs = [self._cost(box, panel) + 0.25 * down for down, box in enumerate(boxes)]
        box = boxes[costs.index(min(costs))]
        top = box.y1
        self._taken.append(box)
        note = self._ax.annotate(
            text,
            (x, (top - panel.y0) / panel.height),
            xycoords=("data", "axes fraction"),
            xytext=(-2 if left else 2, 0),
            textcoords="offset points",
            rotation=90,
            ha="right" if left else "left",
            va="top",
            fontsize=_SIZE,
            color="#555555",
            zorder=7,
            parse_math=False,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
        )
        note.set_in_layout(False)

    def _extent(self, text: str) -> tuple[float, float]:
        """Return the approximate width and height of a text in pixels."""
        return (len(text) * 0.6 + 0.8) * _SIZE * self._dots, 1.5 * _SIZE * self._dots

    def _cost(self, box: Bbox, panel: Bbox) -> float:
        """Return how much a label in this box would cover."""
        cost = 0.0
        if box.x0 < panel.x0 or box.x1 > panel.x1 or box.y0 < panel.y0 or box.y1 > panel.y1:
            cost += 1e5
        cost += 1e4 * sum(box.overlaps(other) for other in self._taken)
        points = self._curves
        if len(points):
            inside = (
                (points[:, 0] > box.x0)
                & (points[:, 0] < box.x1)
                & (points[:, 1] > box.y0)
                & (points[:, 1] < box.y1)
            )
            cost += float(inside.sum()) * 500 / len(points)
        return float(cost)


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)
