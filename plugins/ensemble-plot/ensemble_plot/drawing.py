"""Draws a run's curves with matplotlib.

Needs no display and ignores the user's ``matplotlibrc``. The same data give identical files.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ensemble_plot.colours import (
    DIRECT,
    Scale,
    Style,
    label_of,
    scale_of,
    style_of,
)
from ensemble_plot.labels import Labels
from ensemble_plot.outlier_axis import set_outlier_axis
from ensemble_plot.picture import clamp, isolated_points, shorten, time_unit, total_variation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ensemble_plot.picture import Panel, Picture

#: Dots per inch of a PNG. Also used to convert a size in pixels.
DPI = 160
#: Supported file formats, with options that omit the time and program of their creation.
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

_INK, _FAINT = "#222222", "#777777"
_SETTINGS: dict[str, Any] = {
    "font.size": 9.5,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-4, 6),
    "axes.formatter.use_mathtext": True,
    "axes.formatter.useoffset": False,
    "axes.xmargin": 0.02,
    "axes.ymargin": 0.08,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "text.color": _INK,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "svg.hashsalt": "ensemble",
    "path.simplify": True,
    "agg.path.chunksize": 20000,
}
#: Shapes of the marks of rules, in order. After the last shape, they repeat with another fill.
_SHAPES = ("o", "s", "^", "D", "v", "P", "<", "h", ">", "*")
_FILLS = ("#F0E442", "#ffffff", "#bbbbbb")
_ENDS = {"cancelled": "#ffffff", "failed": "#222222"}
#: Maximum number of rules in the legend, and number of points above which curves are drawn as
#: pixels in a PDF or SVG.
_LISTED, _VECTORS = 14, 150_000
#: Maximum number of rule names in one panel, and maximum number of marks that these names avoid.
_LABELLED, _CLEAR = 12, 200
#: A panel's curves are drawn thin if their total variation exceeds this multiple of the panel's
#: height.
_DENSE = 30.0


def draw(picture: Picture, form: str, size: tuple[float, float] | None = None) -> bytes:
    """Return the content of a picture file. ``size`` is the width and height in inches."""
    return figure_bytes(lambda: _Drawing(picture, size).figure, form)


def figure_bytes(draw: Callable[[], Figure], form: str, settings: Mapping[str, Any] = {}) -> bytes:
    """Return a figure as bytes in this format. ``settings`` are matplotlib settings."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters missing in the font, or too little space
        mpl.rcdefaults()
        mpl.rcParams.update({**_SETTINGS, **settings})
        figure = draw()
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=DPI, metadata=FORMATS[form])
    return out.getvalue()


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of this width and height in inches."""
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


class _Drawing:
    """Draws one picture."""

    def __init__(self, picture: Picture, size: tuple[float, float] | None) -> None:
        self._picture = picture
        self._columns = 1 if len(picture.panels) <= 3 else 2
        self._rows = -(-len(picture.panels) // self._columns)
        self._few = len(picture.jobs) <= DIRECT
        self._scale: Scale | None = None if self._few else scale_of(picture.jobs)
        #: Jobs with a value on the scale; the others are drawn behind them.
        self._coloured = frozenset(self._scale.values) if self._scale is not None else frozenset()
        self._styles = (
            {track.id: style_of(place) for place, track in enumerate(picture.jobs)}
            if self._few
            else self._scaled_styles()
        )
        self._shapes = {
            rule: (_SHAPES[place % len(_SHAPES)], _FILLS[place // len(_SHAPES) % len(_FILLS)])
            for place, rule in enumerate(
                rule for rule in picture.rules if any(_rule_spots(picture.panels, rule))
            )
        }
        #: Rules whose names are in the picture, each where the rule first fired.
        self._said: set[str] = set()
        self.figure = new_figure(size or self._size())
        pads = self.figure.get_layout_engine()
        assert pads is not None
        pads.set(w_pad=0.08, h_pad=0.06, hspace=0.03, wspace=0.04)
        self._draw()

    def _size(self) -> tuple[float, float]:
        """Return a size in inches for the number of panels and the length of the legend."""
        width = 10.0 if self._columns == 1 else 13.5
        each = {1: 4.6, 2: 3.0}.get(self._rows, 2.5)
        lines = (len(self._picture.jobs) + 1 if self._few else 12) + len(self._shapes) + 4
        return width, min(60.0, max(0.8 + each * self._rows, 0.6 + 0.21 * lines))

    def _scaled_styles(self) -> dict[str, Style]:
        assert self._scale is not None
        self._norm = _norm(self._scale)
        colours = _colourmap()
        found = {}
        for track in self._picture.jobs:
            value = self._scale.values.get(track.id)
            colour = "#999999" if value is None else colours(self._norm(value))
            found[track.id] = Style(mpl.colors.to_hex(colour), "-")
        return found

    def _draw(self) -> None:
        picture, figure = self._picture, self.figure
        grid = figure.subplots(self._rows, self._columns, squeeze=False)
        axes: list[Axes] = [each for row in grid for each in row]
        for spare in axes[len(picture.panels) :]:
            spare.remove()
        del axes[len(picture.panels) :]
        points = sum(len(line.xs) for panel in picture.panels for line in panel.lines)
        pixels = points > _VECTORS
        time = time_unit(picture.panels)
        first: dict[str, Axes] = {}
        for place, (ax, panel) in enumerate(zip(axes, picture.panels, strict=True)):
            if panel.axis in first:
                ax.sharex(first[panel.axis])
            first.setdefault(panel.axis, ax)
            self._panel(ax, panel, time, pixels=pixels)
            below = place + self._columns
            if below < len(axes) and picture.panels[below].axis == panel.axis:
                ax.tick_params(labelbottom=False)
            else:
                name = (
                    picture.clock if panel.axis == "step" else f"time since the start ({time[0]})"
                )
                _plain(ax.set_xlabel(shorten(name, 60)))
        figure.align_ylabels(axes)
        self._draw_texts(axes)
        self._legend(axes)
        if any(panel.spots or panel.moments for panel in picture.panels):
            figure.draw_without_rendering()  # positions are unknown before this call
            for place, (ax, panel) in enumerate(zip(axes, picture.panels, strict=True)):
                self._labels(ax, panel, time, top=place < self._columns)

    def _draw_texts(self, axes: Sequence[Axes]) -> None:
        picture = self._picture
        if picture.title:
            title = self.figure.suptitle(
                shorten(picture.title, 90), x=0.012, ha="left", fontsize=13, fontweight="bold"
            )
            _plain(title)
        if picture.subtitle and axes:
            words = axes[0].set_title(
                shorten(picture.subtitle, 110), loc="left", fontsize=8.5, color=_FAINT, pad=6
            )
            _plain(words)

    def _panel(self, ax: Axes, panel: Panel, time: tuple[str, float], *, pixels: bool) -> None:
        many = len(panel.lines)
        width = 1.6 if many <= DIRECT else 1.1 if many <= 60 else 0.7
        if any(total_variation(line.ys) > _DENSE for line in panel.lines):
            width = min(width, 0.9)
        by = time[1] if panel.axis == "time" else 1.0
        for line in panel.lines:
            style = self._styles[line.job]
            xs = [clamp(x / by) for x in line.xs]
            ys = [clamp(y) for y in line.ys]
            ax.plot(
                xs,
                ys,
                color=style.colour,
                linestyle=style.dashes,
                linewidth=width,
                zorder=2.0 if self._few or line.job in self._coloured else 1.9,
                alpha=1.0 if many <= 60 else 0.8,
                rasterized=pixels,
            )
            lonely = isolated_points(ys)
            if lonely:
                ax.plot(
                    [xs[at] for at in lonely],
                    [ys[at] for at in lonely],
                    linestyle="none",
                    marker=".",
                    markersize=4,
                    color=style.colour,
                )
        label = shorten(panel.variable, 28)
        if panel.usual is not None:
            finite = [clamp(y) for line in panel.lines for y in line.ys if y == y]
            set_outlier_axis(ax, panel.usual, min(finite), max(finite))
            label += "\n(logarithmic beyond the dots)"
        _plain(ax.set_ylabel(label))
        if not any(y == y for line in panel.lines for y in line.ys):
            _plain(
                ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", color=_FAINT)
            )
        self._marks(ax, panel, by)

    def _marks(self, ax: Axes, panel: Panel, by: float) -> None:
        outcomes = {track.id: track.end for track in self._picture.jobs}
        for kind, fill in _ENDS.items():
            ends = [one.end for one in panel.lines if one.end and outcomes[one.job] == kind]
            if ends:
                ax.plot(
                    [clamp(x / by) for x, _ in ends],
                    [clamp(y) for _, y in ends],
                    linestyle="none",
                    marker="X",
                    markersize=7.0 if len(ends) <= 30 else 4.5,
                    markerfacecolor=fill,
                    markeredgecolor=_INK,
                    markeredgewidth=0.9,
                    zorder=6,
                )
        size = 9.0 if len(panel.spots) <= 30 else 6.0
        for rule, (shape, fill) in self._shapes.items():
            spots = [spot for spot in panel.spots if spot.rule == rule]
            for known in (True, False):
                some = [spot for spot in spots if (spot.y == spot.y) == known]
                if some:
                    ax.plot(
                        [clamp(spot.x / by) for spot in some],
                        [clamp(spot.y) if known else 0.02 for spot in some],
                        linestyle="none",
                        marker=shape,
                        markersize=size,
                        markerfacecolor=fill,
                        markeredgecolor=_INK,
                        markeredgewidth=1.0,
                        zorder=5,
                        clip_on=known,
                        # Marks of jobs without a value so far are at the bottom.
                        transform=ax.transData if known else ax.get_xaxis_transform(),
                    )
        faint = len(panel.moments) > 15
        for moment in panel.moments:
            ax.axvline(
                clamp(moment.x / by),
                color=_FAINT,
                linewidth=0.5 if faint else 1.0,
                linestyle=(0, (4, 3)),
                alpha=0.4 if faint else 0.9,
                zorder=1.5,
            )

    def _labels(self, ax: Axes, panel: Panel, time: tuple[str, float], *, top: bool) -> None:
        by = time[1] if panel.axis == "time" else 1.0
        labels = Labels(ax, [line for line in ax.get_lines() if len(line.get_xdata()) > 2])
        marks = [line.end for line in panel.lines if line.end is not None]
        marks += [(spot.x, spot.y) for spot in panel.spots if spot.y == spot.y]
        labels.avoid((clamp(x / by), clamp(y)) for x, y in marks[:_CLEAR])
        said = self._said
        left = _LABELLED
        for moment in panel.moments if top else ():
            if moment.rule not in said and left:
                said.add(moment.rule)
                left -= 1
                labels.label_line(clamp(moment.x / by), shorten(moment.rule, 24))
        for spot in panel.spots:
            if spot.rule not in said and spot.y == spot.y and left:
                said.add(spot.rule)
                left -= 1
                labels.label_mark(clamp(spot.x / by), clamp(spot.y), shorten(spot.rule, 24))

    def _legend(self, axes: Sequence[Axes]) -> None:
        handles: list[Line2D] = []
        if self._scale is not None:
            self._bar(axes)
        elif len(self._picture.jobs) > 1 or self._shapes:
            for track in self._picture.jobs:
                style = self._styles[track.id]
                label = label_of(track, self._picture.jobs)
                handles.append(
                    Line2D([], [], color=style.colour, linestyle=style.dashes, lw=1.8, label=label)
                )
        drawn = {
            track.end
            for track in self._picture.jobs
            if any(
                line.end for panel in self._picture.panels for line in _job_lines(panel, track.id)
            )
        }
        marks = [_handle("X", fill, f"job {kind}") for kind, fill in _ENDS.items() if kind in drawn]
        marks += [
            _handle(shape, fill, _rule(rule))
            for rule, (shape, fill) in list(self._shapes.items())[:_LISTED]
        ]
        if handles and marks:
            handles.append(Line2D([], [], linestyle="none", label=" "))
        handles += marks
        if len(self._shapes) > _LISTED:
            more = f"and {len(self._shapes) - _LISTED} more rules"
            handles.append(Line2D([], [], linestyle="none", label=more))
        if self._scale is not None and any(
            track.id not in self._scale.values for track in self._picture.jobs
        ):
            label = f"jobs without {shorten(self._scale.name, 20)}"
            handles.append(Line2D([], [], color="#999999", lw=1.4, label=label))
        if not handles:
            return
        size = 9.0
        if self._scale is not None:  # the colour bar is on the right
            columns = max(1, min(len(handles), int(self.figure.get_figwidth() / 2.4)))
            legend = self.figure.legend(
                handles=handles, loc="outside lower left", ncols=columns, fontsize=size
            )
        else:
            room = self.figure.get_figheight() * 72 - 60
            while size > 4 and len(handles) * size * 1.45 > room:
                size -= 0.5
            legend = self.figure.legend(
                handles=handles, loc="outside right upper", fontsize=size, handlelength=1.8
            )
        for text in legend.get_texts():
            _plain(text)

    def _bar(self, axes: Sequence[Axes]) -> None:
        assert self._scale is not None
        bar = self.figure.colorbar(
            ScalarMappable(self._norm, _colourmap()), ax=list(axes), aspect=32, pad=0.02
        )
        bar.outline.set_visible(False)
        if self._scale.whole and not self._scale.logarithmic:
            bar.locator = MaxNLocator(integer=True)
            bar.update_ticks()
        _plain(bar.ax.set_ylabel(shorten(self._scale.name, 40)))


def _job_lines(panel: Panel, job: str) -> Iterable[Any]:
    return (line for line in panel.lines if line.job == job)


def _rule_spots(panels: Iterable[Panel], rule: str) -> Iterable[Any]:
    return (spot for panel in panels for spot in panel.spots if spot.rule == rule)


def _rule(name: str) -> str:
    """Return a rule's name in the legend.

    If a rule has no id, its name, such as ``rule-2``, says that it is a rule.
    """
    return shorten(name, 30) if name.startswith("rule-") else f"rule {shorten(name, 30)}"


def _handle(shape: str, fill: str, label: str) -> Line2D:
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=shape,
        markersize=8,
        markerfacecolor=fill,
        markeredgecolor=_INK,
        label=label,
    )


def _plain(text: Any) -> None:
    """Escape a name, so that it is not drawn as a formula."""
    text.set_parse_math(False)


def _norm(scale: Scale) -> Normalize:
    low, high = min(scale.values.values()), max(scale.values.values())
    return LogNorm(low, high) if scale.logarithmic else Normalize(low, high)


def _colourmap() -> Colormap:
    """Return viridis without its lightest end, which is invisible on paper."""
    whole = mpl.colormaps["viridis"]
    return ListedColormap([whole(at / 255 * 0.9) for at in range(256)], "viridis-ink")
