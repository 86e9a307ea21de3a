"""Timeline of jobs, as bars from their start to their end: ``ensemble plot RUN --timeline``."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ensemble_core import UsageError
from ensemble_plot.picture import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ensemble_core.cli.toolkit import Journal

_WIDTH, _HEIGHT = 17.2 / 2.54, 9.0 / 2.54
#: Maximum number of named rules, and of marked firings of one rule.
_RULES, _MARKS = 12, 2000
#: Maximum number of named nodes.
_NODES = 40
_FILLS = ("#F0E442", "#ffffff")
_FAILED, _CANCELLED = "#222222", "#999999"
_SHAPES = ("v", "D", "o", "s", "^", "P", "*", "X", "<", ">", "h", "p")


@dataclass(frozen=True, slots=True)
class Bar:
    """A job's bar. Times are in seconds since the run's start."""

    job: str
    group: str
    line: int
    submitted: float
    start: float | None  # None if the job never ran
    end: float
    outcome: str
    node: int = -1


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bars of jobs, and the times when each rule fired."""

    bars: list[Bar]
    lines: int
    firings: dict[str, list[float]]
    title: str | None = None
    #: Each node with its first line and its number of lines; empty if nodes are unknown.
    nodes: tuple[tuple[int, int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the timeline as plain data."""
        names = Bar.__slots__
        return {
            "bars": [{name: getattr(bar, name) for name in names} for bar in self.bars],
            "lines": self.lines,
            "firings": self.firings,
            "nodes": [list(each) for each in self.nodes],
        }


def timeline_of(
    jobs: Iterable[Mapping[str, Any]],
    journal: Journal,
    groups: Sequence[str],
    title: str | None,
) -> Timeline:
    """Return the timeline of these attempts of jobs, or only of those in ``groups`` if given.

    Raises :class:`UsageError` if there is nothing to draw.
    """
    began: float | None = None
    last = 0.0
    firings: dict[str, list[float]] = {}
    places: dict[str, Sequence[int]] = {}
    over: dict[str, float] = {}
    for row in journal.rows():
        began = row.time if began is None else began
        last = max(last, row.time - began)
        if row.name == "alloc" and row.job is not None and (row.data or {}).get("nodes"):
            places[row.job] = (row.data or {})["nodes"]
        elif row.name == "clean" and row.job is not None:
            over[row.job] = row.time - began
        if row.decisions is not None and '"type":"fired"' in row.decisions:
            for decision in json.loads(row.decisions):
                if decision["type"] == "fired":
                    firings.setdefault(str(decision.get("rule")), []).append(row.time - began)
    begin = began or 0.0
    found = [row for row in jobs if not groups or row["group"] in groups]
    if not found:
        raise UsageError(
            "the run has no jobs" + (f" of {' or '.join(groups)}" if groups else ""),
            hint="'ensemble jobs RUN' lists the run's jobs",
            code="nothing-to-draw",
        )
    found.sort(  # jobs that never ran come last
        key=lambda row: (
            row.get("started") is None,
            row.get("started") or row["submitted"],
            row["group"],
            row["index"],
        )
    )
    bars: list[Bar] = []
    lanes: dict[int, _Lanes] = {}
    for job in found:
        started = job.get("started")
        submitted = job["submitted"] - begin
        start = None if started is None else started - begin
        name = f"{job['group']}.{job['index']}"
        if job["attempts"] > 1:
            name += f"-{job['attempts'] - 1}"
        end = over.get(name, last)
        if job.get("finished") is not None:
            end = job["finished"] - begin
        # Jobs whose nodes are unknown are drawn as if on one large node.
        for node in places.get(name, (-1,)) if start is not None or not places else (-1,):
            lane = lanes.setdefault(node, _Lanes())
            line = lane.share() if start is None else lane.take(start, end)
            bars.append(Bar(name, job["group"], line, submitted, start, end, job["outcome"], node))
    first, nodes = 0, []
    offsets = {}
    for node in sorted(lanes, key=lambda each: (each < 0, each)):
        offsets[node] = first
        if node >= 0:
            nodes.append((node, first, lanes[node].count))
        first += lanes[node].count
    placed = [replace(bar, line=bar.line + offsets[bar.node]) for bar in bars]
    return Timeline(placed, first, firings, title, tuple(nodes))


class _Lanes:
    """Lines of one node: as many as there were concurrent jobs on the node."""

    def __init__(self) -> None:
        self.count = self._shared = 0
        self._free: list[int] = []
        self._busy: list[tuple[float, int]] = []

    def take(self, start: float, end: float) -> int:
        """Return a line that is free in this period. Call it in the order of the jobs' starts."""
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if not self._free:
            self._free.append(self.count)
            self.count += 1
        line = heapq.heappop(self._free)
        heapq.heappush(self._busy, (end, line))
        return line

    def share(self) -> int:
        """Return a line for a job that never ran, after all others: it needs none of its own."""
        self.count = max(1, self.count)
        self._shared += 1
        return self._shared % self.count


def draw_timeline(timeline: Timeline, form: str, size: tuple[float, float] | None = None) -> bytes:
    """Return the picture as bytes in this format. ``size`` is the width and height in inches."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from ensemble_plot.colours import style_of
    from ensemble_plot.drawing import figure_bytes, new_figure
    from ensemble_plot.picture import unit_of

    longest = max(bar.end for bar in timeline.bars)
    longest = max([longest, *(time for times in timeline.firings.values() for time in times)])
    unit, by = unit_of(longest)
    groups = list(dict.fromkeys(bar.group for bar in timeline.bars))
    colours = {group: style_of(place % 12).colour for place, group in enumerate(groups)}

    def draw() -> Any:
        figure = new_figure(size or (_WIDTH, _HEIGHT))
        ax = figure.subplots()
        _bars(ax, timeline, colours, by)
        handles: list[Any] = [Patch(color=colours[group], label=group) for group in groups]
        outcomes = {bar.outcome for bar in timeline.bars}
        for outcome, colour in (("failed", _FAILED), ("cancelled", _CANCELLED)):
            if outcome in outcomes:
                handles.append(Line2D([], [], color=colour, lw=2.5, label=f"then {outcome}"))
        top = -0.9 - 0.03 * timeline.lines
        for place, (rule, times) in enumerate(list(timeline.firings.items())[:_RULES]):
            ink, shape = _FILLS[place % 2], _SHAPES[place]
            shown = [time / by for time in times[:_MARKS]]
            ax.plot(shown, [top] * len(shown), shape, color=ink, ms=4, mec="#222222", mew=0.4)
            mark = {"color": ink, "marker": shape, "mec": "#222222", "mew": 0.4, "ms": 5}
            label = f"{shorten(rule, 24)} fired"
            handles.append(Line2D([], [], linestyle="none", label=label, **mark))
        ax.set_ylim(timeline.lines - 0.4, top - 0.7 - 0.02 * timeline.lines)
        ax.set_yticks([])
        ax.set_ylabel(f"jobs at once (at most {timeline.lines})")
        if timeline.nodes:
            ax.set_ylabel(f"{len(timeline.nodes)} nodes")
            for _, start, _ in timeline.nodes[1:]:
                ax.axhline(start - 0.5, color="#cccccc", lw=0.5, zorder=1)
            if len(timeline.nodes) <= _NODES:
                middles = [start + (count - 1) / 2 for _, start, count in timeline.nodes]
                ax.set_yticks(middles, [str(node) for node, _, _ in timeline.nodes], fontsize=6)
        ax.set_xlabel(f"time since the start ({unit})")
        legend = figure.legend(handles=handles, loc="outside right upper", fontsize=7)
        for text in legend.get_texts():
            text.set_parse_math(False)
        if timeline.title is not None:
            figure.suptitle(timeline.title, fontsize=9).set_parse_math(False)
        return figure

    return figure_bytes(draw, form, {"font.size": 8.0, "axes.grid.axis": "x", "pdf.fonttype": 42})


def _bars(ax: Axes, timeline: Timeline, colours: Mapping[str, str], by: float) -> None:
    from matplotlib.collections import PolyCollection

    def boxes(bars: Iterable[tuple[float, float, int]], height: float) -> list[Any]:
        half = height / 2
        return [
            [(a / by, n - half), (b / by, n - half), (b / by, n + half), (a / by, n + half)]
            for a, b, n in bars
        ]

    waits = [(b.submitted, b.end if b.start is None else b.start, b.line) for b in timeline.bars]
    faint = {"facecolors": "#cccccc", "linewidths": 0, "zorder": 1.5}
    ax.add_collection(PolyCollection(boxes(waits, 0.12), **faint))
    for group, colour in colours.items():
        runs = [
            (b.start, b.end, b.line)
            for b in timeline.bars
            if b.group == group and b.start is not None
        ]
        thin = 0.3 if timeline.lines <= 60 else 0.0
        made = {"facecolors": colour, "edgecolors": "#ffffff", "linewidths": thin, "zorder": 2}
        ax.add_collection(PolyCollection(boxes(runs, 0.8), **made))
    # Mark the ends of jobs that did not succeed.
    for outcome, colour in (("failed", _FAILED), ("cancelled", _CANCELLED)):
        ends = [(b.end / by, b.line) for b in timeline.bars if b.outcome == outcome]
        if ends:
            xs, lines = zip(*ends, strict=True)
            low, high = [n - 0.4 for n in lines], [n + 0.4 for n in lines]
            ax.vlines(xs, low, high, colors=colour, lw=2, zorder=3)
    ax.autoscale_view()
