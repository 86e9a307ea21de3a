"""History of a run for pictures: thinned curves of jobs, states of jobs, and firings of rules.

The memory needed does not grow with the number of rows in the journal.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ensemble_core import Decision, JobEvent, Observed
from ensemble_core.cli.toolkit import AddRule, Fail, Fired, JournalError, Submit

if TYPE_CHECKING:
    from ensemble_core.cli.toolkit import Journal, JournalRow

#: Limits of buckets: maximum number for all curves together, maximum and minimum number for one
#: curve.
_BUDGET, _MOST, _FEWEST = 300_000, 1200, 12
#: Number of variables with curves if none were chosen.
_CANDIDATES = 12
#: Maximum number of sets of names in rows to remember. In the worst case, each row has a new set.
_SHAPES = 100_000
#: Maximum number of firings of a rule to remember. If there are more, only every second, fourth …
#: is kept.
_REMEMBERED = 512

#: How a job ended; ``None`` if it has not ended.
End = Literal["success", "failed", "cancelled"]


class Key(NamedTuple):
    """Key of a curve: the variable, job and observer of its values."""

    variable: str
    job: str
    observer: str


@dataclass(slots=True)
class Track:
    """One job's history from the journal. Times are in seconds since the epoch."""

    id: str
    group: str
    index: int
    parameters: Mapping[str, object] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None
    end: End | None = None
    fatal: str | None = None
    status: object = None


class Mark(NamedTuple):
    """One firing of a rule."""

    rule: str
    label: str
    seq: int
    time: float
    job: str | None
    at: Mapping[str, Point]  # by variable of the job: where on the curve the mark belongs


@dataclass(slots=True)
class Firings:
    """The firings of one rule."""

    count: int = 0
    stride: int = 1
    # if there are very many, only every second, fourth …
    marks: list[Mark] = field(default_factory=list)

    def add(self, mark: Mark) -> None:
        if self.count % self.stride == 0:
            self.marks.append(mark)
        self.count += 1
        if len(self.marks) > _REMEMBERED:
            del self.marks[1::2]
            self.stride *= 2


class RunHistory:
    """Everything about a run that a picture needs."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.name = tag
        #: Times of the first and newest event.
        self.began: float | None = None
        self.newest: float | None = None
        self.damage: JournalError | None = None
        self.tracks: dict[str, Track] = {}
        self.curves: dict[Key, Curve] = {}
        self.firings: dict[str, Firings] = {}
        #: Rules that were added during the run.
        self.added: dict[str, Mapping[str, Any]] = {}
        #: Variables of all rows, in order, each with the groups of its jobs.
        self.seen: dict[str, dict[str, None]] = {}
        self.rows = 0
        #: Variable that always equals the rows' clock, for example ``step``.
        self.clock: str | None = None
        self._groups: dict[str, int] = {}

    def variables(self) -> list[str]:
        """Return the variables with a curve, in the order of their first values."""
        kept = {key.variable for key in self.curves}
        return [name for name in self.seen if name in kept]

    def jobs(self, variable: str | None = None) -> list[Track]:
        """Return the jobs that have a curve (of ``variable``, if given), by group and index."""
        found = {key.job for key in self.curves if variable is None or key.variable == variable}
        return sorted((self.tracks[job] for job in found), key=self._place)

    def _place(self, track: Track) -> tuple[int, int, str]:
        return self._groups.get(track.group, 0), track.index, track.id

    def track(self, job: str) -> Track:
        """Return the history of this job; create it if needed."""
        found = self.tracks.get(job)
        if found is None:
            group, _, rest = job.rpartition(".")
            index = rest.partition("-")[0]  # all attempts
            number = int(index) if index.isdecimal() else 0
            found = self.tracks[job] = Track(job, group or job, number)
            self._groups.setdefault(found.group, len(self._groups))
        return found

    def keep(self, variables: Collection[str]) -> None:
        """Drop the curves of all other variables."""
        self.curves = {key: one for key, one in self.curves.items() if key.variable in variables}


def read(
    journal: Journal,
    *,
    variables: Collection[str] | None = None,
    groups: Collection[str] = (),
    jobs: Collection[str] = (),
) -> RunHistory:
    """Return the history of these variables (``None``: the first dozen).

    - ``groups``, ``jobs``: if given, only these groups, or jobs with these ids

    If the journal is damaged, the history ends there, and its attribute ``damage`` is the error.
    """
    return _JournalReader(journal, variables, groups, jobs).history


class _JournalReader:
    """Reads one journal."""

    def __init__(
        self,
        journal: Journal,
        variables: Collection[str] | None,
        groups: Collection[str],
        jobs: Collection[str],
    ) -> None:
        self.history = history = RunHistory(journal.tag)
        history.name = str(journal.about.get("name") or journal.tag)
        self._variables = None if variables is None else frozenset(variables)
        self._some = bool(groups or jobs)
        self._wanted_groups, self._wanted_jobs = frozenset(groups), frozenset(jobs)
        #: The curves that receive a row's values, by the row's job, observer and names.
        self._shapes: dict[tuple[str, str, tuple[str, ...]], list[tuple[str, Curve]]] = {}
        #: Each job's curves by variable.
        self._of: dict[str, dict[str, Curve]] = {}
        #: Whether each variable has been equal to the clock in all rows so far.
        self._clocks: dict[str, bool] = {}
        self._limit = _MOST
        try:
            last = journal.last()
            for row in journal.rows(0, last):
                self._row(row)
        except JournalError as error:
            history.damage = error
        history.clock = next((name for name in history.seen if self._clocks.get(name)), None)

    def _row(self, row: JournalRow) -> None:
        history = self.history
        if history.began is None:
            history.began = row.time
        history.newest = row.time
        try:
            if row.type == "observed":
                event = row.event()
                if isinstance(event, Observed):
                    self._observe(event)
            elif row.type == "job":
                event = row.event()
                if isinstance(event, JobEvent):
                    self._job(event)
            if row.decisions is not None:
                self._decide(row)
        except (ValueError, TypeError, KeyError) as error:
            raise JournalError(
                f"cannot read event {row.seq} of the journal", cause=str(error), code="corrupt"
            ) from error

    def _observe(self, event: Observed) -> None:
        history = self.history
        history.rows += 1
        track = history.track(event.job)
        if self._some and not (track.group in self._wanted_groups or track.id in self._wanted_jobs):
            return
        values = event.values
        if event.clock is not None:
            self._find_clock(event.clock, values)
        shape = event.job, event.observer, tuple(values)
        curves = self._shapes.get(shape)
        if curves is None:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            curves = self._shapes[shape] = self._choose(track.group, *shape)
        clock, time, restarted = event.clock, event.timestamp, event.restarted
        for name, curve in curves:
            try:
                curve.add(clock, time, values[name], restarted=restarted)
            except (TypeError, OverflowError):  # the value may have a plugin's own number type
                curve.add(None, time, math.nan, restarted=restarted)

    def _find_clock(self, clock: float, values: Mapping[str, float]) -> None:
        """Find the variable that is the rows' clock: it equals the clock in every row."""
        told = self._clocks
        for name, value in values.items() if len(told) < len(values) else ():
            told.setdefault(name, value == clock)
        for name, was in told.items():
            if was and values.get(name, clock) != clock:
                told[name] = False

    def _choose(
        self, group: str, job: str, observer: str, names: tuple[str, ...]
    ) -> list[tuple[str, Curve]]:
        """Return the curves that receive a row's values."""
        seen = self.history.seen
        for name in names:
            seen.setdefault(name, {})[group] = None
        kept = list(seen)[:_CANDIDATES] if self._variables is None else self._variables
        return [(name, self._begin(Key(name, job, observer))) for name in names if name in kept]

    def _begin(self, key: Key) -> Curve:
        curves = self.history.curves
        if key in curves:
            return curves[key]
        limit = max(_FEWEST, min(_MOST, _BUDGET // (len(curves) + 1)))
        if limit <= self._limit // 2:
            self._limit = limit
            for curve in curves.values():
                curve.shrink(limit)
        curves[key] = found = Curve(self._limit)
        self._of.setdefault(key.job, {})[key.variable] = found
        return found

    def _job(self, event: JobEvent) -> None:
        if not event.ours:
            return
        track = self.history.track(event.job)
        context = event.context
        if event.name == "start":
            track.started = event.timestamp
        elif event.name == "exception":
            if context.get("severity", 0) == 0 and track.fatal is None:
                track.fatal = str(context.get("type", ""))
        elif event.name == "finish":
            track.status = context.get("status")
            self._end(track, event.timestamp)
        elif event.name == "clean":
            self._end(track, event.timestamp)

    @staticmethod
    def _end(track: Track, time: float) -> None:
        if track.end is not None:
            return
        track.ended = time
        if track.fatal == "cancel":
            track.end = "cancelled"
        else:
            track.end = "success" if track.fatal is None and track.status == 0 else "failed"

    def _decide(self, row: JournalRow) -> None:
        assert row.decisions is not None
        history = self.history
        for data in json.loads(row.decisions):
            kind = data.get("type")
            if kind == Submit.type:
                decision = Decision.from_dict(data)
                assert isinstance(decision, Submit)
                for job in decision.jobs:
                    history.track(job.id).parameters = job.parameters
            elif kind == Fail.type:
                fail = Decision.from_dict(data)
                assert isinstance(fail, Fail)
                history.track(fail.job).end = fail.outcome
            elif kind == AddRule.type:
                history.added[str(data.get("id"))] = data.get("spec") or {}
            elif kind == Fired.type:
                self._fire(
                    row, str(data.get("rule")), str(data.get("label") or ""), data.get("job")
                )

    def _fire(self, row: JournalRow, rule: str, label: str, job: str | None) -> None:
        if self._some and job is not None:
            track = self.history.track(job)
            if not (track.group in self._wanted_groups or job in self._wanted_jobs):
                return
        curves = self._of.get(job, {}) if job is not None else {}
        at = {name: here for name, one in curves.items() if (here := one.here()) is not None}
        mark = Mark(rule, label, row.seq, row.time, job, at)
        self.history.firings.setdefault(rule, Firings()).add(mark)


#: Number of floats that a bucket stores: four points with four values each.
_WIDTH = 16
_NAN = math.nan
_finite = math.isfinite


class Point(NamedTuple):
    """One value of a curve."""

    row: float  # index among the curve's values
    clock: float  # step or time that the job printed with the value; nan if none
    time: float  # when the value was read, in seconds since the epoch
    value: float  # nan if the printed value was not finite


#: A point while the curve is read. It is a plain tuple, because creating a named tuple takes twice
#: as long.
_Numbers = tuple[float, float, float, float]


class Curve:
    """Points in reading order, thinned so that extreme values stay.

    Consecutive values form a bucket, of which the first, lowest, highest and last are kept. If
    there are more than ``limit`` buckets, neighbours are merged.
    """

    __slots__ = (
        "_breaks",
        "_clock",
        "_count",
        "_now",
        "_numbers",
        "_restarted",
        "_span",
        "clocked",
        "gaps",
        "last",
        "limit",
        "newest",
        "rows",
    )

    def __init__(self, limit: int) -> None:
        self.limit = max(2, limit)
        #: Numbers of all values, of those that are not finite, and of those with a clock.
        self.rows = self.gaps = self.clocked = 0
        #: The newest finite point, and the newest point of all, as :class:`Point`.
        self.last: _Numbers | None = None
        self.newest: _Numbers | None = None
        self._span = 1
        self._numbers = array("d")
        self._breaks = bytearray()
        self._now: list[_Numbers] = []
        self._count = 0
        self._restarted = False
        self._clock = -math.inf

    def add(
        self, clock: float | None, time: float, value: float, *, restarted: bool = False
    ) -> None:
        """Add a row. The flag ``restarted`` says that the output restarted before the row.

        Raises ``TypeError`` or ``OverflowError`` for a value that is not a number, and then adds
        nothing.
        """
        finite = _finite(value)
        at = _NAN
        if clock is not None and _finite(clock):
            at = clock
            self.clocked += 1
            if at < self._clock:
                restarted = True
            self._clock = at
        if restarted and self.rows:
            self._close()
            self._restarted = True
        row = self.rows
        self.rows = row + 1
        now = self._now
        if finite:
            self.newest = self.last = point = (row, at, time, value)
            if not now or now[0][3] != now[0][3]:
                self._now = [point, point, point, point]
            else:
                if value < now[1][3]:
                    now[1] = point
                elif value > now[2][3]:
                    now[2] = point
                now[3] = point
        else:
            self.gaps += 1
            self.newest = point = (row, at, time, _NAN)
            if not now:
                self._now = [point, point, point, point]
        self._count += 1
        if self._count >= self._span:
            self._close()

    def here(self) -> Point | None:
        """Return the newest row, with the newest finite value (nan without one)."""
        if self.newest is None:
            return None
        row, clock, time, _ = self.newest
        return Point(row, clock, time, _NAN if self.last is None else self.last[3])

    def shrink(self, limit: int) -> None:
        """Keep at most this many buckets from now on."""
        self.limit = max(2, limit)
        while len(self._breaks) > self.limit:
            self._join()

    def _close(self) -> None:
        """Complete the current bucket."""
        if not self._now:
            return
        for point in self._now:
            self._numbers.extend(point)
        self._breaks.append(self._restarted)
        self._now, self._count, self._restarted = [], 0, False
        while len(self._breaks) > self.limit:
            self._join()

    def _join(self) -> None:
        """Merge neighbouring buckets.

        Buckets on both sides of a break are merged only if there are breaks between nearly all
        buckets.
        """
        numbers, breaks = self._numbers, self._breaks
        freely = sum(breaks) > self.limit // 4
        joined, kept = array("d"), bytearray()
        at, count = 0, len(breaks)
        while at < count:
            here = numbers[at * _WIDTH : (at + 1) * _WIDTH]
            kept.append(breaks[at])
            at += 1
            if at < count and (freely or not breaks[at]):
                here = _merge(here, numbers[at * _WIDTH : (at + 1) * _WIDTH])
                at += 1
            joined.extend(here)
        self._numbers, self._breaks = joined, kept
        self._span *= 2

    def points(self) -> Iterator[tuple[Point, bool]]:
        """Return the kept points in order, each with a flag whether the output restarted before
        it.
        """
        numbers = self._numbers
        for bucket, begun in enumerate(self._breaks):
            at = bucket * _WIDTH
            found = [Point(*numbers[at + 4 * n : at + 4 * n + 4]) for n in range(4)]
            yield from _first_of_each_row(found, bool(begun))
        if self._now:
            yield from _first_of_each_row([Point(*point) for point in self._now], self._restarted)


def _first_of_each_row(found: list[Point], begun: bool) -> Iterator[tuple[Point, bool]]:
    before = -1.0
    for point in sorted(found, key=lambda point: point.row):
        if point.row != before:
            yield point, begun
            before, begun = point.row, False


def _merge(one: array[float], two: array[float]) -> array[float]:
    if one[3] != one[3]:
        return two
    if two[3] != two[3]:
        return one
    low = one if one[7] <= two[7] else two
    high = one if one[11] >= two[11] else two
    return one[:4] + low[4:8] + high[8:12] + two[12:]
