"""Index of live rules by what can wake them: the cost is per match, not per rule.

Rules that wait for an occasion (``job-finish``, ``heartbeat`` …) are found by its name and the
job's group. Rules that compare a metric are found by the metric and the number they compare with:
a new value reaches exactly the rules it satisfies, by a dictionary or a bisection. A rule that is
exhausted or disabled is not in the index. Written and read by the engine alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import attrgetter

from ensemble_core.metrics.series import Series
from ensemble_core.metrics.store import MetricPath, MetricStore
from ensemble_core.model.rules import BoundRule

__all__ = ["Occasions", "RuleIndex", "RuleState", "Watch", "in_order"]


class RuleState:
    """State of one rule: how often it fired, and what it waits for.

    ``order`` is its place among all rules. ``woken`` counts the occasions it was looked at (for
    rules that compare a metric their ``watch`` does), ``seen`` is what a condition last saw when it
    did not hold, and ``refused`` how often the trigger's own ``match`` said no.
    """

    __slots__ = (
        "cut",
        "enabled",
        "fired",
        "first_update",
        "not_before",
        "order",
        "refused",
        "rule",
        "seen",
        "skip",
        "watch",
        "why_cut",
        "woken",
    )

    def __init__(self, rule: BoundRule, order: int) -> None:
        self.rule = rule
        self.order = order
        self.enabled = rule.enabled
        self.fired = 0
        self.skip = 0
        self.not_before = float("-inf")
        self.woken = 0
        self.refused = 0
        self.seen = ""
        self.cut = False
        #: Why, as people are told.
        self.why_cut = ""
        self.watch: Watch | None = None
        self.first_update = 0

    def carry(self, earlier: RuleState) -> None:
        """Go on where the same rule stood in an earlier version of the file."""
        self.fired = earlier.fired
        self.skip = earlier.skip
        self.not_before = earlier.not_before
        if self.rule.spec == earlier.rule.spec:
            self.enabled = earlier.enabled
            self.cut, self.why_cut = earlier.cut, earlier.why_cut
            self.woken = earlier.looked_at
            self.refused = earlier.refused
            self.seen = earlier.seen

    @property
    def live(self) -> bool:
        """Whether the rule may still fire."""
        return self.enabled and not self.cut and self.fired < self.rule.repetitions

    @property
    def value(self) -> float | None:
        """Its metric's value when that was last read."""
        return None if self.watch is None else self.watch.last

    @property
    def looked_at(self) -> int:
        """How often the rule was considered."""
        watch = self.watch
        return self.woken if watch is None else max(watch.updates - self.first_update, self.fired)


_order = attrgetter("order")


def in_order(states: list[RuleState]) -> list[RuleState]:
    """The states in the order of their rules, each once."""
    if len(states) < 2:
        return states
    return sorted(dict.fromkeys(states), key=_order)


class _Thresholds:
    """States by the number they compare with, sorted."""

    __slots__ = ("numbers", "states")

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.states: list[RuleState] = []

    def add(self, number: float, state: RuleState) -> None:
        at = bisect_right(self.numbers, number)
        self.numbers.insert(at, number)
        self.states.insert(at, state)

    def discard(self, state: RuleState) -> None:
        at = self.states.index(state)
        del self.numbers[at], self.states[at]


class Watch:
    """The rules that wait for one metric.

    ``read`` gives the metric's value at a time, ``updates`` counts how often it was looked at and
    ``last`` is the value last read. A statistic that lies between the smallest and the largest
    value of its series (``bounds``) need not be read while both are out of every rule's reach:
    below ``ceiling`` and above ``floor``; it is then ``unread``.
    """

    __slots__ = (
        "_equal",
        "_ge",
        "_gt",
        "_le",
        "_lt",
        "_ordered",
        "_other",
        "bounds",
        "ceiling",
        "floor",
        "last",
        "path",
        "read",
        "size",
        "unread",
        "updates",
    )

    def __init__(
        self,
        path: MetricPath,
        read: Callable[[float], float | None],
        bounds: Series | None = None,
    ) -> None:
        self.path = path
        self.read = read
        self.bounds = bounds
        self.ceiling = float("inf")
        self.floor = float("-inf")
        self.unread = False
        self.updates = 0
        self.last: float | None = None
        self.size = 0
        self._equal: dict[float, list[RuleState]] = {}
        self._gt = _Thresholds()
        self._ge = _Thresholds()
        self._lt = _Thresholds()
        self._le = _Thresholds()
        self._other: list[RuleState] = []
        #: How many rules compare with one of the four thresholds.
        self._ordered = 0

    def _thresholds(self, operator: str) -> _Thresholds | None:
        return {">": self._gt, ">=": self._ge, "<": self._lt, "<=": self._le}.get(operator)

    def add(self, state: RuleState) -> None:
        self._put(state)
        self._reach()

    def discard(self, state: RuleState) -> None:
        self._take(state)
        self._reach()

    def _reach(self) -> None:
        """Work out which values are out of every rule's reach."""
        if self._equal or self._other:
            self.ceiling, self.floor = float("-inf"), float("inf")
            return
        above = [*self._gt.numbers[:1], *self._ge.numbers[:1]]
        below = [*self._lt.numbers[-1:], *self._le.numbers[-1:]]
        self.ceiling = min(above, default=float("inf"))
        self.floor = max(below, default=float("-inf"))

    def _put(self, state: RuleState) -> None:
        self.size += 1
        if state.watch is None:
            state.watch = self
            state.first_update = self.updates
        condition = state.rule.condition
        comparison = condition.comparison if condition else None
        if comparison is None or state.rule.trigger.match is not None:
            insort(self._other, state, key=_order)
            return
        operator, number = comparison
        thresholds = self._thresholds(operator)
        if thresholds is not None:
            thresholds.add(number, state)
            self._ordered += 1
        elif operator == "==":
            self._equal.setdefault(number, []).append(state)
        else:
            insort(self._other, state, key=_order)

    def _take(self, state: RuleState) -> None:
        self.size -= 1
        if state in self._other:
            self._other.remove(state)
            return
        condition = state.rule.condition
        assert condition is not None
        assert condition.comparison is not None
        operator, number = condition.comparison
        thresholds = self._thresholds(operator)
        if thresholds is not None:
            thresholds.discard(state)
            self._ordered -= 1
            return
        states = self._equal[number]
        states.remove(state)
        if not states:
            del self._equal[number]

    def match(self, value: float, found: list[RuleState]) -> None:
        """Add the rules that ``value`` satisfies, or may satisfy, to ``found``."""
        if self._equal and value in self._equal:
            found += self._equal[value]
        if self._ordered:
            self._match_ordered(value, found)
        if self._other:
            found += self._other

    def _match_ordered(self, value: float, found: list[RuleState]) -> None:
        numbers = self._gt.numbers
        if numbers and numbers[0] < value:
            found += self._gt.states[: bisect_left(numbers, value)]
        numbers = self._ge.numbers
        if numbers and numbers[0] <= value:
            found += self._ge.states[: bisect_right(numbers, value)]
        numbers = self._lt.numbers
        if numbers and numbers[-1] > value:
            found += self._lt.states[bisect_right(numbers, value) :]
        numbers = self._le.numbers
        if numbers and numbers[-1] >= value:
            found += self._le.states[bisect_left(numbers, value) :]


class Occasions:
    """The rules that wait for an occasion, by its name and the job's group."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str | None, list[RuleState]]] = {}

    def add(self, state: RuleState) -> None:
        for name in state.rule.trigger.wakes:
            by_group = self.by_name.setdefault(name, {})
            insort(by_group.setdefault(state.rule.trigger.group, []), state, key=_order)

    def discard(self, state: RuleState) -> None:
        for name in state.rule.trigger.wakes:
            by_group = self.by_name[name]
            group = state.rule.trigger.group
            by_group[group].remove(state)
            if not by_group[group]:
                del by_group[group]
            if not by_group:
                del self.by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def find(self, name: str, group: str | None, found: list[RuleState]) -> None:
        """Add the rules that wait for this occasion to ``found``."""
        by_group = self.by_name.get(name)
        if by_group:
            if None in by_group:
                found += by_group[None]
            if group is not None and group in by_group:
                found += by_group[group]


class RuleIndex:
    """All live rules, by what can wake them.

    ``touched`` are the watches whose metric was updated since the engine last looked, in order.
    """

    __slots__ = ("_metrics", "counts", "gauges", "occasions", "series", "touched", "watches")

    def __init__(self, metrics: MetricStore) -> None:
        self._metrics = metrics
        self.occasions = Occasions()
        self.watches: dict[str, Watch] = {}
        self.counts: dict[tuple[str, str], Watch] = {}
        self.series: dict[tuple[str, str], list[Watch]] = {}
        self.gauges: dict[str, Watch] = {}
        self.touched: list[Watch] = []

    def watch(self, path: MetricPath) -> Watch:
        """The watch of this metric, made if there is none yet."""
        watch = self.watches.get(path.text)
        if watch is None:
            reader = self._metrics.reader(path)
            watch = Watch(path, reader, self._metrics.bounds(path))
            self.watches[path.text] = watch
            if path.kind == "count":
                self.counts[path.group, path.variable] = watch
            elif path.kind == "series":
                self.series.setdefault((path.group, path.variable), []).append(watch)
            else:
                self.gauges[path.text] = watch
        return watch

    def add(self, state: RuleState, path: MetricPath | None) -> None:
        """Put a live rule in; ``path`` is its metric's, if it waits for one."""
        if path is not None:
            self.watch(path).add(state)
        else:
            self.occasions.add(state)

    def discard(self, state: RuleState) -> None:
        """Take a rule out that is exhausted or switched off."""
        if state.watch is not None:
            state.watch.discard(state)
        else:
            self.occasions.discard(state)
