"""Scopes: the jobs that an instance of a rule with ``each`` is for, with counts and statistics.

- *Index*: a job with all its attempts (see ``job_record``).
- *Slice*: all jobs that have the same values of some parameters.
- *Scope*: an index or a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NamedTuple

from ensemble_core.engine.rule_index import RuleInstance
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.store import KEPT, counted, split_filter
from ensemble_core.quick_dataclass import dataclass

#: The statistics that a scope keeps, by variable. A counter (``count.done``) is a key without
#: statistics.
Reads = dict[str, list[StatisticSpec]]


def add_read(reads: Reads, name: str, statistics: Mapping[str, StatisticSpec]) -> None:
    """Note in ``reads`` which statistic a name such as ``max.stress`` needs."""
    statistic, _, variable = name.partition(".")
    if statistic == "count":
        reads.setdefault(name, [])
        return
    if statistic not in statistics:
        return  # a gauge
    kept = reads.setdefault(variable, [])
    if all(spec.name != statistic for spec in kept):
        kept.append(statistics[statistic])


@dataclass(slots=True, eq=False)
class Scope:
    """Counts and statistics of a scope, and the instances of rules for it (by the rules'
    ``key``).
    """

    counts: dict[str, int] | None = None
    series: dict[str, Series] | None = None
    instances: dict[int, RuleInstance] | None = None
    #: Number of attempts that pass a filter, by filter and counter (of those in ``KEPT``).
    filtered: dict[str, dict[str, int]] | None = None

    def count_passing(self, conditions: Iterable[str], counter: str, by: int = 1) -> None:
        """Change this counter for each of these filters."""
        if self.filtered is None:
            self.filtered = {}
        for condition in conditions:
            counts = self.filtered.setdefault(condition, dict.fromkeys(KEPT, 0))
            counts[counter] += by

    def instance(self, rule: int) -> RuleInstance:
        """Return the instance of the rule for this scope. Create it on first use."""
        if self.instances is None:
            self.instances = {}
        found = self.instances.get(rule)
        if found is None:
            found = self.instances[rule] = RuleInstance()
        return found

    def count(self, counter: str, by: int) -> None:
        """Change a counter."""
        if self.counts is None:
            self.counts = {}
        self.counts[counter] = self.counts.get(counter, 0) + by

    def counted(self, counter: str) -> int:
        """Return the value of a counter."""
        return 0 if self.counts is None else self.counts.get(counter, 0)

    def add_value(
        self, variable: str, value: float, now: float, specs: list[StatisticSpec]
    ) -> None:
        """Add a value to the statistics of a variable."""
        if self.series is None:
            self.series = {}
        if variable not in self.series:
            self.series[variable] = Series(specs)
        self.series[variable].record(value, now)

    def read(self, statistic: str, variable: str, now: float) -> float | None:
        """Return the value of ``STAT.VARIABLE`` in this scope, or ``None`` if it has no values."""
        if statistic == "count":
            if not variable.endswith(")"):
                return self.counted(variable)
            counter, condition = split_filter(variable)
            counts = None if self.filtered is None else self.filtered.get(condition)
            return 0 if counts is None else counted(counts, counter)
        series = None if self.series is None else self.series.get(variable)
        return None if series is None else series.scoped(statistic, now)


class SliceKey(NamedTuple):
    """Definition of slices: groups, and the parameters whose values distinguish the slices."""

    groups: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Slice(Scope):
    """The jobs that have the same values of some parameters."""

    key: SliceKey = field(kw_only=True)
    parameters: Mapping[str, object] = field(kw_only=True)
    #: Position among the slices of the same key, by first submit.
    order: int = field(kw_only=True)
    #: The statistics that the slice keeps; shared with all slices of the same key.
    reads: Reads = field(kw_only=True)
    #: Number of indices that are not over.
    open: int = 0
    #: The same counters as the metric store has for a group.
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEPT, 0))

    @property
    def ever(self) -> int:
        """Number of indices that were ever in the slice."""
        return self.counters["submitted"] - self.counters["repeated"]

    def counted(self, counter: str) -> int:
        return counted(self.counters, counter)


@dataclass(slots=True, eq=False)
class SliceTable:
    """All slices with the same key."""

    key: SliceKey
    #: The statistics that each slice keeps.
    reads: Reads = field(default_factory=dict)
    slices: dict[tuple[object, ...], Slice] = field(default_factory=dict)

    def of(self, parameters: Mapping[str, object]) -> Slice | None:
        """Return the slice for these parameters. Create it on first use.

        Return ``None`` if a parameter of the key is missing.
        """
        try:
            values = tuple([parameters[name] for name in self.key.parameters])
        except KeyError:
            return None
        found = self.slices.get(values)
        if found is None:
            chosen = dict(zip(self.key.parameters, values, strict=True))
            found = Slice(key=self.key, parameters=chosen, order=len(self.slices), reads=self.reads)
            self.slices[values] = found
        return found
