"""Finds the rules that an event triggers, checks their conditions, and fires them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from ensemble_core.engine import chain_limit
from ensemble_core.engine.action_decisions import EngineFiring
from ensemble_core.engine.decision_effects import Effects
from ensemble_core.engine.firing_records import Match, Origin
from ensemble_core.engine.instance_switch import switch_instances
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.rule_index import InactiveReason, RuleInstance, RuleState, Watch, in_order
from ensemble_core.engine.scopes import Slice
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError, kind_of, raised_at, written_at
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.decisions import AddRule, Decision, Fired, Log, Notify, Switch
from ensemble_core.model.events import Event, TimerElapsed
from ensemble_core.model.rules import BoundAction

#: The result of considering a rule. ``fired``: the rule fired. ``condition``: the condition was
#: false. ``no value``: a value in the condition is missing. ``trigger``: the trigger's ``match``
#: rejected the event. ``backoff``: the backoff is not over. ``checks``: the condition has not been
#: true for enough consecutive checks. ``crossed``: it has been true since an earlier check, and the
#: rule only fires when it becomes true. ``retried``: a retry of the job has been decided already.
#: Other values say why the rule can no longer fire.
VerdictKind = Literal[
    "fired",
    "condition",
    "no value",
    "trigger",
    "backoff",
    "checks",
    "crossed",
    "retried",
    InactiveReason,
]

_DONE = object()


class RuleObserver(Protocol):
    """Interface of an object that is notified when rules are considered and fire.

    Its methods must not change the run.
    """

    def occurred(self, names: Sequence[str], group: str | None, *, foreign: bool) -> None:
        """Note the names of trigger events, even if no rule waits for them.

        ``foreign``: of a foreign job.
        """

    def updated(self, watch: Watch, only: Container[RuleState] | None) -> None:
        """Note that a metric was updated, or that ``only`` these rules on it are considered.

        A call of ``considered`` follows for each rule that the metric's value satisfies.
        """

    def considered(
        self,
        state: RuleState,
        match: Match,
        verdict: VerdictKind,
        known: Mapping[str, Any] | None,
    ) -> None:
        """Note that a rule was considered. ``known`` has the values in its condition.

        This is called before the rule's actions. If the rule has ``each``, the match has the
        scope of the instance.
        """

    def handled(self, event: Event) -> None:
        """Note that an event has been handled completely."""

    def reconfigured(self) -> None:
        """Note that the file of the run was changed, between two events."""


class RuleEvaluation:
    """Evaluates the rules of a run."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.effects = Effects(state)
        self.observer: RuleObserver | None = None
        #: Stack of firings whose actions are being performed.
        self._performing: list[Iterator[None]] = []
        #: True while the rules on ``end`` are considered.
        self._closing = False

    # -- triggered rules -----------------------------------------------------------------------

    def react(
        self,
        names: tuple[str, ...],
        group: str | None,
        event: Event,
        record: JobRecord | None = None,
        fields: Mapping[str, Any] = NOTHING,
        *,
        foreign: bool = False,
    ) -> None:
        """Consider the rules on metrics that the event updated, and the rules on these trigger
        events.
        """
        if names and self.observer is not None:
            self.observer.occurred(names, group, foreign=foreign)
        index = self.state.rules.index
        if index.touched:
            satisfied = self.satisfied()
            if satisfied:
                match = Match(event, record, fields)
                for rule_state in satisfied:
                    self.consider(rule_state, match)
        if index.by_event and not index.by_event.keys().isdisjoint(names):
            match = Match(event, record, fields)
            self.event_rules(names, group, match, foreign=foreign)

    def close(self, event: Event, fields: Mapping[str, Any]) -> None:
        """Consider the rules on ``end``, the only rules that can fire after the end."""
        self._closing = True
        try:
            self.react(("end",), None, event, None, fields)
        finally:
            self._closing = False
            self.state.rules.index.touched.clear()

    def consider_updated(self, event: Event) -> None:
        """Consider the rules whose metrics were updated since the last call."""
        for rule_state in self.satisfied():
            self.consider(rule_state, Match(event))

    def report_trigger_events(self, names: Sequence[str], group: str | None) -> None:
        """Report the names of these trigger events to the observer."""
        if self.observer is not None:
            self.observer.occurred(names, group, foreign=False)

    def satisfied(self) -> list[RuleState]:
        """Return the rules that updated metrics satisfy, or may satisfy, in order."""
        found: list[RuleState] = []
        state = self.state
        index, in_heartbeat = state.rules.index, state.in_heartbeat
        touched, index.touched = index.touched, {}
        if self.observer is not None:
            for watch, only in touched.items():
                self.observer.updated(watch, only)
        for watch, only in touched.items():
            if only is None:
                watch.updates += 1
            else:
                for rule_state in only:
                    rule_state.first_update -= 1  # one look of this rule alone
            if in_heartbeat:
                value = state.read(watch.path)
            else:
                bounds = watch.bounds
                if bounds is not None and bounds.high < watch.ceiling and bounds.low > watch.floor:
                    watch.unread = True
                    continue
                value = watch.read(state.now)
            watch.unread = False
            watch.last = value
            if value is None or not watch.floor < value < watch.ceiling:
                found += watch.matched(value, only)
        return in_order(found)

    def event_rules(
        self,
        names: tuple[str, ...],
        group: str | None,
        match: Match,
        *,
        foreign: bool = False,
    ) -> None:
        """Consider the rules on trigger events with these names."""
        for rule_state in self.state.rules.index.waiting(names, group):
            if not foreign or rule_state.rule.queue_scope:
                self.consider(rule_state, match)

    def consider_at_time(self, event: TimerElapsed) -> None:
        """Consider the rules on a count within a time that has become smaller, or on a condition
        that has been true for the time that its rule needs.
        """
        index = self.state.rules.index
        if event.timer == "within":
            if event.key in index.watches:
                index.touched[index.watches[event.key]] = None
            self.react((), None, event)
            return
        found = self.state.rules.true_conditions.elapsed(event.key)
        if found is None:
            return
        if found.state.watch is not None:
            index.touch(found.state)
            self.react((), None, event)
        else:
            record = found.match.record
            if record is not None:
                self.state.link = record.link
            self.consider(found.state, found.match)

    def interrupt(self, record: JobRecord) -> None:
        """Note that an attempt is over, so no condition of an instance for this job is true now."""
        for key, one in ((record.index_record and record.index_record.instances) or {}).items():
            found = self.state.rules.true_conditions.elapsed(one.timer)
            if found is not None and found.state.key == key:
                self.state.rules.true_conditions.interrupt(found.state, one, self.state.now)

    def silent(self, record: JobRecord, seconds: float, event: Event) -> None:
        """Consider the rules on ``silent`` for a job that had no row for this number of seconds."""
        group = record.job.group
        self.state.link = record.link
        self.report_trigger_events(("silent",), group)
        for rule_state in self.state.rules.index.waiting(("silent",), group):
            if rule_state.rule.trigger.after == seconds:
                self.consider(rule_state, Match(event, record))

    # -- one rule ------------------------------------------------------------------------------

    def consider(self, rule_state: RuleState, match: Match) -> None:
        """Fire the rule if its condition and its backoff allow it and the run has not ended."""
        state, rule = self.state, rule_state.rule
        if state.ended is not None and not self._closing:
            return
        rule_state.triggered += 1
        if not rule_state.live:
            # An earlier rule has switched this rule off at the same event.
            self._report(rule_state, match, rule_state.inactive_reason, None)
            return
        one = rule_state.main
        scope = match.scope
        if rule.each is not None:
            record = match.record
            if scope is None and record is not None:
                if rule_state.slices is None:
                    scope = record.index
                elif record.index_record is not None:
                    for each in record.index_record.slices:
                        if each.key == rule_state.slices:
                            scope = each
            if scope is None:  # the job lacks a parameter that is listed under ``each``
                return
            if self.observer is not None:
                match = match._replace(scope=scope)
            instances = scope.instances
            found = None if instances is None else instances.get(rule_state.key)
            one = scope.instance(rule_state.key) if found is None else found
            if one.fired >= rule.repetitions or one.cut == rule_state.version:
                cut = one.cut == rule_state.version
                rule_state.passed_over += not cut
                self._report(rule_state, match, "cut" if cut else "exhausted", None)
                return
            if one.enabling != rule_state.enablings:
                one.restart(rule_state.enablings)
        if rule.retries and match.record is not None and match.record.retried:
            self._report(rule_state, match, "retried", None)
            return
        condition, predicate = rule.condition, rule.trigger.match
        value = None if rule_state.watch is None else rule_state.watch.last
        known: dict[str, Any] | None = None
        if predicate is not None:
            known = self._condition_values(rule_state, match._replace(scope=scope))
        elif condition is not None and condition.comparison is None:
            known = state.known(rule_state, match, scope)
            if value is not None and "value" in condition.names:
                known["value"] = value
        try:
            if predicate is not None and not predicate(match.event, known or {}):
                rule_state.refused += 1
                self._report(rule_state, match, "trigger", known)
                return
            if condition is not None:
                if condition.comparison is not None:
                    is_true = condition.verdict(value, NOTHING, state.metric)
                else:
                    is_true = condition.evaluate(value, known or NOTHING, state.metric)
                if not is_true:
                    one.checks_passed = 0
                    if rule.lasts:
                        state.rules.true_conditions.interrupt(rule_state, one, state.now)
                    if (
                        rule.crosses
                        and is_true is not None
                        and self._is_false_without_nan(condition, value, known or NOTHING)
                    ):
                        self._settle(rule_state, one, is_true=False)
                    # Keep known values rather than replacing them by missing ones.
                    if known is not None and (
                        is_true is not None
                        or not rule_state.seen
                        or None in rule_state.seen.values()
                    ):
                        whole = len(known) == rule_state.name_count
                        rule_state.seen = (
                            known if whole else state.condition_values(condition, known)
                        )
                    if is_true is None:
                        rule_state.held_back["no value"] = (
                            rule_state.held_back.get("no value", 0) + 1
                        )
                    if self.observer is not None:
                        verdict: VerdictKind = "no value" if is_true is None else "condition"
                        self.observer.considered(rule_state, match, verdict, known)
                    return
        except Exception as error:  # an error in a plugin's match must not end the run
            raised = raised_at(error)
            trigger = rule.spec.get("trigger", rule.label)
            why = f"its trigger {trigger!r} raised {error!r}" + (f" ({raised})" if raised else "")
            state.rules.cut(rule_state, why)
            state.end_check_due = True
            state.error(f"rule {rule.id} is switched off: {why}")
            self._report(rule_state, match, "cut", known)
            return
        if rule.concerns_failure and match.record is not None:
            match.record.failure_rule_matched = True
        one.checks_passed += 1
        if rule.lasts and not state.rules.true_conditions.enough(
            rule_state, one, match._replace(scope=scope), state.now
        ):
            self._report(rule_state, match, "checks", known)
        elif one.checks_passed < rule.checks:
            rule_state.longest = max(rule_state.longest, one.checks_passed)
            self._report(rule_state, match, "checks", known)
        elif rule.crosses and not self._settle(rule_state, one, is_true=True):
            self._report(rule_state, match, "crossed", known)
        elif one.skip > 0:
            one.skip -= 1
            self._report(rule_state, match, "backoff", known)
        elif state.now < one.not_before:
            self._report(rule_state, match, "backoff", known)
        else:
            match = match._replace(scope=scope)
            if known is not None:
                known = self._condition_values(rule_state, match)
            self._fire(rule_state, one, match, known)

    def _is_false_without_nan(
        self, condition: Condition, value: float | None, known: Mapping[str, Any]
    ) -> bool:
        """Return True if a false condition stays false when each nan counts as a missing value."""
        if value != value:
            return False
        if condition.comparison is not None:
            return True

        def metric(path: str) -> float | None:
            found = self.state.metric(path)
            return found if found == found else None

        numbers = {name: each for name, each in known.items() if each == each}
        return condition.evaluate(value, numbers, metric) is not None

    @staticmethod
    def _settle(rule_state: RuleState, one: RuleInstance, *, is_true: bool) -> bool:
        """Note whether a condition with ``crosses`` is true. Return True if the rule may fire."""
        before = one.was_true
        if one is rule_state.main and rule_state.watch is not None:
            rule_state.watch.settle(rule_state, is_true)
        else:
            one.was_true = is_true
        return is_true and (before is False or (before is None and rule_state.rule.at_first))

    def _report(
        self,
        rule_state: RuleState,
        match: Match,
        verdict: VerdictKind,
        known: Mapping[str, Any] | None,
    ) -> None:
        if verdict != "fired":
            rule_state.held_back[verdict] = rule_state.held_back.get(verdict, 0) + 1
        if self.observer is not None:
            self.observer.considered(rule_state, match, verdict, known)

    def _condition_values(self, rule_state: RuleState, match: Match) -> dict[str, Any]:
        known = self.state.fields(match)
        if rule_state.value is not None:
            known["value"] = rule_state.value
        for name in sorted(rule_state.rule.of_tables):
            value = self.state.tables(match.scope).statistic(name)
            if name not in known and value is not None:
                known[name] = value
        for name in sorted(rule_state.rule.of_gauges):
            value = self.state.metric(name)
            if name not in known and value is not None:
                known[name] = value
        for name in sorted(rule_state.rule.reads):
            if name not in known:  # a column with the name STAT.NAME takes precedence
                value = self.state.read_scoped(name, rule_state.rule.reads_of, match, match.scope)
                if value is not None:
                    known[name] = value
        return known

    def _fire(
        self,
        rule_state: RuleState,
        one: RuleInstance,
        match: Match,
        known: dict[str, Any] | None,
    ) -> None:
        state, rule = self.state, rule_state.rule
        link = chain_limit.extend(state, rule.id, state.link)
        if link.depth > state.ensemble.limits.chain:
            chain_limit.cut(state, rule_state, one, link)
            self._report(rule_state, match, "cut", known)
            return
        if state.deepest is None or link.depth >= state.deepest.depth:
            state.deepest = link
        state.rules.fired(rule_state, one, state.now)
        state.end_check_due = True
        state.firings += 1
        if known is None:
            known = self._condition_values(rule_state, match)
        self._report(rule_state, match, "fired", known)
        origin = Origin(rule_state, state.firings, link, match, known)
        state.out.append(
            Fired(
                **origin.decision_fields,
                label=rule.label or rule.id,
                count=rule_state.fired,
                job=origin.job,
                value=rule_state.value,
                each=match.scope.parameters if isinstance(match.scope, Slice) else NOTHING,
            )
        )
        self._perform_all(self._perform(origin, rule.actions))

    # -- actions -------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Return True if the current firing must stop because the run has ended."""
        return self.state.ended is not None and not self._closing

    def _perform(self, origin: Origin, actions: Iterable[BoundAction]) -> Iterator[None]:
        """Perform the actions of a firing.

        Yield whenever actions of another firing must come first.
        """
        state = self.state
        for action in actions:
            if self._is_over():
                return
            try:
                decided: Iterable[object] = EngineFiring(state, origin).perform(action)
                for decision in decided:
                    if self._is_over():
                        return
                    if self._closing and not isinstance(decision, (Log, Notify)):
                        what = decision.__class__.__name__
                        state.error(
                            f"action {action.name} decided {what}, but at the end of the run only "
                            "messages are allowed",
                            origin,
                        )
                        break
                    if isinstance(decision, Switch):
                        yield from self._switch(origin, decision)
                    elif isinstance(decision, Decision):
                        self.effects.apply(origin, decision)
                    else:
                        what = f"action {action.name} yielded {kind_of(decision)}, not a decision"
                        what = f"{what} ({written_at(action.plan)})"
                        state.error(what, origin, tolerated=action.tolerated)
                        break
            except EnsembleError as error:
                about = f"rule {origin.rule!r}" + (f", job {origin.job}" if origin.job else "")
                what = f"{about}: {error}" if error.code == "no-value" else str(error)
                state.error(what, origin, tolerated=action.tolerated)
            except Exception as error:  # an error in a plugin's plan must not end the run
                what = f"action {action.name} raised {error!r} ({raised_at(error)})"
                state.error(what, origin, tolerated=action.tolerated)

    def _switch(self, origin: Origin, decision: Switch) -> Iterator[None]:
        """Switch to other instances and fire their rules on ``start``."""
        state, event = self.state, origin.match.event
        state.out.append(decision)
        starting, dropped = switch_instances(self.effects, decision)
        link, state.link = state.link, origin.link
        self.report_trigger_events(("start",), None)
        for rule_state in starting:
            self.consider(rule_state, Match(event))
            yield  # if that rule fired, its actions come first
        state.link = link
        for index in dropped:  # these indices are handled after the firing
            index.record.link = origin.link
        state.dropped += dropped

    def _perform_all(self, actions: Iterator[None]) -> None:
        """Perform actions, including those of nested firings, with a stack instead of recursion."""
        stack = self._performing
        stack.append(actions)
        if len(stack) > 1:
            return  # the outer call performs the actions
        try:
            while stack:
                if next(stack[-1], _DONE) is _DONE:
                    stack.pop()
        finally:
            stack.clear()

    def follow(self, origin: Origin, spec: Mapping[str, Any]) -> None:
        """Carry out what a function has returned: an action, a rule, or values for a submit."""
        state = self.state
        if state.ended is not None:
            return
        try:
            if "rule" in spec:
                self._join(origin, spec["rule"])
            elif "submit" in spec:
                firing = EngineFiring(state, origin)
                given = spec["submit"], spec["with"], spec["parameters"]
                self.effects.apply(origin, firing.submit_given(*given))
            else:
                fields = spec.get("fields")
                action = state.ensemble.binder.action(spec["action"])
                known = origin.with_fields(fields) if fields else origin
                self._perform_all(self._perform(known, (action,)))
        except EnsembleError as error:
            state.error(str(error), origin)

    def _join(self, origin: Origin, spec: Mapping[str, Any]) -> None:
        state = self.state
        rule_state = state.rules.join(spec)
        rule = rule_state.rule
        state.out.append(AddRule(**origin.decision_fields, id=rule.id, spec=dict(rule.spec)))
        state.prepare_for(rule)
        state.schedule(rule_state, state.now)
        state.check_soon(rule_state)
