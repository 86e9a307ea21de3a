"""Rules of a run, which can be added, enabled and disabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.engine.for_duration import TrueConditions
from ensemble_core.engine.rule_index import AlgorithmInstance, RuleIndex, RuleInstance, RuleState
from ensemble_core.engine.timers import Timers
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.recent_counts import WITHIN, RecentCount
from ensemble_core.metrics.store import (
    FIRINGS,
    MetricPath,
    MetricStore,
    parse_path,
    split_filter,
)
from ensemble_core.model.durations import seconds
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.rules import BoundRule

#: Default reason for cutting a rule.
_CHAIN = "its firings were part of an endless chain"


class RuleSet:
    """All rules of a run."""

    def __init__(self, ensemble: Ensemble, metrics: MetricStore, timers: Timers) -> None:
        self.index = RuleIndex(metrics)
        self.true_conditions = TrueConditions(timers)
        #: By id, in the order of the rules.
        self.states: dict[str, RuleState] = {}
        self._ensemble = ensemble
        self._metrics = metrics
        self._paths: dict[str, MetricPath | None] = {}
        #: Rules that wait for failures in a job group: until then, these failures count as handled.
        self._failure_rules: list[RuleState] = []
        self._keys = 0
        #: True if a rule has ``scope: queue``, so that foreign jobs matter.
        self.watches_foreign = False
        #: The instances of algorithms, by name.
        self.instances = {
            name: AlgorithmInstance(name, each.enabled) for name, each in ensemble.instances.items()
        }
        for rule in ensemble.rules:
            self._add(RuleState(rule, len(self.states)))

    # -- updates -------------------------------------------------------------------------------

    def _add(self, state: RuleState) -> None:
        rule = state.rule
        if rule.id in self.states:
            raise EnsembleError(
                f"the rule {rule.id!r} already exists",
                hint="give the new rule another id, or leave the id out",
                code="duplicate-rule",
            )
        for path in rule.metrics:
            parsed = self.path(path)
            if parsed is not None:
                self._metrics.keep(parsed)
        if rule.trigger.metric is not None and self.path(rule.trigger.metric) is None:
            raise EnsembleError(
                f"rule {rule.id} waits for the unknown metric {rule.trigger.metric!r}",
                code="no-such-metric",
            )
        if rule.instance in self.instances:
            state.on = self.instances[rule.instance].on
        if state.key < 0:
            state.key, self._keys = self._keys, self._keys + 1
        self.states[rule.id] = state
        self.watches_foreign = self.watches_foreign or rule.queue_scope
        if rule.concerns_failure:
            self._failure_rules.append(state)
        if state.may_fire:
            self._enter(state)

    def _enter(self, state: RuleState) -> None:
        state.live = True
        metric = state.rule.trigger.metric
        if state.rule.trigger.every is None:
            self.index.add(state, None if metric is None else self.path(metric))
        if state.main.was_true and state.watch is not None:
            state.watch.hold(state)

    def _remove(self, state: RuleState) -> None:
        state.live = False
        if state.rule.lasts:
            self.true_conditions.drop(state)
        if state.rule.trigger.every is None:
            self.index.discard(state)

    def join(self, spec: Mapping[str, Any]) -> RuleState:
        """Add a rule during the run. Raises :class:`EnsembleError` if it is invalid."""
        rule = self._ensemble.binder.rule(spec, self._free_id())
        if "start" in rule.trigger.events:
            raise EnsembleError(
                f"rule {rule.id!r} has the trigger 'start', but the run has already started",
                hint="return the action itself instead of a rule",
                code="start-is-over",
            )
        state = RuleState(rule, len(self.states))
        self._add(state)
        return state

    def _free_id(self) -> str:
        """Return an unused id for a rule without one."""
        number = len(self.states) + 1
        while f"rule-{number}" in self.states:
            number += 1
        return f"rule-{number}"

    def reconfigure(self, ensemble: Ensemble) -> tuple[dict[int, RuleState], list[str]]:
        """Continue with a changed file.

        Return the new states of the rules that are kept, by their old ids, and the rules that are
        dropped. A rule of the file is kept if the new file has a rule with the same ``id`` or, if
        it has no id, with the same content. A rule that was added during the run is kept unless it
        conflicts with the new file.
        """
        earlier, own = self.states, {rule.id for rule in self._ensemble.rules}
        named = {name: state for name, state in earlier.items() if "id" in state.rule.spec}
        unnamed = [state for name, state in earlier.items() if name not in named and name in own]
        self._ensemble = ensemble
        self.index = RuleIndex(self._metrics)
        self.states, self._paths, self._failure_rules = {}, {}, []
        self.watches_foreign = False
        before_now = self.instances
        self.instances = {
            name: before_now.get(name) or AlgorithmInstance(name, each.enabled)
            for name, each in ensemble.instances.items()
        }
        continued: dict[int, RuleState] = {}
        dropped: list[str] = []

        def add_state(state: RuleState, before: RuleState | None) -> None:
            if before is not None:
                state.carry(before)
                continued[id(before)] = state
            self._add(state)
            if before is not None and state.watch is not None:
                state.first_update = state.watch.updates - before.times_triggered

        for rule in ensemble.rules:
            if "id" in rule.spec:
                before = named.get(rule.id)
            else:
                same = (state for state in unnamed if state.rule.spec == rule.spec)
                before = next(same, None)
                if before is not None:
                    unnamed.remove(before)
            add_state(RuleState(rule, len(self.states)), before)
        for name, state in earlier.items():
            if name in own or id(state) in continued:
                continue
            if name in self.states:  # a rule of the new file has the same id
                name = self._free_id()
            try:
                rule = ensemble.binder.rule(state.rule.spec, name)
                add_state(RuleState(rule, len(self.states)), state)
            except EnsembleError:
                dropped.append(state.rule.id)  # the new file lacks a name that the rule uses
        self.true_conditions.reconfigure(continued)
        for name in earlier.keys() - self.states.keys():
            self._metrics.gauges.pop(FIRINGS + name, None)
        return continued, dropped

    def switch(self, name: str, enabled: bool, now: float) -> list[RuleState]:
        """Switch a rule or an instance on or off. Return the rules that have become live.

        Rules of an instance that is off do not become live.
        """
        if name in self.instances:
            return self._switch_instance(self.instances[name], enabled, now)
        state = self.states.get(name)
        if state is None:
            raise EnsembleError(f"there is no rule {name!r}", code="no-such-rule")
        state.enabled = enabled
        return self._reindex(state)

    def _switch_instance(
        self, instance: AlgorithmInstance, on: bool, now: float
    ) -> list[RuleState]:
        if instance.on == on:
            return []
        instance.switch(on, now)
        found: list[RuleState] = []
        for state in self.members(instance.name):
            state.on = on
            found += self._reindex(state)
        return found

    def _reindex(self, state: RuleState) -> list[RuleState]:
        """Add a rule to the index if it can fire, or remove it.

        Return it in a list if it was added.
        """
        if state.live and not state.may_fire:
            self._remove(state)
        elif state.may_fire and not state.live:
            state.enablings += 1
            state.main.restart(state.enablings)
            self._enter(state)
            return [state]
        return []

    def members(self, instance: str) -> list[RuleState]:
        """Return the rules of an instance, in order."""
        return [state for state in self.states.values() if state.rule.instance == instance]

    def reset(self, state: RuleState) -> None:
        """Reset the firing counters of a rule that is not in the index. A cut rule stays cut."""
        one = state.main
        state.fired = one.fired = one.skip = one.checks_passed = 0
        one.was_true = None
        one.not_before = float("-inf")
        state.key, self._keys = self._keys, self._keys + 1

    def fired(self, state: RuleState, one: RuleInstance, now: float) -> None:
        """Count a firing of a rule and of its instance ``one``. Start the backoff."""
        rule = state.rule
        state.fired += 1
        one.fired += 1
        if self.index.gauges:
            watch = self.index.gauges.get(FIRINGS + rule.id)
            if watch is not None:
                self.refresh(watch.path.text)
                self.index.touched[watch] = None
        one.skip = rule.backoff
        if rule.backoff_seconds:
            one.not_before = now + rule.backoff_seconds
        if state.live and not state.may_fire:
            self._remove(state)

    def cut(self, state: RuleState, why: str = _CHAIN) -> None:
        """Permanently switch off a rule."""
        if state.live:
            self._remove(state)
        state.cut, state.why_cut = True, why

    # -- queries -------------------------------------------------------------------------------

    def path(self, text: str) -> MetricPath | None:
        """Return a parsed metric path, or ``None`` if the metric does not exist."""
        if text not in self._paths:
            try:
                self._paths[text] = path = parse_path(
                    text, self._ensemble.groups, self._ensemble.statistics
                )
                if path.recent:
                    self._count_recent(path)
            except EnsembleError:
                self._paths[text] = None
        return self._paths[text]

    def _count_recent(self, path: MetricPath) -> None:
        """Count within a time from now on."""
        counter, condition = split_filter(path.variable)
        kept = self._metrics.recent.setdefault(path.group, {})
        if path.variable not in kept:
            time = seconds(condition.removeprefix(WITHIN))
            kept[path.variable] = RecentCount(counter, time)
        self.index.watch(path)

    def await_drops(self, now: float) -> None:
        """Start the timers of counts within a time that may trigger a rule when they drop."""
        for group, kept in self._metrics.recent.items():
            for variable, recent in kept.items():
                text = f"count.{group}.{variable}"
                watch = self.index.watches.get(text)
                if watch is not None and (watch.falls or watch.held):
                    due = recent.next_drop(now)
                    if due is not None:
                        self.true_conditions.timers.once(due, "within", text)

    def idle(self) -> list[RuleState]:
        """Return the live rules on ``idle``, narrowest scope first, then in file order."""
        found = [each for some in self.index.by_event.get("idle", {}).values() for each in some]
        return sorted(found, key=lambda state: (_breadth(state.rule), state.order))

    def refresh(self, gauge: str) -> None:
        """Update the gauge ``count.rule.RULE`` in the metric store: how often the rule has
        fired.
        """
        state = self.states.get(gauge.removeprefix(FIRINGS))
        if state is not None:
            self._metrics.gauges[gauge] = state.fired

    def fill(self) -> None:
        """Update the gauges ``count.rule.RULE`` of all rules in the metric store."""
        for rule in self.states:
            self.refresh(FIRINGS + rule)

    def intervals(self) -> Iterator[RuleState]:
        """Yield the live rules that have a fixed interval."""
        for state in self.states.values():
            if state.rule.trigger.every is not None and state.live:
                yield state

    def touch_time_dependent(self) -> None:
        """At a heartbeat, mark all time-dependent metrics for which rules wait as updated."""
        for watch in self.index.watches.values():
            if watch.size and self._metrics.moves_with_time(watch.path):
                self.index.touched[watch] = None

    def awaits_failures(self, group: str, outcome: str) -> bool:
        """Return True if a live rule waits for a number of failures with this outcome in the group.

        Until this number is reached, these failures count as handled.
        """
        return any(
            state.live
            and state.watch is not None
            and state.rule.failure_group in (None, group)
            and outcome in state.rule.failures
            for state in self._failure_rules
        )

    def waits(self, name: str) -> bool:
        """Return True if a live rule waits for this trigger event."""
        return name in self.index.by_event

    def waits_for_resize(self) -> bool:
        """Return True if the outcome of a resize, or the new nodes, can trigger a live rule."""
        return any(
            self.waits(f"resize-{outcome}") for outcome in ("granted", "denied", "timeout")
        ) or any(watch.size for watch in self.index.gauges.values())

    def waits_for_time(self, now: float, *, shared: bool) -> bool:
        """Return True if a live rule can still fire although no job is active.

        With ``shared``, other users share the queue, so its gauges can change.
        """
        if any(True for _ in self.intervals()):
            return True
        if self._metrics.recent:
            watches = self.index.watches.values()
            if any(each.path.recent and each.falls and each.read(now) for each in watches):
                return True
        if not self._ensemble.heartbeat:
            return False
        if self.waits("heartbeat"):
            return True
        for watch in self.index.watches.values():
            if not watch.size:
                continue
            path = watch.path
            if self._metrics.is_timed(path) and self._metrics.get(path, now) is not None:
                return True
            if not path.group and shared:
                return True
        return False


def _breadth(rule: BoundRule) -> int:
    """Return the sort key for the scope of a rule on ``idle``: slice, one group, several groups,
    all.
    """
    if rule.each is not None:
        return 0
    return min(len(rule.groups), 2) or 3
