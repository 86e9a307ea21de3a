"""Scopes of rules: one index, or one slice of a sweep, with what is counted and measured of it.

A rule with ``each`` has an instance for each scope. ``STAT.NAME`` in its conditions and actions is
a statistic over the scope's values alone; only those are kept that some rule names, but a slice
counts its jobs in any case. Kept by the job table, read by ``rule_evaluation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ensemble_core.engine.rule_index import Instance
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.store import KEPT, counted

__all__ = ["Reads", "Scope", "Slice", "SliceKey", "SliceTable", "add_read"]

#: The statistics that are kept in a scope, by the variable that they are of. Of a counter there are
#: none: it is kept where its name (``count.done``) is a key.
Reads = dict[str, list[StatisticSpec]]


def add_read(reads: Reads, name: str, statistics: Mapping[str, StatisticSpec]) -> None:
    """Keep what ``STAT.VARIABLE`` needs."""
    statistic, _, variable = name.partition(".")
    if statistic == "count":
        reads.setdefault(name, [])
        return
    if statistic not in statistics:
        return  # a gauge
    kept = reads.setdefault(variable, [])
    if all(spec.name != statistic for spec in kept):
        kept.append(statistics[statistic])


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """Counts and statistics of one scope, and the instances of rules by the rule's
    ``key``."""

    counts: dict[str, int] | None = None
    series: dict[str, Series] | None = None
    instances: dict[int, Instance] | None = None

    def instance(self, rule: int) -> Instance:
        """The instance of this rule here, made at its first look."""
        if self.instances is None:
            self.instances = {}
        found = self.instances.get(rule)
        if found is None:
            found = self.instances[rule] = Instance()
        return found

    def count(self, counter: str, by: int) -> None:
        """Count so many more, or fewer."""
        if self.counts is None:
            self.counts = {}
        self.counts[counter] = self.counts.get(counter, 0) + by

    def counted(self, counter: str) -> int:
        """The value of one of the counters that rules name."""
        return 0 if self.counts is None else self.counts.get(counter, 0)

    def take(self, variable: str, value: float, now: float, specs: list[StatisticSpec]) -> None:
        """Take one more value of a variable of which these statistics are kept."""
        if self.series is None:
            self.series = {}
        if variable not in self.series:
            self.series[variable] = Series(specs)
        self.series[variable].record(value, now)

    def read(self, statistic: str, variable: str, now: float) -> float | None:
        """The value of ``STAT.VARIABLE`` here; ``None`` while there is none."""
        if statistic == "count":
            return self.counted(variable)
        series = None if self.series is None else self.series.get(variable)
        return None if series is None else series.scoped(statistic, now)


class SliceKey(NamedTuple):
    """Which slices: of these groups, by the values of these parameters."""

    groups: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(slots=True, eq=False, repr=False)
class Slice(Scope):
    """The indices that have the same values of some parameters.

    ``order`` is its place among the slices of its table, by their first submits. ``open`` counts
    its indices that are not over, which is asked at the end of each; ``counters`` are those of its
    attempts and indices, as the metric store keeps a group's.
    """

    key: SliceKey = field(kw_only=True)
    parameters: Mapping[str, object] = field(kw_only=True)
    order: int = field(kw_only=True)
    #: Those of its table.
    reads: Reads = field(kw_only=True)
    open: int = 0
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEPT, 0))

    @property
    def ever(self) -> int:
        """How many indices there were so far."""
        return self.counters["submitted"] - self.counters["repeated"]

    def counted(self, counter: str) -> int:
        return counted(self.counters, counter)


@dataclass(slots=True, eq=False, repr=False)
class SliceTable:
    """All slices of one key; ``reads`` are the statistics kept in each."""

    key: SliceKey
    reads: Reads = field(default_factory=dict)
    slices: dict[tuple[object, ...], Slice] = field(default_factory=dict)

    def of(self, parameters: Mapping[str, object]) -> Slice | None:
        """The slice of a job with these parameters, made if there is none yet; ``None`` where it
        lacks one of them."""
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
