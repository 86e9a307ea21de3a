"""Streaming metrics: counts, statistics over what jobs do, and gauges of the queue.

A metric has a dotted path: ``count.GROUP.success``, ``mean.GROUP-duration``,
``p95.GROUP-pending.failed``, ``queue.sched``. The engine writes, rules and users read. A series of
values keeps a small buffer and hands it to its statistics when somebody reads one of them or the
buffer is full, so a value that nobody looks at costs little more than the reducers' own work, and
memory does not grow with the number of values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, Protocol

from ensemble_core.errors import EnsembleError

__all__ = [
    "COUNTS",
    "GAUGES",
    "OUTCOMES",
    "VARIABLES",
    "MetricPath",
    "MetricStore",
    "MetricsView",
    "Series",
    "Statistic",
    "StatisticSpec",
    "TimedStatistic",
    "parse_path",
]

#: What is counted for each group.
COUNTS = ("submitted", "finished", "success", "failed", "cancelled")
#: Variables that each group has, whatever observes it. Seconds.
VARIABLES = ("duration", "pending")
#: By which a duration can be told apart.
OUTCOMES = ("success", "failed")
#: What is known of the queue.
GAUGES = (
    "queue.depend",
    "queue.priority",
    "queue.sched",
    "queue.run",
    "queue.cleanup",
    "queue.inactive",
    "nodes.up",
    "nodes.free",
    "cores.up",
    "cores.free",
    "gpus.up",
    "gpus.free",
    "waiting.nodes",
)
_BUFFER = 128


class Statistic(Protocol):
    """A streaming reducer. It is given finite numbers only, and asked only after the first."""

    def update(self, value: float, /) -> Any:
        """Take one more value."""

    def get(self) -> float | None:
        """The value now; ``None`` while there is none."""


class TimedStatistic(Protocol):
    """A streaming reducer whose value depends on when its values came (seconds)."""

    def update(self, value: float, timestamp: float, /) -> Any:
        """Take one more value, which came at ``timestamp``."""

    def get(self, now: float, /) -> float | None:
        """The value at the time ``now``; ``None`` while there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticSpec:
    """A statistic that can be asked for by ``name``; see ``hookspecs.StatisticPlugin``."""

    name: str
    build: Callable[[], Statistic | TimedStatistic]
    timed: bool = False
    default: bool = False
    within: bool = False


@dataclass(frozen=True, slots=True)
class MetricPath:
    """A checked path. ``variable`` is the counter's name, the variable of the group (with its
    outcome: ``duration.failed``), or empty for a gauge."""

    text: str
    kind: Literal["count", "series", "gauge"]
    group: str = ""
    variable: str = ""
    statistic: str = ""


def parse_path(text: str, groups: Collection[str], statistics: Collection[str]) -> MetricPath:
    """Read a metric's path. Raises :class:`EnsembleError` with the nearest path there is.

    Whether the variable exists for that group is the caller's to know: a path whose variable is
    none of ``VARIABLES`` comes from an observer.
    """
    head, _, rest = text.partition(".")
    if text in GAUGES:
        return MetricPath(text, "gauge")
    if head == "count" and rest:
        group, _, counter = rest.rpartition(".")
        if group in groups and counter in COUNTS:
            return MetricPath(text, "count", group, counter)
    elif head in statistics and rest:
        path = _series_path(text, head, rest, groups)
        if path:
            return path
    raise _unknown(text, groups, statistics)


def _series_path(
    text: str, statistic: str, rest: str, groups: Collection[str]
) -> MetricPath | None:
    fitting = [group for group in groups if rest.startswith(group + "-")]
    for group in sorted(fitting, key=len, reverse=True):
        variable = rest[len(group) + 1 :]
        base, _, outcome = variable.partition(".")
        if not base or (outcome and (base != "duration" or outcome not in OUTCOMES)):
            continue
        return MetricPath(text, "series", group, variable, statistic)
    return None


def _unknown(text: str, groups: Collection[str], statistics: Collection[str]) -> EnsembleError:
    candidates = [*GAUGES]
    candidates += [f"count.{group}.{counter}" for group in groups for counter in COUNTS]
    candidates += [
        f"{statistic}.{group}-{variable}"
        for statistic in statistics
        for group in groups
        for variable in VARIABLES
    ]
    near = get_close_matches(text, candidates, 1, 0.5)
    return EnsembleError(
        f"no metric {text!r} can ever exist",
        hint=f"did you mean {near[0]!r}?"
        if near
        else "a path is count.GROUP.success, mean.GROUP-duration or queue.sched",
        code="no-such-metric",
    )


def _finite(value: float | None) -> float | None:
    """A statistic's value, unless its sum or square outgrew what a float can hold."""
    return None if value is None or value - value != 0.0 else value


class _Cell:
    """One statistic of a series, and how much of the series' buffer it has taken."""

    __slots__ = ("broken", "done", "get", "name", "statistic", "timed", "update", "update_all")

    def __init__(self, spec: StatisticSpec) -> None:
        self.name = spec.name
        self.timed = spec.timed
        self.statistic: Any = spec.build()
        self.update: Callable[..., Any] = self.statistic.update
        self.get: Callable[..., float | None] = self.statistic.get
        #: Some take many values at once, with the same result. (What river calls ``update_many``
        #: takes arrays and rounds differently.)
        self.update_all: Callable[..., Any] | None = getattr(self.statistic, "update_all", None)
        self.done = 0
        self.broken = False


class Series:
    """The values of one variable of one group, reduced by several statistics.

    Values wait in a small buffer; a statistic takes them when it is read, and all do when the
    buffer is full. ``problems`` is told of a statistic that raised: it has no value any more.
    """

    __slots__ = (
        "_buffer",
        "_cells",
        "_problems",
        "_stamps",
        "_timed",
        "count",
        "high",
        "low",
        "total",
    )

    def __init__(
        self, specs: Iterable[StatisticSpec] = (), problems: Callable[[str], None] | None = None
    ) -> None:
        self.count = 0
        self.total = 0.0
        self.low = float("inf")
        self.high = float("-inf")
        self._cells: dict[str, _Cell] = {}
        self._timed = False
        self._buffer: list[float] = []
        self._stamps: list[float] = []
        self._problems = problems
        for spec in specs:
            self.keep(spec)

    def keep(self, spec: StatisticSpec) -> None:
        """Keep this statistic from now on."""
        if spec.name not in self._cells:
            self._flush()
            self._cells[spec.name] = _Cell(spec)
            self._timed = self._timed or spec.timed

    def record(self, value: float, timestamp: float) -> None:
        """Take one more value. What is no finite number is passed over: it would spoil every value
        after it, and one that is missing does less harm."""
        if value - value != 0.0:
            return
        self.count += 1
        self.total += value
        if value > self.high:
            self.high = value
        if value < self.low:
            self.low = value
        buffer = self._buffer
        buffer.append(value)
        if self._timed:
            self._stamps.append(timestamp)
        if len(buffer) >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            for cell in self._cells.values():
                self._catch_up(cell)
                cell.done = 0
            self._buffer.clear()
            self._stamps.clear()

    def _catch_up(self, cell: _Cell) -> None:
        """Let one statistic take what it has not taken of the buffer."""
        done, buffer, update = cell.done, self._buffer, cell.update
        cell.done = len(buffer)
        if cell.broken:
            return
        try:
            if cell.timed:
                for value, stamp in zip(buffer[done:], self._stamps[done:], strict=True):
                    update(value, stamp)
            elif cell.update_all is not None:
                cell.update_all(buffer[done:] if done else buffer)
            else:
                for value in buffer[done:] if done else buffer:
                    update(value)
        except Exception as error:  # a plugin's statistic: it must not take the run with it
            self._break(cell, error)

    def _break(self, cell: _Cell, error: Exception) -> None:
        cell.broken = True
        if self._problems is not None:
            self._problems(f"statistic {cell.name!r} raised {error!r} and has no value any more")

    def get(self, statistic: str, now: float) -> float | None:
        """A statistic's value; ``None`` before the first value, or if it is not kept."""
        cell = self._cells.get(statistic)
        return None if cell is None else self.read(cell, now)

    def reader(self, statistic: str) -> Callable[[float], float | None]:
        """What gives this statistic's value at a time, with the finding done once."""
        return partial(self.read, self._cells[statistic])

    def read(self, cell: _Cell, now: float) -> float | None:
        """A kept statistic's value; the way of rules that ask at every update, so it is short."""
        buffer = self._buffer
        done = cell.done
        if done != len(buffer):
            if done + 1 == len(buffer) and not cell.timed and not cell.broken:
                cell.done = done + 1
                try:
                    cell.update(buffer[done])
                except Exception as error:  # as above
                    self._break(cell, error)
            else:
                self._catch_up(cell)
        if cell.broken or not self.count:
            return None
        try:
            value = cell.get(now) if cell.timed else cell.get()
        except Exception as error:  # as above
            self._break(cell, error)
            return None
        return value if value is not None and value - value == 0.0 else None

    def get_with(self, statistic: str, values: Iterable[float], now: float) -> float | None:
        """A statistic's value as if ``values`` had been recorded too; nothing is added."""
        cell = self._cells.get(statistic)
        if cell is None:
            return None
        self._catch_up(cell)
        trial, empty = copy.deepcopy(cell.statistic), not self.count
        try:
            for value in values:
                empty = False
                trial.update(value, now) if cell.timed else trial.update(value)
            if empty or cell.broken:
                return None
            return _finite(trial.get(now) if cell.timed else trial.get())
        except Exception as error:  # as above
            self._break(cell, error)
            return None

    @property
    def names(self) -> tuple[str, ...]:
        """The statistics that are kept."""
        return tuple(self._cells)


class MetricStore:
    """All metrics of one run.

    ``everything`` keeps every statistic for every variable, for runs in which a user's function may
    ask for any of them; otherwise the default ones are kept, and what rules name.
    """

    def __init__(
        self,
        groups: Iterable[str],
        statistics: Mapping[str, StatisticSpec],
        *,
        everything: bool = False,
    ) -> None:
        self.statistics = statistics
        self.everything = everything
        self.counts: dict[str, dict[str, int]] = {
            group: dict.fromkeys(COUNTS, 0) for group in groups
        }
        self.gauges: dict[str, float] = {}
        #: What went wrong in plugins' statistics, for the engine to tell.
        self.problems: list[str] = []
        self.series: dict[tuple[str, str], Series] = {}
        self._kept = [spec for spec in statistics.values() if everything or spec.default]
        for group in self.counts:
            for variable in VARIABLES:
                self.add(group, variable)
            if everything:
                for outcome in OUTCOMES:
                    self.add(group, f"duration.{outcome}")

    def add(self, group: str, variable: str) -> Series:
        """The series of this variable, made if there is none yet."""
        series = self.series.get((group, variable))
        if series is None:
            series = self.series[group, variable] = Series(self._kept, self.problems.append)
        return series

    def keep(self, path: MetricPath) -> None:
        """Make sure that this metric is there to be read."""
        if path.kind == "series":
            self.add(path.group, path.variable).keep(self.statistics[path.statistic])

    def moves_with_time(self, path: MetricPath) -> bool:
        """Whether the value may change although nothing happens to a job of the group."""
        return path.kind == "gauge" or path.variable == "pending" or self.is_timed(path)

    def is_timed(self, path: MetricPath) -> bool:
        """Whether the value depends on how long ago things happened."""
        return path.kind == "series" and self.statistics[path.statistic].timed

    def get(self, path: MetricPath, now: float) -> float | None:
        """A metric's value; ``None`` while there is none."""
        if path.kind == "count":
            return self.counts[path.group][path.variable]
        if path.kind == "gauge":
            return self.gauges.get(path.text)
        series = self.series.get((path.group, path.variable))
        return None if series is None else series.get(path.statistic, now)

    def reader(self, path: MetricPath) -> Callable[[float], float | None]:
        """What gives this metric's value at a time, with the finding done once."""
        if path.kind == "series":
            self.keep(path)
            return self.series[path.group, path.variable].reader(path.statistic)
        return partial(self._plain, path)

    def bounds(self, path: MetricPath) -> Series | None:
        """The series whose smallest and largest value this metric always lies between."""
        if path.kind == "series" and self.statistics[path.statistic].within:
            return self.series[path.group, path.variable]
        return None

    def _plain(self, path: MetricPath, now: float) -> float | None:
        if path.kind == "count":
            return self.counts[path.group][path.variable]
        return self.gauges.get(path.text)

    def mean(self, group: str, variable: str) -> float | None:
        """The plain mean of a variable of a group, whatever statistics are kept."""
        series = self.series.get((group, variable))
        return series.total / series.count if series is not None and series.count else None

    def snapshot(self, now: float) -> MetricsView:
        """Every metric's value now, safe to read from another thread."""
        values: dict[str, float] = dict(self.gauges)
        for group, counts in self.counts.items():
            for counter, number in counts.items():
                values[f"count.{group}.{counter}"] = number
        for (group, variable), series in self.series.items():
            for name in series.names:
                value = series.get(name, now)
                if value is not None:
                    values[f"{name}.{group}-{variable}"] = value
        return MetricsView(values)


@dataclass(frozen=True, slots=True)
class _Model:
    """One value with river's way of asking for it."""

    value: float

    def get(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:g}"


class MetricsView(Mapping[str, float]):
    """Metrics by path, as they were when the function that reads them was called.

    >>> MetricsView({"count.echo.success": 3}).get("count.echo.success")
    3
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def __getitem__(self, path: str) -> float:
        try:
            return self._values[path]
        except KeyError:
            near = get_close_matches(path, self._values, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise KeyError(f"metric {path!r} has no value{hint}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The values nested as ensemble-python 0.0.16 has them: ``models["mean"]["g-duration"]``
        and ``models["count"]["g"]["success"]``, each with ``get()``."""
        nested: dict[str, dict[str, Any]] = {}
        for path, value in self._values.items():
            head, _, rest = path.partition(".")
            if head == "count":
                group, _, counter = rest.rpartition(".")
                nested.setdefault("count", {}).setdefault(group, {})[counter] = _Model(value)
            else:
                nested.setdefault(head, {})[rest] = _Model(value)
        return nested
