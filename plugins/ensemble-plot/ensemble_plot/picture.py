"""Layout of a picture of a run, as plain data: panels, axes, curves, marks where rules fired."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ensemble_plot.outlier_axis import usual_range
from ensemble_plot.run_history import Curve, Mark, Point, RunHistory, Track

#: Horizontal axis of a panel: the rows' own clock, or seconds since the run's first event.
Axis = Literal["step", "time"]


@dataclass(frozen=True, slots=True)
class Line:
    """One job's curve. It may have fewer points than the job reported."""

    job: str
    observer: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]  # nan where the line has a gap
    rows: int  # number of values that the job reported
    gaps: int  # number of these values that are not finite
    lowest: float | None
    highest: float | None
    end: tuple[float, float] | None = None  # x and y of the mark of a cancelled or failed job

    def to_dict(self) -> dict[str, Any]:
        points = [[x, None if y != y else y] for x, y in zip(self.xs, self.ys, strict=True)]
        return {
            "job": self.job,
            "observer": self.observer,
            "rows": self.rows,
            "not_finite": self.gaps,
            "lowest": self.lowest,
            "highest": self.highest,
            "points": [[None if x != x else x, y] for x, y in points],
        }


@dataclass(frozen=True, slots=True)
class Spot:
    """Mark on a job's curve where a rule fired."""

    rule: str
    job: str
    seq: int  # number of the event in the journal
    x: float
    y: float  # nan if the curve had no value yet


@dataclass(frozen=True, slots=True)
class Moment:
    """Firing of a rule at a time, drawn as a vertical line."""

    rule: str
    seq: int
    x: float


@dataclass(slots=True)
class Panel:
    """All curves of one variable."""

    variable: str
    axis: Axis
    lines: list[Line] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    # range of most values, if outliers would make the curves flat
    usual: tuple[float, float] | None = None


@dataclass(slots=True)
class Picture:
    """A picture of a run."""

    title: str
    subtitle: str
    clock: str
    panels: list[Panel]
    jobs: list[Track]
    rules: dict[str, str]  # labels of the rules that have marks
    unplaced: dict[str, int]  # number of firings without a mark, by rule

    def to_dict(self) -> dict[str, Any]:
        """Return the picture as plain data.

        Each ``x`` is a step, or the seconds since the run's first event.
        """
        return {
            "title": self.title,
            "jobs": [
                {
                    "job": track.id,
                    "group": track.group,
                    "parameters": dict(track.parameters),
                    "outcome": track.end,
                }
                for track in self.jobs
            ],
            "panels": [
                {
                    "variable": panel.variable,
                    "x": panel.axis,
                    "curves": [line.to_dict() for line in panel.lines],
                    "marks": [
                        {"rule": spot.rule, "job": spot.job, "seq": spot.seq, "x": spot.x}
                        | {"y": None if spot.y != spot.y else spot.y}
                        for spot in panel.spots
                    ]
                    + [
                        {"rule": one.rule, "job": None, "seq": one.seq, "x": one.x, "y": None}
                        for one in panel.moments
                    ],
                }
                for panel in self.panels
            ],
            "rules": dict(self.rules),
            "not_shown": dict(self.unplaced),
        }


def compose(
    history: RunHistory,
    variables: Sequence[str],
    *,
    axis: Axis | None = None,
    speaks: Mapping[str, Sequence[str]] | None = None,
    title: str | None = None,
    state: str = "",
) -> Picture:
    """Lay out a panel for each of these variables.

    - ``axis``: horizontal axis; by default, the rows' clock if they have one, otherwise the time
    - ``speaks``: the names that each rule uses; its marks are drawn in the panels of these
      names, or in all panels if it uses none of them
    - ``state``: text beside the title
    """
    panels = [_panel(history, variable, axis) for variable in variables]
    rules: dict[str, str] = {}
    unplaced: dict[str, int] = {}
    for rule, firings in history.firings.items():
        named = set((speaks or {}).get(rule, ()))
        own = [panel for panel in panels if panel.variable in named] or panels
        for mark in firings.marks:
            if _place(mark, own, panels, history.began or 0.0):
                rules.setdefault(rule, mark.label)
            else:
                unplaced[rule] = unplaced.get(rule, 0) + firings.stride
        if rule in unplaced:
            unplaced[rule] = min(unplaced[rule], firings.count)
    drawn = {line.job for panel in panels for line in panel.lines}
    jobs = [track for track in history.jobs() if track.id in drawn]
    return Picture(
        title=title if title is not None else history.name,
        subtitle="" if title is not None else _subtitle(history, jobs, state),
        clock=history.clock or "step",
        panels=panels,
        jobs=jobs,
        rules=rules,
        unplaced=unplaced,
    )


def _subtitle(history: RunHistory, jobs: Sequence[Track], state: str) -> str:
    parts = [history.tag] if history.tag != history.name else []
    if len(jobs) == 1:
        parts.append(jobs[0].id)
    if state:
        parts.append(state)
    return ", ".join(parts)


def _panel(history: RunHistory, variable: str, axis: Axis | None) -> Panel:
    curves = {key: one for key, one in history.curves.items() if key.variable == variable}
    if axis is None:
        clocked = any(curve.clocked for curve in curves.values())
        axis = "step" if clocked else "time"
    panel = Panel(variable, axis)
    places = {track.id: place for place, track in enumerate(history.jobs(variable))}
    for key in sorted(curves, key=lambda key: (places[key.job], key.observer)):
        curve = curves[key]
        line = _line(history, key.job, key.observer, curve, axis)
        if line.xs:
            panel.lines.append(line)
    panel.usual = usual_range(y for line in panel.lines for y in line.ys)
    return panel


def _line(history: RunHistory, job: str, observer: str, curve: Curve, axis: Axis) -> Line:
    began = history.began or 0.0
    xs: list[float] = []
    ys: list[float] = []
    end = None
    for point, restarted in curve.points():
        x = _x(point, axis, began)
        if x is None:
            continue
        if restarted and axis == "step" and xs:
            xs.append(math.nan)
            ys.append(math.nan)
        xs.append(x)
        ys.append(point.value)
        if point.value == point.value:
            end = x, point.value
        elif end is not None:
            end = x, end[1]
    if history.tracks[job].end not in ("cancelled", "failed"):
        end = None
    return Line(
        job,
        observer,
        tuple(xs),
        tuple(ys),
        curve.rows,
        curve.gaps,
        min((y for y in ys if y == y), default=None),
        max((y for y in ys if y == y), default=None),
        end,
    )


def _x(point: Point, axis: Axis, began: float) -> float | None:
    """Return the horizontal position of a point; ``None`` if it has no clock."""
    if axis == "time":
        return point.time - began
    return point.clock if math.isfinite(point.clock) else None


def _place(mark: Mark, own: Sequence[Panel], panels: Sequence[Panel], began: float) -> bool:
    """Place the mark of a firing. Return whether it has a place."""
    placed = False
    if mark.job is not None:
        for panel in own:
            point = mark.at.get(panel.variable)
            x = None if point is None else _x(point, panel.axis, began)
            if point is not None and x is not None:
                panel.spots.append(Spot(mark.rule, mark.job, mark.seq, x, point.value))
                placed = True
    if not placed:
        for panel in panels:
            if panel.axis == "time":
                panel.moments.append(Moment(mark.rule, mark.seq, mark.time - began))
                placed = True
    return placed


#: Limit of every axis. Beyond this limit, the length of an axis might not be a finite number.
_HUGE = 1e300


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most this width, and replace its control characters with spaces."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def clamp(number: float) -> float:
    """Return the number, limited to what an axis can show; nan stays nan."""
    return max(-_HUGE, min(_HUGE, number)) if number == number else number


def isolated_points(ys: Sequence[float]) -> list[int]:
    """Return the indices of points between two gaps, which a line does not show."""
    last = len(ys) - 1
    return [
        at
        for at, y in enumerate(ys)
        if y == y and (at == 0 or math.isnan(ys[at - 1])) and (at == last or math.isnan(ys[at + 1]))
    ]


def total_variation(ys: Sequence[float]) -> float:
    """Return how far a curve moves up and down in total, in multiples of its height."""
    finite = [clamp(y) for y in ys if y == y]
    height = max(finite, default=0.0) / 2 - min(finite, default=0.0) / 2
    if not height > 0:
        return 0.0
    return sum(abs(b / 2 - a / 2) / height for a, b in itertools.pairwise(finite))


def time_unit(panels: Iterable[Panel]) -> tuple[str, float]:
    """Return the unit for the panels' time axes, and the number of seconds in that unit."""
    longest = max(
        (
            abs(x)
            for panel in panels
            if panel.axis == "time"
            for line in panel.lines
            for x in line.xs
            if x == x
        ),
        default=0.0,
    )
    return unit_of(longest)


def unit_of(longest: float) -> tuple[str, float]:
    """Return the unit for a duration in seconds, and the number of seconds in that unit."""
    for name, seconds, least in (("d", 86400.0, 3.0), ("h", 3600.0, 3.0), ("min", 60.0, 10.0)):
        if longest >= least * seconds:
            return name, seconds
    return "s", 1.0
