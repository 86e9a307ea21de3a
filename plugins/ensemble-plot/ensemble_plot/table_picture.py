"""Figure of a table of results, for a paper: ``ensemble plot RUN TABLE``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Width of a text column, and height of one panel, in inches.
_WIDTH, _HEIGHT = 8.6 / 2.54, 5.6 / 2.54
#: Maximum number of curves in a legend.
_MOST = 24
#: Styles of a curve: with a line, points only, or steps without marks.
Drawn = Literal["line", "dots", "steps-post", "steps-pre"]
_SHAPES = ("o", "s", "^", "D", "v", "P")
#: Matplotlib settings for papers.
PAPER = {
    "font.size": 8.0,
    "axes.grid": False,
    "axes.edgecolor": "#222222",
    "axes.spines.right": True,
    "axes.spines.top": True,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.top": True,
    "ytick.right": True,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "lines.markersize": 3.5,
    "lines.linewidth": 1.0,
    # Text in a PDF stays text.
    "pdf.fonttype": 42,
}

#: Options of a legend above the axes, narrow enough for three entries in a text column.
ABOVE = {
    "loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.2,
    "columnspacing": 0.9, "handletextpad": 0.3, "handlelength": 1.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one curve."""

    y: str
    label: str
    xs: list[Any]
    ys: list[float]
    #: One for each y (nan: unknown), or none at all.
    errors: list[float] = field(default_factory=list)
    drawn: Drawn = "line"


@dataclass(frozen=True, slots=True)
class TablePicture:
    """Picture of a table: a panel for each column in ``ys``, and the curves of all panels."""

    table: str
    x: str
    ys: tuple[str, ...]
    curves: tuple[Curve, ...]
    title: str | None = None
    #: For each y, how many points are not drawn, because a row lacks a number.
    gaps: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the picture as plain data."""
        return {
            "table": self.table,
            "x": self.x,
            "curves": [
                {
                    "y": c.y,
                    "label": c.label,
                    "xs": c.xs,
                    "ys": c.ys,
                    "errors": [None if isnan(each) else each for each in c.errors] or None,
                }
                for c in self.curves
            ],
        }


def table_picture(
    name: str,
    table: Any,
    rows: Sequence[Mapping[str, Any]],
    title: str | None,
    values: Sequence[Any] = (),
) -> TablePicture:
    """Return the picture of a table.

    ``values`` are the values of the table's pivot parameter, if it has one. Raises
    :class:`UsageError` if the table does not define a plot, or has nothing to draw.
    """
    plot = table.plot
    if not plot:
        raise UsageError(
            f"the table {name!r} has no 'plot'",
            hint="add 'plot: {x: NAME, y: NAME}' to the table",
            code="no-plot",
        )
    x, given = str(plot["x"]), plot["y"]
    ys = (given,) if isinstance(given, str) else tuple(given)
    errors = table.errors
    others = [parameter for parameter in table.by if parameter not in (x, *ys)]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(each) for each in others), []).append(row)
    if len(groups) > _MOST:
        raise UsageError(
            f"the table {name!r} has too many curves for a legend: {len(groups)}, one for each "
            f"{' and '.join(others)}",
            hint=f"choose at most {_MOST} curves with 'where'",
            code="too-many",
        )
    curves: list[Curve] = []
    gaps = dict.fromkeys(ys, 0)
    for y in ys:
        for parameters, found in groups.items():
            shown = [(n, v) for n, v in zip(others, parameters, strict=True)]
            for column, pivot in _columns(table, y, values):
                label = ", ".join(f"{n} = {_shown(v)}" for n, v in [*shown, *pivot])
                error = errors.get(column, errors.get(y))
                if error is not None and error in table.per_value:
                    error += column.removeprefix(y)
                curve = _curve(y, column, error, x, label, found)
                gaps[y] += len(found) - len(curve.xs)
                if curve.xs:
                    curves.append(curve)
    if not curves:
        raise UsageError(
            f"nothing to draw: no row of table {name!r} has {x} and {' or '.join(ys)}",
            hint=f"'ensemble results RUN {name}' shows the table",
            code="nothing-to-draw",
        )
    return TablePicture(name, x, ys, tuple(curves), title, gaps)


def _columns(table: Any, y: str, values: Sequence[Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Return the columns to draw for ``y``, each with the name and value of its pivot, if any."""
    if y not in table.per_value:
        return [(y, [])]
    names = table.expanded((y,), values)
    return [(name, [(table.pivot, value)]) for name, value in zip(names, values, strict=True)]


def _shown(value: Any) -> Any:
    return str(value).removesuffix(".0") if isinstance(value, float) else value


def _curve(
    y: str,
    column: str,
    error: str | None,
    x: str,
    label: str,
    rows: Sequence[Mapping[str, Any]],
) -> Curve:
    """Return the curve of a column, made of the rows that have a value."""
    points = [row for row in rows if row.get(x) is not None and _is_number(row.get(column))]
    if all(_is_number(row[x]) for row in points):
        points.sort(key=lambda row: float(row[x]))
    return Curve(
        y,
        label,
        [row[x] for row in points],
        [float(row[column]) for row in points],
        [float(row[error]) if _is_number(row.get(error)) else nan for row in points]
        if error
        else [],
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def draw_table(picture: TablePicture, form: str, size: tuple[float, float] | None = None) -> bytes:
    """Return the figure as bytes in this format. ``size`` is the width and height in inches."""
    from ensemble_plot.drawing import figure_bytes, new_figure

    drawn = [y for y in picture.ys if any(curve.y == y for curve in picture.curves)]

    def draw() -> Any:
        figure = new_figure(size or (_WIDTH, _HEIGHT * len(drawn)))
        grid = figure.subplots(len(drawn), 1, squeeze=False, sharex=True)
        for (ax,), y in zip(grid, drawn, strict=True):
            _panel(ax, [c for c in picture.curves if c.y == y], y, legend=y == drawn[0])
        plain(grid[-1][0].set_xlabel(picture.x))
        if picture.title is not None:
            plain(figure.suptitle(picture.title, fontsize=9))
        return figure

    return figure_bytes(draw, form, PAPER)


def _panel(ax: Axes, curves: Sequence[Curve], y: str, *, legend: bool) -> None:
    from ensemble_plot.colours import style_of

    for place, curve in enumerate(curves):
        steps = curve.drawn in ("steps-post", "steps-pre")
        dashes = "-" if steps else style_of(place % 12).dashes
        ax.errorbar(
            curve.xs,
            curve.ys,
            yerr=curve.errors or None,
            color=style_of(place % 12).colour,
            marker="" if steps else _SHAPES[place % len(_SHAPES)],
            linestyle="none" if curve.drawn == "dots" else dashes,
            drawstyle=curve.drawn if steps else "default",
            capsize=2.0,
            elinewidth=0.8,
            label=curve.label or None,
        )
    _ticks(ax.xaxis, [x for curve in curves for x in curve.xs])
    _ticks(ax.yaxis, [y for curve in curves for y in (*curve.ys, *curve.errors) if y == y])
    plain(ax.set_ylabel(y))
    if legend and any(curve.label for curve in curves):
        # Among dots, the symbol of a legend entry would look like a point.
        above = any(curve.drawn == "dots" for curve in curves)
        place_of: dict[str, Any] = ABOVE if above else {}
        for text in ax.legend(**place_of).get_texts():
            plain(text)


def _ticks(axis: Any, values: Sequence[Any]) -> None:
    """Use only integer ticks if all values are whole numbers."""
    if all(_is_number(value) and value == int(value) for value in values):
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def plain(text: Any) -> None:
    """Escape a name, so that it is not drawn as a formula."""
    text.set_parse_math(False)
