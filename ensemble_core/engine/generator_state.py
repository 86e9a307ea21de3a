"""State of a generator: its points, their results, and the pending call.

A point is a set of parameters that the generator suggested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from ensemble_core.metrics.store import GENERATOR
from ensemble_core.model.decisions import Call
from ensemble_core.model.generators import Exchange, Point, Reading, Vocs, dominates
from ensemble_core.quick_dataclass import dataclass, replace

#: The gauges of a generator by name, except ``best.OBJECTIVE``.
_GAUGES: Mapping[str, Callable[[GeneratorState], float]] = {
    "suggested": lambda state: state.suggested,
    "ingested": lambda state: state.ingested,
    "pending": lambda state: state.pending,
    "successes": lambda state: state.successes,
    "pareto": lambda state: len(state.front),
}

#: Sort keys of points that are not done, for the table of points.
_LAST = {"pending": 3, "pruned": 4, "lost": 5}


@dataclass(slots=True, eq=False)
class SuggestCall:
    """A pending call to a generator: how many points to suggest, and the results for it."""

    call: Call
    #: Number of requested points.
    count: int
    #: Finished points that the call reports.
    ingested: tuple[Point, ...]
    #: Rows of running points that the call reports.
    readings: tuple[Reading, ...]

    def retry(self) -> SuggestCall:
        """Return this call as a repeated one."""
        return replace(self, call=replace(self.call, attempt=self.call.attempt + 1))


@dataclass(slots=True, eq=False)
class GeneratorState:
    """State of one generator."""

    name: str
    #: All suggested points, by number.
    points: list[Point] = field(default_factory=list)
    #: The calls that were answered.
    exchanges: list[Exchange] = field(default_factory=list)
    #: Finished points that the next call will report.
    over: list[Point] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    open_call: SuggestCall | None = None
    #: The point of each open job, by the job's index in the group.
    jobs: dict[int, Point] = field(default_factory=dict)
    #: Points whose jobs are all over but that have not been processed yet.
    ended: list[Point] = field(default_factory=list)
    pending: int = 0
    successes: int = 0
    ingested: int = 0
    #: How many points a rule has requested beyond ``at_once``.
    extra: int = 0
    paused: bool = False
    #: ``met``: the condition ``until`` is true. ``exhausted``: the generator has no more points.
    met: bool = False
    exhausted: bool = False
    #: True if the last answer had fewer points than requested, and no results have been passed on
    #: since.
    short: bool = False
    #: How many points it had suggested when it last had no more.
    exhausted_after: int | None = None
    #: With ``repeat: false``: ``known`` has the first point with each combination of parameters,
    #: ``duplicates`` the points that wait for the outcome of an earlier one. ``repeated`` is the
    #: number of repeated points, ``consecutive_repeats`` of those since the last new one.
    known: dict[str, int] = field(default_factory=dict)
    duplicates: dict[int, list[int]] = field(default_factory=dict)
    repeated: int = 0
    consecutive_repeats: int = 0
    #: Number of consecutive lost points.
    consecutive_losses: int = 0
    fault: str | None = None
    #: Other generators whose points are passed on to this one too, because of a switch.
    sources: list[str] = field(default_factory=list)
    #: ``best``: for each objective, the number of the best point. ``front``: the numbers of the
    #: points that no other point dominates.
    best: dict[str, int] = field(default_factory=dict)
    front: list[int] = field(default_factory=list)

    @property
    def suggested(self) -> int:
        """Number of different points that were suggested."""
        return len(self.points) - self.repeated

    @property
    def has_unreported_results(self) -> bool:
        """True if the next call will report a result that the generator does not know."""
        return any(point.repeats is None for point in self.over)

    def is_finished(self, point: Point) -> bool:
        """Return True if the outcome of this point is known."""
        return point.state != "pending" and not point.open and point not in self.ended

    def repeat(self, first: Point, parameters: Mapping[str, Any], tag: str | int | None) -> Point:
        """Add a point that has the outcome of an earlier one."""
        point = Point(number=len(self.points), parameters=parameters, tag=tag, repeats=first.number)
        self.points.append(point)
        self.repeated += 1
        self.duplicates.setdefault(first.number, []).append(point.number)
        if self.is_finished(first):
            self.end_duplicates(first)
        return point

    def end_duplicates(self, first: Point) -> None:
        """Report the points that repeat a finished one with its outcome."""
        for number in self.duplicates.pop(first.number, ()):
            duplicate = self.points[number]
            duplicate.state, duplicate.values, duplicate.errors = (
                first.state,
                first.values,
                first.errors,
            )
            self.over.append(duplicate)

    def take_back(self, call: SuggestCall | None) -> None:
        """Keep what a failed call should have passed on, for the next call."""
        if call is not None:
            self.over[:0] = call.ingested
            self.readings[:0] = call.readings

    def learn(self, source: GeneratorState, known: Mapping[str, GeneratorState]) -> None:
        """Also receive the points of ``source``, and of the generators from which it learned, each
        once.
        """
        for name in dict.fromkeys((*source.sources, source.name)):
            if name == self.name or name in self.sources:
                continue
            self.sources.append(name)
            other = known[name]
            for point in other.points:
                if point.repeats is None and other.is_finished(point):
                    self.over.append(point.copy_for(name))

    def rank(self, point: Point, vocs: Vocs) -> bool:
        """Compare a finished point with earlier points.

        Return True if it is the best one or, with several objectives, if no other point dominates
        it.
        """
        if not vocs.feasible(point.values):
            return False
        for name in vocs.objectives:
            best = self.best.get(name)
            if best is None or vocs.better(point.values, self.points[best].values, name):
                self.best[name] = point.number
        others = [self.points[number].values for number in self.front]
        if any(
            values == point.values or dominates(vocs, values, point.values) for values in others
        ):
            return False
        self.front = [
            number
            for number, values in zip(self.front, others, strict=True)
            if not dominates(vocs, point.values, values)
        ]
        self.front.append(point.number)
        return True

    def table(self, vocs: Vocs) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
        """Return a table of the points, as column names and rows.

        The best points come first, then other done points, then those that violate constraints,
        then running, pruned and lost points.
        """
        outputs = vocs.outputs
        errors = [f"{name}_error" for name in outputs if any(p.errors for p in self.points)]
        front = set(self.front)

        def key(point: Point) -> tuple[Any, ...]:
            values, number = point.values, point.number
            if point.state != "done":
                return (_LAST[point.state], number)
            missed = sum(max(0.0, c.violation(values[n])) for n, c in vocs.constraints.items())
            if not vocs.feasible(values):
                return (2, missed, number)
            goals = vocs.objectives.items()
            signed = [values[n] if goal == "minimize" else -values[n] for n, goal in goals]
            return (0 if number in front else 1, *signed, number)

        rows = []
        for point in sorted((each for each in self.points if each.repeats is None), key=key):
            row: dict[str, Any] = {"point": point.number, "state": point.state}
            row.update(point.parameters)
            if point.state == "done":
                row.update(point.values)
                row.update((f"{name}_error", value) for name, value in point.errors.items())
            rows.append(row)
        return ("point", "state", *vocs.names, *outputs, *errors), rows

    def gauges(self) -> Iterator[tuple[str, float]]:
        """Yield the path and value of each gauge of the generator."""
        for name in (*_GAUGES, *(f"best.{objective}" for objective in self.best)):
            value = self.gauge(name)
            if value is not None:
                yield f"{GENERATOR}{self.name}.{name}", value

    def gauge(self, name: str) -> float | None:
        """Return the value of the gauge with this last part of the path, or ``None``."""
        if name in _GAUGES:
            return _GAUGES[name](self)
        objective = name.removeprefix("best.")
        best = self.best.get(objective)
        return None if best is None else self.points[best].values[objective]
