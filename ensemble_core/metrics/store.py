"""Streaming metrics: counts, statistics over what jobs do, and gauges of the queue.

A metric has a dotted path: ``count.GROUP.success``, ``mean.GROUP-duration``,
``p95.GROUP-duration.failed``, ``queue.sched``, ``mean.queue.sched``. The engine writes, rules and
users read. How a variable's values are reduced is the business of ``series``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from ensemble_core.errors import EnsembleError, closest, did_you_mean, raised_at
from ensemble_core.metrics.series import NoNumber, Series, StatisticSpec

__all__ = [
    "AWAY",
    "BACKLOG",
    "COMMITTED",
    "COUNTS",
    "FIRINGS",
    "GAUGES",
    "GENERATOR",
    "KEPT",
    "OUTCOMES",
    "RESOURCES",
    "USED",
    "USUAL_STATISTICS",
    "VARIABLES",
    "MetricPath",
    "MetricStore",
    "MetricsView",
    "counted",
    "generator_gauge",
    "is_gauge",
    "parse_path",
    "split_filter",
]

#: What is counted for each group.
#: ``submitted`` to ``active`` and ``reused`` count attempts, the others indices: jobs with all
#: their attempts.
COUNTS = (
    *("submitted", "finished", "success", "failed", "cancelled", "active"),
    *("open", "done", "lost", "reused"),
)
#: What of that is kept, and how many attempts were not the first of their index; the others are
#: worked out.
KEPT = ("submitted", "success", "failed", "cancelled", "done", "lost", "repeated", "reused")
#: Variables that each group has, whatever observes it. Seconds.
VARIABLES = ("duration", "pending")
#: By which these can be told apart.
OUTCOMES = ("success", "failed", "cancelled")
#: What jobs take of an allocation; and the gauges of what the run used of each and of what is
#: committed to jobs that are not over.
RESOURCES = ("core_hours", "node_hours", "gpu_hours")
USED = "used."
COMMITTED = "committed."
#: What is known of the queue. ``queue.active`` and ``waiting.*`` but ``nodes`` are always of this
#: run's jobs alone.
GAUGES = (
    "queue.active",
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
    "waiting.jobs",
    "waiting.next",
    "waiting.smallest",
    "waiting.largest",
    "waiting.random",
    "used.jobs",
    *(USED + resource for resource in RESOURCES),
    *(COMMITTED + resource for resource in RESOURCES),
)
#: Gauges of one group each (jobs that ``submit-next`` has not taken yet; 1 while a member that has
#: jobs of it is away), and of one rule each (how often it fired).
BACKLOG = "backlog."
AWAY = "away."
FIRINGS = "count.rule."
#: Gauges of one generator each: GENERATOR + NAME + one of these, or ``best.OBJECTIVE``.
GENERATOR = "generator."
_OF_GENERATOR = re.compile(
    r"generator\.([\w-]+)\.(suggested|ingested|pending|successes|pareto|best\.(\w+))"
)


class MetricPath(NamedTuple):
    """A checked path. ``variable`` is the counter's name, the variable of the group (with its
    outcome: ``duration.failed``), or empty for a gauge. A series without a group is of the gauge
    that ``variable`` names, as it was at each heartbeat."""

    text: str
    kind: Literal["count", "series", "gauge"]
    group: str = ""
    variable: str = ""
    statistic: str = ""


def parse_path(
    text: str,
    groups: Collection[str],
    statistics: Collection[str],
    rules: Collection[str] | None = None,
) -> MetricPath:
    """Read a metric's path. Raises :class:`EnsembleError` with the nearest path there is.

    Whether the variable exists for that group is the caller's to know: a path whose variable is
    none of ``VARIABLES`` comes from an observer. ``rules`` are the ids that there are; ``None``:
    any may be one. What a job group's name makes a metric of that group is no gauge.
    """
    head, _, rest = text.partition(".")
    if head == "count" and rest:
        base, condition = split_filter(rest)
        group, _, counter = base.rpartition(".")
        if group in groups and counter in COUNTS:
            filtered = f"{counter}({condition})" if condition else counter
            return MetricPath(text, "count", group, filtered)
    elif head in statistics and rest:
        path = _series_path(text, head, rest, groups)
        if path:
            return path
        if is_gauge(rest, groups, rules):
            return MetricPath(text, "series", "", rest, head)
    if is_gauge(text, groups, rules):
        return MetricPath(text, "gauge")
    raise _unknown(text, groups, statistics, rules or ())


def split_filter(name: str) -> tuple[str, str]:
    """Split ``NAME(CONDITION)`` into its two parts; the condition is empty where it has none.

    >>> split_filter("mean.U(L == 16)"), split_filter("mean.U")
    (('mean.U', 'L == 16'), ('mean.U', ''))
    """
    base, bracket, condition = name.partition("(")
    return (base, condition[:-1]) if bracket else (name, "")


def is_gauge(text: str, groups: Collection[str], rules: Collection[str] | None) -> bool:
    """True if this is the path of a gauge."""
    if text.startswith((BACKLOG, AWAY)):
        return text.partition(".")[2] in groups
    if text.startswith(FIRINGS):
        rule = text.removeprefix(FIRINGS)
        return bool(rule) if rules is None else rule in rules
    return text in GAUGES or generator_gauge(text) is not None


def generator_gauge(text: str) -> tuple[str, str | None] | None:
    """The generator that a gauge is of, and the objective that it is the best of; ``None`` for
    other paths."""
    found = _OF_GENERATOR.fullmatch(text) if text.startswith(GENERATOR) else None
    return None if found is None else (found[1], found[3])


def _series_path(
    text: str, statistic: str, rest: str, groups: Collection[str]
) -> MetricPath | None:
    fitting = [group for group in groups if rest.startswith(group + "-")]
    for group in sorted(fitting, key=len, reverse=True):
        variable = rest[len(group) + 1 :]
        base, dot, outcome = variable.partition(".")
        if not base or (dot and not outcome):
            continue
        # What observers yield may have a dot in its name; what each group has means an outcome.
        if outcome and base in VARIABLES and outcome not in OUTCOMES:
            continue
        return MetricPath(text, "series", group, variable, statistic)
    return None


#: Statistics as other libraries call them.
USUAL_STATISTICS = {
    "avg": "mean",
    "average": "mean",
    "var": "variance",
    "std": "variance",
    "total": "sum",
}


def _unknown(
    text: str, groups: Collection[str], statistics: Collection[str], rules: Collection[str]
) -> EnsembleError:
    gauges = [*GAUGES, *(FIRINGS + rule for rule in rules)]
    gauges += [of_each + group for of_each in (BACKLOG, AWAY) for group in groups]
    candidates = [*gauges]
    candidates += [f"count.{group}.{counter}" for group in groups for counter in COUNTS]
    candidates += [
        f"{statistic}.{group}-{variable}"
        for statistic in statistics
        for group in groups
        for variable in VARIABLES
    ]
    head, _, rest = text.partition(".")
    if head in statistics:
        candidates += [f"{head}.{gauge}" for gauge in gauges]
    usual = USUAL_STATISTICS.get(head.lower())
    meant = f"{usual}.{rest}"
    near = meant if meant in candidates else closest(text, candidates, 0.5)
    if usual in statistics and not near:
        near = meant
    return EnsembleError(
        f"unknown metric {text!r}",
        hint=f"did you mean {near!r}?"
        if near
        else "a path is count.GROUP.success, mean.GROUP-duration or queue.sched",
        code="no-such-metric",
    )


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
        self.statistics: Mapping[str, StatisticSpec] = {}
        self.everything = False
        self.counts: dict[str, dict[str, int]] = {}
        self.gauges: dict[str, float] = {}
        #: What went wrong in plugins' statistics, for the engine to tell: with those that a rule
        #: asks for, and with those that are kept beside them.
        self.problems: list[str] = []
        self.warnings: list[str] = []
        #: The metrics that were asked for by name: (group, variable, statistic).
        self._asked: set[tuple[str, str, str]] = set()
        #: The statistics of which it was told that they are at fault.
        self._told: set[tuple[str, str]] = set()
        self.series: dict[tuple[str, str], Series] = {}
        #: By group and filter, what of ``KEPT`` is counted of the attempts that pass.
        self.filtered: dict[str, dict[str, dict[str, int]]] = {}
        self.adopt(groups, statistics, everything=everything)

    def adopt(
        self,
        groups: Iterable[str],
        statistics: Mapping[str, StatisticSpec],
        *,
        everything: bool = False,
    ) -> None:
        """Go on with a changed file: its groups and statistics beside those that are there."""
        self.statistics = {**self.statistics, **statistics}
        self.everything = self.everything or everything
        self._kept = self._to_keep()
        for group in groups:
            self.counts.setdefault(group, dict.fromkeys(KEPT, 0))
            for variable in VARIABLES:
                self.add(group, variable)
            if self.everything:
                for outcome in OUTCOMES:
                    self.add(group, f"duration.{outcome}")

    def add(self, group: str, variable: str) -> Series:
        """The series of this variable, made if there is none yet."""
        series = self.series.get((group, variable))
        if series is None:
            told = partial(self._fault, group, variable)
            # Of a gauge, or with a filter, only what is asked for: nobody reads the rest.
            kept = self._kept if group and not variable.endswith(")") else ()
            series = self.series[group, variable] = Series(kept, told)
        return series

    def _to_keep(self) -> list[StatisticSpec]:
        """The statistics that every variable has. One that cannot be built is left out: nobody may
        ever ask for it."""
        kept = []
        for spec in self.statistics.values():
            if self.everything or spec.default:
                error = spec.fault()
                if error is None:
                    kept.append(spec)
                elif spec.key not in self._told:
                    self._told.add(spec.key)
                    self.warnings.append(
                        f"{spec} cannot be built and is left out: it {_spoken(error)}"
                    )
        return kept

    def _fault(self, group: str, variable: str, statistic: str, error: Exception) -> None:
        """A statistic raised, or gave what is no number. Each is told of once, and of each metric
        that a rule waits for: that rule is one that never fires."""
        asked, spec = (group, variable, statistic) in self._asked, self.statistics[statistic]
        if not asked and spec.key in self._told:
            return
        self._told.add(spec.key)
        path = _series_text(statistic, group, variable)
        message = f"{spec} {_spoken(error)}; {path} has no value any more"
        (self.problems if asked else self.warnings).append(message)

    def keep(self, path: MetricPath) -> None:
        """Make sure that this metric is there to be read."""
        if path.kind == "series":
            self._asked.add((path.group, path.variable, path.statistic))
            self.add(path.group, path.variable).keep(self.statistics[path.statistic])
        elif path.kind == "count" and path.variable.endswith(")"):
            _, condition = split_filter(path.variable)
            counts = self.filtered.setdefault(path.group, {})
            counts.setdefault(condition, dict.fromkeys(KEPT, 0))

    def moves_with_time(self, path: MetricPath) -> bool:
        """True if the value may change although nothing happens to a job of the group."""
        return path.kind == "gauge" or path.variable == "pending" or self.is_timed(path)

    def is_timed(self, path: MetricPath) -> bool:
        """True if the value depends on how long ago things happened."""
        return path.kind == "series" and self.statistics[path.statistic].timed

    def get(self, path: MetricPath, now: float) -> float | None:
        """A metric's value; ``None`` while there is none."""
        if path.kind == "count":
            return self.count(path.group, path.variable)
        if path.kind == "gauge":
            return self.gauges.get(path.text)
        series = self.series.get((path.group, path.variable))
        return None if series is None else series.get(path.statistic, now)

    def count(self, group: str, counter: str) -> int:
        """One of ``COUNTS`` of a group, perhaps with a filter; 0 where that is not kept."""
        if counter.endswith(")"):
            counter, condition = split_filter(counter)
            counts = self.filtered.get(group, {}).get(condition)
            return 0 if counts is None else counted(counts, counter)
        return counted(self.counts[group], counter)

    def reader(self, path: MetricPath) -> Callable[[float], float | None]:
        """A function that gives this metric's value at a time; the look-up is done once."""
        if path.kind == "series":
            self.keep(path)
            return self.series[path.group, path.variable].reader(path.statistic)
        if path.kind == "count" and path.variable in KEPT:
            # It is always there: the time that ``get`` is given too is never its default.
            return partial(self.counts[path.group].get, path.variable)
        return partial(self.get, path)

    def sampled(self) -> list[str]:
        """The gauges of which a statistic was asked for."""
        return [variable for group, variable in self.series if not group]

    def bounds(self, path: MetricPath) -> Series | None:
        """The series whose smallest and largest value this metric always lies between."""
        if path.kind == "series" and self.statistics[path.statistic].within:
            return self.series[path.group, path.variable]
        return None

    def mean(self, group: str, variable: str) -> float | None:
        """The plain mean of a variable of a group, whatever statistics are kept."""
        series = self.series.get((group, variable))
        return series.total / series.count if series is not None and series.count else None

    def snapshot(self, now: float) -> MetricsView:
        """Every metric's value now, safe to read from another thread."""
        values: dict[str, float] = dict(self.gauges)
        for group in self.counts:
            for counter in COUNTS:
                values[f"count.{group}.{counter}"] = self.count(group, counter)
        for group, filters in self.filtered.items():
            for condition, counts in filters.items():
                for counter in COUNTS:
                    values[f"count.{group}.{counter}({condition})"] = counted(counts, counter)
        for (group, variable), series in self.series.items():
            for name in series.names:
                value = series.get(name, now)
                if value is not None:
                    values[_series_text(name, group, variable)] = value
        return MetricsView(values)

    def hear_of_faults(self) -> None:
        """Hear of faulty statistics, after this was read from a snapshot."""
        for key, series in self.series.items():
            series.tell(partial(self._fault, *key))


def counted(counts: Mapping[str, int], counter: str) -> int:
    """The value of one of ``COUNTS``, of which those in ``KEPT`` are kept."""
    if counter in counts:
        return counts[counter]
    finished = counts["success"] + counts["failed"]
    if counter == "finished":
        return finished
    if counter == "active":
        return counts["submitted"] - finished - counts["cancelled"]
    return counts["submitted"] - counts["repeated"] - counts["done"] - counts["lost"]  # open


def _series_text(statistic: str, group: str, variable: str) -> str:
    return f"{statistic}.{group}-{variable}" if group else f"{statistic}.{variable}"


def _spoken(error: Exception) -> str:
    """An error in a plugin's code, in one line, with the place in that code."""
    if isinstance(error, NoNumber):
        return f"is at fault: {error}"
    place = raised_at(error)
    return f"raised {error!r}" + (f" ({place})" if place else "")


class _Model(NamedTuple):
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
            hint = did_you_mean(path, self._values, "", form="; did you mean {!r}?")
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
