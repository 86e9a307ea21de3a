"""Stores all metrics of a run: counts and statistics of job groups, and gauges of the queue.

A metric has a dotted path, such as ``count.GROUP.success``, ``p95.GROUP-duration`` or
``queue.sched``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from ensemble_core.errors import EnsembleError, closest, did_you_mean, raised_at
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.recent_counts import WITHIN, RecentCount
from ensemble_core.metrics.series import NoNumber, Series, StatisticSpec

#: Counters of each group. Those from ``submitted`` to ``active``, and ``reused``, count attempts.
#: ``rows`` counts the rows of observers. The others count indices: jobs with all their attempts.
COUNTS = (
    *("submitted", "finished", "success", "failed", "cancelled", "active"),
    *("open", "done", "lost", "reused", "rows"),
)
#: The counters that are stored; the others are calculated from them. ``repeated`` is the number of
#: retries.
KEPT = (
    *("submitted", "success", "failed", "cancelled", "done", "lost", "repeated", "reused"),
    "rows",
)
#: Variables that every group has, in seconds.
VARIABLES = ("duration", "pending")
#: Prefix of a variable that has the printed values of a column, also if the jobs have a ``result``
#: with the column's name: ``E`` then has the results, and ``rows.E`` the rows.
ROWS = "rows."
#: Suffixes that restrict these variables to one outcome, as in ``duration.failed``.
OUTCOMES = ("success", "failed", "cancelled")
#: Resources of which a run uses hours, and the prefixes of their gauges: one for the hours used so
#: far, and one for the hours committed to jobs that are not over.
RESOURCES = ("core_hours", "node_hours", "gpu_hours")
USED = "used."
COMMITTED = "committed."
#: Counters that cannot be counted within a time: two can also decrease, and rows are too many.
_LEVELS = ("active", "open", "rows")
#: Prefix of the gauges of pilots. Only executors with ``ExecutorPlugin.kinds`` report them.
PILOTS = "pilots."
#: Gauges of the queue and of the run. ``queue.active``, ``queue.suspended`` and the ``waiting.*``
#: gauges (except ``waiting.nodes``) count only jobs of this run.
GAUGES = (
    "queue.active",
    "queue.depend",
    "queue.priority",
    "queue.sched",
    "queue.run",
    "queue.suspended",
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
    *(PILOTS + name for name in ("ready", "waiting", "draining")),
    *(PILOTS + name for name in ("core_hours", "used_core_hours")),
)
#: Prefixes of gauges. ``backlog.GROUP``: the number of jobs of the group that ``submit-next`` has
#: not taken yet. ``away.GROUP``: 1 while a member that runs the group's jobs is disconnected.
#: ``count.rule.RULE``: how often the rule has fired.
BACKLOG = "backlog."
AWAY = "away."
FIRINGS = "count.rule."
#: Prefix of the gauges of a generator. The path continues with the generator's name and one of the
#: words in the pattern below.
GENERATOR = "generator."
_OF_GENERATOR = late_pattern(
    r"generator\.([\w-]+)\.(suggested|ingested|pending|successes|pareto|best\.(\w+))"
)


class MetricPath(NamedTuple):
    """A checked metric path."""

    text: str
    kind: Literal["count", "series", "gauge"]
    group: str = ""
    #: A counter, or a variable of the group. In a statistic without group: a gauge.
    variable: str = ""
    statistic: str = ""

    @property
    def recent(self) -> bool:
        """True for a count within a time: ``count.GROUP.failed(within 10m)``."""
        return self.kind == "count" and split_filter(self.variable)[1].startswith(WITHIN)


def parse_path(
    text: str,
    groups: Collection[str],
    statistics: Collection[str],
    rules: Collection[str] | None = None,
) -> MetricPath:
    """Parse a metric path. Raises :class:`EnsembleError` that suggests the most similar valid path.

    ``rules`` has the ids of all rules; ``None`` accepts any id. The caller has to check whether the
    group has the path's variable. A path that could mean both a metric of a group and a gauge means
    the metric of the group.
    """
    head, _, rest = text.partition(".")
    if head == "count" and rest:
        base, condition = split_filter(rest) if rest.endswith(")") else (rest, "")
        group, _, counter = base.rpartition(".")
        if group in groups and counter in COUNTS:
            if condition.startswith(WITHIN) and counter in _LEVELS:
                raise EnsembleError(
                    f"{text!r} counts nothing: {counter!r} is no number of ends or submits",
                    hint=f"write count.{group}.failed({condition}), or another of "
                    + ", ".join(each for each in COUNTS if each not in _LEVELS),
                    code="no-such-metric",
                )
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
    """Split ``NAME(CONDITION)`` into the name and the condition, which is empty without a filter.

    >>> split_filter("mean.U(L == 16)"), split_filter("mean.U")
    (('mean.U', 'L == 16'), ('mean.U', ''))
    """
    base, bracket, condition = name.partition("(")
    return (base, condition[:-1]) if bracket else (name, "")


def is_gauge(text: str, groups: Collection[str], rules: Collection[str] | None) -> bool:
    """Return True if this is the path of a gauge."""
    if text.startswith((BACKLOG, AWAY)):
        return text.partition(".")[2] in groups
    if text.startswith(FIRINGS):
        rule = text.removeprefix(FIRINGS)
        return bool(rule) if rules is None else rule in rules
    return text in GAUGES or generator_gauge(text) is not None


def generator_gauge(text: str) -> tuple[str, str | None] | None:
    """Return the generator in a gauge's path, and the objective of a gauge ``best.OBJECTIVE``.

    Return ``None`` for other paths.
    """
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
        # After a built-in variable, a dot is followed by an outcome. In variables of observers, a
        # dot has no meaning.
        if outcome and base in VARIABLES and outcome not in OUTCOMES:
            continue
        return MetricPath(text, "series", group, variable, statistic)
    return None


#: Names of statistics in other libraries, each with our name.
USUAL_STATISTICS = {
    "avg": "mean",
    "average": "mean",
    "var": "variance",
    "std": "variance",
    "total": "sum",
}
#: Names that users expect for gauges, each with ours.
USUAL_GAUGES = dict.fromkeys(("queue.pending", "queue.waiting", "queue.queued"), "waiting.jobs")


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
        group, _, variable = rest.partition(".")
        if variable and group in groups:  # the user wrote a dot instead of the hyphen
            candidates.append(f"{head}.{group}-{variable}")
    within = rest in candidates and rest.rpartition(".")[2] not in ("active", "open", "rows")
    if head in statistics and rest.startswith("count.") and within:
        return EnsembleError(
            f"unknown metric {text!r}",
            cause="statistics are of values, and a count has none",
            hint=f"for a count within a time, write '{rest}(within 10m)'",
            code="no-such-metric",
        )
    usual = USUAL_STATISTICS.get(head.lower())
    meant = USUAL_GAUGES.get(text, f"{usual}.{rest}")
    near = meant if meant in candidates else closest(text, candidates, 0.5)
    if usual in statistics and not near:
        near = meant
    return EnsembleError(
        f"unknown metric {text!r}",
        hint=f"did you mean {near!r}?"
        if near
        else "write a path such as count.GROUP.success, mean.GROUP-duration or queue.sched",
        code="no-such-metric",
    )


class MetricStore:
    """All metrics of a run.

    If ``all_statistics`` is true, every statistic of every variable is computed. Otherwise, only
    the default statistics and those that rules use are computed.
    """

    def __init__(
        self,
        groups: Iterable[str],
        statistics: Mapping[str, StatisticSpec],
        *,
        all_statistics: bool = False,
    ) -> None:
        self.statistics: Mapping[str, StatisticSpec] = {}
        self.all_statistics = False
        self.counts: dict[str, dict[str, int]] = {}
        self.gauges: dict[str, float] = {}
        #: Levels and messages for the engine to report: ``error`` for statistics that rules use and
        #: that raised errors, ``warning`` for everything else.
        self.reports: list[tuple[Literal["error", "warning"], str]] = []
        #: The metrics that rules use, as (group, variable, statistic).
        self._used: set[tuple[str, str, str]] = set()
        #: Statistics whose errors were reported already.
        self._reported: set[tuple[str, str]] = set()
        self.series: dict[tuple[str, str], Series] = {}
        #: The counters in ``KEPT`` for attempts that pass a filter, by group and filter.
        self.filtered: dict[str, dict[str, dict[str, int]]] = {}
        #: Counts within a time, by group and ``COUNTER(within TIME)``.
        self.recent: dict[str, dict[str, RecentCount]] = {}
        self.reconfigure(groups, statistics, all_statistics=all_statistics)

    def reconfigure(
        self,
        groups: Iterable[str],
        statistics: Mapping[str, StatisticSpec],
        *,
        all_statistics: bool = False,
    ) -> None:
        """Add the groups and statistics of a changed file to the existing ones."""
        self.statistics = {**self.statistics, **statistics}
        self.all_statistics = self.all_statistics or all_statistics
        self._kept = self._specs_for_all()
        for group in groups:
            self.counts.setdefault(group, dict.fromkeys(KEPT, 0))
            for variable in VARIABLES:
                self.add(group, variable)
            if self.all_statistics:
                for outcome in OUTCOMES:
                    self.add(group, f"duration.{outcome}")

    def add(self, group: str, variable: str) -> Series:
        """Return the series of this variable. Create it if necessary."""
        series = self.series.get((group, variable))
        if series is None:
            problems = partial(self._fault, group, variable)
            # Gauges and variables with a filter have only those statistics that rules use.
            kept = self._kept if group and not variable.endswith(")") else ()
            series = self.series[group, variable] = Series(kept, problems)
        return series

    def _specs_for_all(self) -> list[StatisticSpec]:
        """Return the statistics that are computed for every variable, without those that cannot be
        built.
        """
        kept = []
        for spec in self.statistics.values():
            if self.all_statistics or spec.default:
                error = spec.fault()
                if error is None:
                    kept.append(spec)
                elif spec.key not in self._reported:
                    self._reported.add(spec.key)
                    self.warn(f"{spec} cannot be built and is left out: it {_describe(error)}")
        return kept

    def _fault(self, group: str, variable: str, statistic: str, error: Exception) -> None:
        """Report a statistic that raised an error or returned something other than a number.

        Each statistic is reported once, and once more for each metric that a rule uses, because
        that rule can no longer fire.
        """
        used, spec = (group, variable, statistic) in self._used, self.statistics[statistic]
        if not used and spec.key in self._reported:
            return
        self._reported.add(spec.key)
        path = _series_text(statistic, group, variable)
        message = f"{spec} {_describe(error)}; {path} has no value from now on"
        self.reports.append(("error" if used else "warning", message))

    def warn(self, message: str) -> None:
        """Report a warning with the current event."""
        self.reports.append(("warning", message))

    def keep(self, path: MetricPath) -> None:
        """Compute this metric from now on."""
        if path.kind == "series":
            self._used.add((path.group, path.variable, path.statistic))
            self.add(path.group, path.variable).keep(self.statistics[path.statistic])
        elif path.kind == "count" and path.variable.endswith(")") and not path.recent:
            _, condition = split_filter(path.variable)
            counts = self.filtered.setdefault(path.group, {})
            counts.setdefault(condition, dict.fromkeys(KEPT, 0))

    def moves_with_time(self, path: MetricPath) -> bool:
        """Return True if the value can change without an event of the group's jobs."""
        return path.kind == "gauge" or path.variable == "pending" or self.is_timed(path)

    def is_timed(self, path: MetricPath) -> bool:
        """Return True if the value depends on the current time."""
        return path.kind == "series" and self.statistics[path.statistic].timed

    def accepts_nonfinite(self, path: MetricPath) -> bool:
        """Return True if nan or infinity can change the value, as that of ``last``."""
        return path.kind == "series" and self.statistics[path.statistic].accepts != "finite"

    def get(self, path: MetricPath, now: float) -> float | None:
        """Return a metric's value, or ``None`` if the metric has no value yet."""
        if path.kind == "count":
            if self.recent and path.recent:
                recent = self.recent.get(path.group, {}).get(path.variable)
                return None if recent is None else recent.count(now)
            return self.count(path.group, path.variable)
        if path.kind == "gauge":
            return self.gauges.get(path.text)
        series = self.series.get((path.group, path.variable))
        return None if series is None else series.get(path.statistic, now)

    def count(self, group: str, counter: str) -> int:
        """Return a counter of a group. The counter's name may have a filter.

        A filter that is not counted gives 0.
        """
        if counter.endswith(")"):
            counter, condition = split_filter(counter)
            counts = self.filtered.get(group, {}).get(condition)
            return 0 if counts is None else counted(counts, counter)
        return counted(self.counts[group], counter)

    def reader(self, path: MetricPath) -> Callable[[float], float | None]:
        """Return a function that returns this metric's value at a given time.

        It is faster than :meth:`get`, because it needs no look-up by path.
        """
        if path.kind == "series":
            self.keep(path)
            return self.series[path.group, path.variable].reader(path.statistic)
        if path.kind == "count" and path.variable in KEPT:
            # The key always exists, so ``get`` never returns its default, which here is the time.
            return partial(self.counts[path.group].get, path.variable)
        return partial(self.get, path)

    def sampled(self) -> list[str]:
        """Return the gauges that have statistics."""
        return [variable for group, variable in self.series if not group]

    def bounds(self, path: MetricPath) -> Series | None:
        """Return the series whose minimum and maximum are bounds of this metric, or ``None``."""
        if path.kind == "series" and self.statistics[path.statistic].within:
            return self.series[path.group, path.variable]
        return None

    def mean(self, group: str, variable: str) -> float | None:
        """Return the mean of a group's variable. It is available even if no rule uses it."""
        series = self.series.get((group, variable))
        return series.total / series.count if series is not None and series.count else None

    def snapshot(self, now: float) -> MetricsView:
        """Return a copy of all current values that another thread can read safely."""
        values: dict[str, float] = dict(self.gauges)
        for group in self.counts:
            for counter in COUNTS:
                values[f"count.{group}.{counter}"] = self.count(group, counter)
        for group, filters in self.filtered.items():
            for condition, counts in filters.items():
                for counter in COUNTS:
                    values[f"count.{group}.{counter}({condition})"] = counted(counts, counter)
        for group, counts_within in self.recent.items():
            for variable, recent in counts_within.items():
                values[f"count.{group}.{variable}"] = recent.count(now)
        for (group, variable), series in self.series.items():
            for name in series.names:
                value = series.get(name, now)
                if value is not None:
                    values[_series_text(name, group, variable)] = value
        return MetricsView(values)

    def connect_fault_reports(self) -> None:
        """Let statistics report errors again after the store was restored from a snapshot."""
        for key, series in self.series.items():
            series.tell(partial(self._fault, *key))


def counted(counts: Mapping[str, int], counter: str) -> int:
    """Return the value of a counter in ``COUNTS``, calculated from the stored counters."""
    if counter in counts:
        return counts[counter]
    finished = counts["success"] + counts["failed"]
    if counter == "finished":
        return finished
    if counter == "active":
        return counts["submitted"] - finished - counts["cancelled"]
    return counts["submitted"] - counts["repeated"] - counts["done"] - counts["lost"]  # "open"


def _series_text(statistic: str, group: str, variable: str) -> str:
    return f"{statistic}.{group}-{variable}" if group else f"{statistic}.{variable}"


def _describe(error: Exception) -> str:
    """Describe an error in a plugin's code in one line, with the position in that code."""
    if isinstance(error, NoNumber):
        return f"is faulty: {error}"
    place = raised_at(error)
    return f"raised {error!r}" + (f" ({place})" if place else "")


class _Model(NamedTuple):
    """A number with the method ``get()``, like a statistic of river."""

    value: float

    def get(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:g}"


class MetricsView(Mapping[str, float]):
    """Read-only copy of all metrics by path, for users' functions.

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
        """The values in the nested form of ensemble-python 0.0.16.

        Examples are ``models["mean"]["g-duration"]`` and ``models["count"]["g"]["success"]``. Each
        value has the method ``get()``.
        """
        nested: dict[str, dict[str, Any]] = {}
        for path, value in self._values.items():
            head, _, rest = path.partition(".")
            if head == "count":
                group, _, counter = rest.rpartition(".")
                nested.setdefault("count", {}).setdefault(group, {})[counter] = _Model(value)
            else:
                nested.setdefault(head, {})[rest] = _Model(value)
        return nested
