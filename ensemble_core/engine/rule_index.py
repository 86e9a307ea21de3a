"""Index of rules by their triggers.

Because of the index, the cost of an event does not depend on how many rules exist.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

from ensemble_core.engine.job_states import events_of
from ensemble_core.metrics.series import Series
from ensemble_core.metrics.store import GAUGES, MetricPath, MetricStore
from ensemble_core.model.rules import BoundRule
from ensemble_core.quick_dataclass import dataclass, replace

#: Why a rule is not in the index: permanently switched off (cut), disabled, or exhausted.
InactiveReason = Literal["cut", "disabled", "exhausted"]


@dataclass(slots=True, eq=False)
class RuleInstance:
    """State of a rule for one job or one slice (jobs with equal parameters), with the key ``each``.

    A rule without ``each`` has one instance.
    """

    fired: int = 0  # number of firings
    skip: int = 0  # backoff: the number of matches to skip
    not_before: float = float("-inf")  # backoff: the time at which it ends
    checks_passed: int = 0  # consecutive checks at which the condition was true
    since: float | None = None  # when it became true, if it must be true for some time
    timer: str = ""  # the timer that elapses when this time is over
    #: With ``crosses``: whether the condition was true at the last check. ``None``: no check yet.
    was_true: bool | None = None
    idle_job_count: int = 0  # jobs in the scope at the last event ``idle``
    #: If the instance was cut: the rule's ``version`` at that time. Otherwise -1.
    cut: int = -1
    #: The rule's ``enablings`` when ``since`` and ``was_true`` began.
    enabling: int = 0

    def restart(self, enabling: int) -> None:
        """Forget since when the condition is true: the rule was disabled or changed since then.

        A count of checks goes on: algorithms disable their rules while a request is open.
        """
        self.since, self.was_true, self.enabling = None, None, enabling


@dataclass(slots=True, eq=False)
class AlgorithmInstance:
    """State of an instance of an algorithm (``use:``)."""

    name: str
    on: bool  # whether its rules may fire
    #: Recent switches: the time, and whether the instance was switched on.
    switched: list[tuple[float, bool]] = field(default_factory=list)
    times: int = 0

    def switch(self, on: bool, now: float) -> None:
        """Switch the instance on or off and record the time."""
        self.on = on
        self.times += 1
        self.switched.append((now, on))
        del self.switched[:-_SWITCHED]


#: How many switches of each instance are stored.
_SWITCHED = 50


@dataclass(slots=True, eq=False)
class RuleState:
    """State of a rule. The :class:`RuleInstance` has its firings and its backoff."""

    rule: BoundRule
    order: int  # position among all rules
    enabled: bool = field(init=False)
    #: True if the rule can still fire and is in the index.
    live: bool = False
    #: False if the rule belongs to an instance (``use:``) that is off.
    on: bool = True
    #: The only instance of a rule without ``each``.
    main: RuleInstance = field(default_factory=RuleInstance)
    fired: int = 0  # number of firings of all instances
    #: The timers of all instances.
    timers: dict[str, None] = field(default_factory=dict)
    #: Number of matches. For a rule on a metric, ``watch`` counts them instead.
    triggered: int = 0
    refused: int = 0  # how often the trigger's ``match`` rejected an event
    #: Number of matches of instances that were exhausted.
    passed_over: int = 0
    #: How often each verdict kept the rule from firing. A false condition is not counted, because
    #: the index skips most rules whose condition is false.
    held_back: dict[str, int] = field(default_factory=dict)
    #: At how many checks in a row, or for how many seconds, the condition was true at most, without
    #: a firing.
    longest: float = 0
    #: The values in the condition when it was last false.
    seen: Mapping[str, Any] | None = None
    cut: bool = False
    #: Why the rule was cut, as text for the user.
    why_cut: str = ""
    watch: Watch | None = None
    first_update: int = 0
    #: ``key`` identifies the instances of the rule, even if the rule's id changes. ``version``
    #: counts how often the rule was changed, ``enablings`` also how often it was enabled again.
    key: int = -1
    version: int = 0
    enablings: int = 0
    #: The ``SliceKey`` of the rule's instances, if each of them is for a slice.
    slices: tuple[tuple[str, ...], tuple[str, ...]] | None = field(init=False)
    #: Names in the condition. ``scoped`` has names of the form ``STAT.NAME``, each with its two
    #: parts; ``tabled`` has names that refer to tables; ``plain`` has all others. ``name_count``
    #: is the total number of these names, or -1 if the condition uses metrics.
    scoped: tuple[tuple[str, str, str], ...] = field(init=False)
    tabled: tuple[str, ...] = field(init=False)
    plain: tuple[str, ...] = field(init=False)
    name_count: int = field(init=False)

    def __post_init__(self) -> None:
        rule = self.rule
        self.enabled = rule.enabled
        self.slices = (rule.groups, rule.each) if isinstance(rule.each, tuple) else None
        condition = rule.condition
        names = () if condition is None else condition.sorted_names
        self.name_count = -1 if condition is None or condition.metrics else len(names)
        read = rule.reads.difference(rule.of_tables, rule.of_gauges, GAUGES)
        read = frozenset(name for name in read if not name.startswith("all."))
        self.tabled = tuple(name for name in names if name in rule.of_tables)
        self.plain = tuple(name for name in names if name not in read | rule.of_tables)
        parts = (name.partition(".") for name in names if name in read)
        self.scoped = tuple((a + dot + b, a, b) for a, dot, b in parts)

    def carry(self, earlier: RuleState) -> None:
        """Take over the state of the same rule in an earlier version of the file."""
        self.fired, self.main = earlier.fired, earlier.main
        if self.rule.spec != earlier.rule.spec:
            self.main = replace(earlier.main, timer="")
            self.main.restart(earlier.enablings + 1)
        self.key, self.version, self.enablings = earlier.key, earlier.version, earlier.enablings
        if self.rule.groups != earlier.rule.groups:
            self.main.idle_job_count = 0
        if self.rule.spec != earlier.rule.spec:
            self.version += 1
            self.enablings += 1
        else:
            self.enabled, self.timers = earlier.enabled, earlier.timers
            self.cut, self.why_cut = earlier.cut, earlier.why_cut
            self.triggered = earlier.times_triggered
            self.refused = earlier.refused
            self.passed_over = earlier.passed_over
            self.held_back, self.longest = earlier.held_back, earlier.longest
            self.seen = earlier.seen

    @property
    def may_fire(self) -> bool:
        """True if the rule, or an instance of it, can still fire."""
        if not self.enabled or not self.on or self.cut:
            return False
        return self.rule.each is not None or self.fired < self.rule.repetitions

    @property
    def inactive_reason(self) -> InactiveReason:
        """The reason why the rule is not in the index."""
        if self.cut:
            return "cut"
        return "exhausted" if self.enabled and self.on else "disabled"

    @property
    def value(self) -> float | None:
        """The value of the rule's metric when it was last read."""
        return None if self.watch is None else self.watch.last

    @property
    def last_seen(self) -> str:
        """The values in ``seen`` as text."""
        seen, condition = self.seen or {}, self.rule.condition
        order = (
            (*condition.sorted_names, *sorted(condition.metrics)) if condition is not None else ()
        )
        return ", ".join(
            f"{name} without a value" if seen[name] is None else f"{name}={seen[name]}"
            for name in order
            if name in seen
        )

    @property
    def times_triggered(self) -> int:
        """Number of times that the rule was considered."""
        watch = self.watch
        return (
            self.triggered if watch is None else max(watch.updates - self.first_update, self.fired)
        )


_order = attrgetter("order")


def in_order(states: list[RuleState]) -> list[RuleState]:
    """Return the states in the order of their rules, without duplicates."""
    if len(states) < 2:
        return states
    return sorted(dict.fromkeys(states), key=_order)


@dataclass(slots=True, eq=False)
class _Thresholds:
    """States of rules, sorted by the number in their comparison, then by ``tie``."""

    numbers: list[tuple[float, int]] = field(default_factory=list)
    states: list[RuleState] = field(default_factory=list)

    def add(self, number: float, tie: int, state: RuleState) -> None:
        at = bisect_right(self.numbers, (number, tie))
        self.numbers.insert(at, (number, tie))
        self.states.insert(at, state)

    def discard(self, state: RuleState) -> None:
        at = self.states.index(state)
        del self.numbers[at], self.states[at]

    def until(self, value: float) -> int:
        """Return how many states have a number below ``value``, or equal to ``value`` with tie
        0.
        """
        return bisect_right(self.numbers, (value, 0))


#: The comparison that is true if the given one is false.
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
#: Order of comparisons with the same number. A value satisfies the states before its position in
#: ``_above``, so ``>=`` comes before ``>`` there. It satisfies the states after its position in
#: ``_below``, so ``<`` comes before ``<=`` there.
_TIES = {">=": 0, ">": 1, "<": 0, "<=": 1}


@dataclass(slots=True, eq=False)
class Watch:
    """The rules that wait for one metric."""

    path: MetricPath
    read: Callable[[float], float | None]
    #: The metric lies between the minimum and the maximum of this series.
    bounds: Series | None = None
    #: A value above ``floor`` and below ``ceiling`` satisfies no rule.
    ceiling: float = float("inf")
    floor: float = float("-inf")
    #: Whether the last updates did not read the metric, because ``bounds`` satisfies no rule.
    unread: bool = False
    updates: int = 0
    last: float | None = None  # the value that was read last
    size: int = 0
    _above: _Thresholds = field(default_factory=_Thresholds)
    _below: _Thresholds = field(default_factory=_Thresholds)
    _equal: dict[float, list[RuleState]] = field(default_factory=dict)
    #: The smallest number that a rule compares with ``==``.
    _least: float = float("inf")
    #: Rules whose condition is not a single comparison.
    _other: list[RuleState] = field(default_factory=list)
    #: Rules whose condition is true and that only have to be considered when it becomes false.
    held: dict[RuleState, None] = field(default_factory=dict)
    _held_above: _Thresholds = field(default_factory=_Thresholds)
    _held_below: _Thresholds = field(default_factory=_Thresholds)

    def add(self, state: RuleState) -> None:
        self.size += 1
        if state.watch is None:
            state.watch = self
            state.first_update = self.updates
        self._put(state)

    def discard(self, state: RuleState) -> None:
        self.size -= 1
        if state in self.held:
            self._drop_held(state)
        else:
            self._unregister(state)
        self._reach()

    def settle(self, state: RuleState, is_true: bool) -> None:
        """Note whether the condition of a rule with ``crosses`` is true."""
        if state.main.was_true is None:
            self._unregister(state)
            state.main.was_true = is_true
            self._put(state)
        state.main.was_true = is_true
        if is_true:
            self.hold(state)
        else:
            self.release(state)

    def hold(self, state: RuleState) -> None:
        """Consider a rule only when its condition becomes false."""
        operator, number = comparison(state)
        if state in self.held or operator not in _TIES:
            return
        self._unregister(state)
        self.held[state] = None
        opposite = _OPPOSITE[operator]
        self._held(opposite).add(number, _TIES[opposite], state)
        self._reach()

    def release(self, state: RuleState) -> None:
        """Consider a rule again whenever its condition is true."""
        if state in self.held:
            self._drop_held(state)
            self._put(state)

    @property
    def falls(self) -> bool:
        """True if a rule may become true because the metric gets smaller."""
        states = chain(self._below.states, *self._equal.values(), self._other)
        return any(comparison_of(each.rule)[0] not in (">", ">=") for each in states)

    def _drop_held(self, state: RuleState) -> None:
        del self.held[state]
        self._held(_OPPOSITE[comparison(state)[0]]).discard(state)

    def _held(self, operator: str) -> _Thresholds:
        return self._held_above if operator[0] == ">" else self._held_below

    def _put(self, state: RuleState) -> None:
        operator, number = comparison(state)
        if operator == "==":
            self._equal.setdefault(number, []).append(state)
            self._least = min(number, self._least)
        elif operator in _TIES:
            self._thresholds(operator).add(number, _TIES[operator], state)
        else:
            insort(self._other, state, key=_order)
        self._reach()

    def _unregister(self, state: RuleState) -> None:
        operator, number = comparison(state)
        if operator == "==":
            self._equal[number].remove(state)
            if not self._equal[number]:
                del self._equal[number]
        elif operator in _TIES:
            self._thresholds(operator).discard(state)
        else:
            self._other.remove(state)

    def _thresholds(self, operator: str) -> _Thresholds:
        return self._above if operator[0] == ">" else self._below

    def _reach(self) -> None:
        """Compute the range of values that satisfy no rule."""
        if self._other or self.held:
            self.ceiling, self.floor = float("-inf"), float("inf")
            return
        above, below = self._above.numbers, self._below.numbers
        self.ceiling = min(above[0][0], self._least) if above else self._least
        self.floor = below[-1][0] if below else float("-inf")

    def matched(self, value: float | None, only: Collection[RuleState] | None) -> list[RuleState]:
        """Return the rules that ``value`` satisfies, or may satisfy, and those that it interrupts.

        ``only``: the rules that are considered, and the held ones of them in any case.
        """
        found = self._no_longer(value)
        if value is None:
            pass
        elif value != value:  # nan satisfies no comparison with a number
            found += self._other
        else:
            if self._equal and value in self._equal:
                found += self._equal[value]
            if self._above.states:
                found += self._above.states[: self._above.until(value)]
            if self._below.states:
                found += self._below.states[self._below.until(value) :]
            found += self._other
        if only is not None:
            found = [each for each in only if each in found or each in self.held]
        return found

    def _no_longer(self, value: float | None) -> list[RuleState]:
        """Return the held rules that ``value`` does not satisfy, and all others whose count or time
        a missing value interrupts.
        """
        if value is None:
            counting = [
                each
                for each in self._other
                if each.main.checks_passed or each.main.since is not None
            ]
            return [*self.held, *counting]
        if value != value:
            return list(self.held)
        above, below = self._held_above, self._held_below
        return above.states[: above.until(value)] + below.states[below.until(value) :]


def comparison_of(rule: BoundRule) -> tuple[str, float]:
    """Return the operator and the number of a rule's condition, if it is a single comparison."""
    return (rule.condition and rule.condition.comparison) or ("", 0.0)


def comparison(state: RuleState) -> tuple[str, float]:
    """Return the operator and the number by which a rule is indexed.

    The operator is empty if the rule's condition is not a single comparison.
    """
    rule, condition = state.rule, state.rule.condition
    if condition is None or condition.comparison is None:
        return "", 0.0
    if rule.trigger.match is not None or rule.checks > 1:
        return "", 0.0
    if (rule.crosses or rule.lasts) and (
        condition.comparison[0] == "=="
        # The first check matters, even if the condition is false.
        or (rule.crosses and state.main.was_true is None)
    ):
        return "", 0.0
    return condition.comparison


def _is_broad_idle(rule: BoundRule) -> bool:
    return rule.each is None and "idle" in rule.trigger.events


@dataclass(slots=True, eq=False)
class RuleIndex:
    """Index of all rules that can fire now, by their triggers."""

    _metrics: MetricStore
    #: Rules by the name of the trigger event and by group.
    by_event: dict[str, dict[str | None, list[RuleState]]] = field(default_factory=dict)
    #: Job events that can cause a trigger event in ``by_event``.
    job_events: set[str] = field(default_factory=set)
    watches: dict[str, Watch] = field(default_factory=dict)
    counts: dict[str, dict[str, Watch]] = field(default_factory=dict)
    series: dict[tuple[str, str], dict[Watch, None]] = field(default_factory=dict)
    gauges: dict[str, Watch] = field(default_factory=dict)
    #: ``broad_idle``: the number of rules on ``idle`` for a group or the whole run. ``new_idle``:
    #: whether one of them was added since the last check.
    broad_idle: int = 0
    new_idle: bool = False
    #: Watches whose rules have to be considered, in order. ``None``: all of them, because the
    #: metric was updated. Otherwise only these rules, which were added, enabled or changed.
    touched: dict[Watch, dict[RuleState, None] | None] = field(default_factory=dict)
    #: Cache of ``waiting``, cleared when rules change.
    _found: dict[tuple[tuple[str, ...], str | None], list[RuleState]] = field(default_factory=dict)

    def watch(self, path: MetricPath) -> Watch:
        """Return the watch of this metric. Create it if necessary."""
        watch = self.watches.get(path.text)
        if watch is None:
            reader = self._metrics.reader(path)
            watch = Watch(path, reader, self._metrics.bounds(path))
            self.watches[path.text] = watch
            if path.kind == "count":
                self.counts.setdefault(path.group, {})[path.variable] = watch
            elif path.kind == "series":
                self.series.setdefault((path.group, path.variable), {})[watch] = None
            else:
                self.gauges[path.text] = watch
        return watch

    def touch(self, state: RuleState) -> None:
        """Have only this rule considered, because its metric may already satisfy it."""
        watch = state.watch
        if watch is not None and (only := self.touched.setdefault(watch, {})) is not None:
            only[state] = None

    def add(self, state: RuleState, path: MetricPath | None) -> None:
        """Add a live rule. ``path`` is the path of its metric, if any."""
        if path is not None:
            self.watch(path).add(state)
            return
        trigger = state.rule.trigger
        self._found = {}
        if _is_broad_idle(state.rule):
            self.broad_idle += 1
            self.new_idle = True
        for name in trigger.events:
            if name not in self.by_event:
                self.by_event[name] = {}
                self.job_events.update(events_of(name))
            by_group = self.by_event[name]
            insort(by_group.setdefault(trigger.group, []), state, key=_order)

    def discard(self, state: RuleState) -> None:
        """Remove a rule that is exhausted or disabled."""
        if state.watch is not None:
            state.watch.discard(state)
            return
        trigger = state.rule.trigger
        self._found = {}
        self.broad_idle -= _is_broad_idle(state.rule)
        for name in trigger.events:
            by_group = self.by_event[name]
            by_group[trigger.group].remove(state)
            if not by_group[trigger.group]:
                del by_group[trigger.group]
            if not by_group:
                del self.by_event[name]
                self.job_events = {event for each in self.by_event for event in events_of(each)}

    def waiting(self, names: tuple[str, ...], group: str | None) -> Sequence[RuleState]:
        """Return the rules on these trigger events for this group, in order.

        The returned list never changes.
        """
        found = self._found.get((names, group))
        if found is None:
            found = []
            for name in names:
                by_group = self.by_event.get(name, {})
                found += by_group.get(None, ())
                if group is not None:
                    found += by_group.get(group, ())
            found = self._found[names, group] = in_order(found)
        return found
