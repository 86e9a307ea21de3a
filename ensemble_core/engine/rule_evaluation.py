"""Rule evaluation: finds the rules that an occasion wakes, checks their conditions, fires them.

Has the run's state, which decisions change, and is had by the engine, which turns events into
occasions. Reports what came of each rule to an observer, if there is one (``rule_trace``). The
laws of all stand at the top of ``engine.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, Protocol

from ensemble_core.engine.firing import EngineFiring
from ensemble_core.engine.job_record import Index, JobRecord
from ensemble_core.engine.rule_index import Asleep, Instance, RuleState, Watch, in_order
from ensemble_core.engine.scopes import Scope, Slice, SliceKey
from ensemble_core.engine.state import Occasion, Origin, State
from ensemble_core.errors import EnsembleError, raised_at
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import AddRule, Fired, Retry
from ensemble_core.model.events import Event
from ensemble_core.model.rules import BoundAction, BoundRule, RetryPolicy

__all__ = ["RuleEvaluation", "RuleObserver", "Verdict"]

_UNKNOWN = "without a value"

#: What came of it that a rule was considered. ``fired``; ``condition``: its ``when`` did not hold;
#: ``no value``: something that its ``when`` speaks of had no value; ``trigger``: the trigger's own
#: ``match`` said no; ``backoff``: held back by its backoff; ``looks``: its ``when`` has not held at
#: enough looks in a row yet; ``retried``: the job is to be submitted again already; or it could not
#: fire any more.
Verdict = Literal[
    "fired", "condition", "no value", "trigger", "backoff", "looks", "retried", Asleep
]


class RuleObserver(Protocol):
    """Is told what becomes of rules, event by event. It may look at the state, not change it."""

    def occurred(self, names: Sequence[str], group: str | None, *, stranger: bool) -> None:
        """An occasion arose, whether or not a rule waits for it; ``stranger``: of a job that is
        none of ours."""

    def updated(self, watch: Watch) -> None:
        """A metric that rules wait for was updated; those that its value wakes are told of next."""

    def considered(
        self, state: RuleState, verdict: Verdict, known: Mapping[str, Any] | None
    ) -> None:
        """A rule was considered; ``known`` is what its condition spoke of. The actions of one that
        fired follow."""

    def handled(self, event: Event) -> None:
        """The event is worked in."""

    def adopted(self) -> None:
        """The ensemble file changed, between two events."""


def _scope(rule: BoundRule, occasion: Occasion) -> Scope | None:
    """The index or slice of the event's job that an instance of this rule is about."""
    if occasion.record is None:
        return None
    index = occasion.record.index
    if rule.each == "job":
        return index
    for each in index.slices:
        if each.key.parameters == rule.each and each.key.groups == rule.groups:
            return each
    return None


class RuleEvaluation:
    """The rules of one run at work. See the laws at the top of ``engine.py``."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.observer: RuleObserver | None = None

    # -- which rules ---------------------------------------------------------------------------

    def react(
        self,
        names: Sequence[str],
        group: str | None,
        event: Event,
        record: JobRecord | None = None,
        fields: Mapping[str, Any] = NOTHING,
        *,
        stranger: bool = False,
    ) -> None:
        """Work in an event that touched metrics and makes occasions of these names: of the job in
        ``record``, of a ``stranger``'s, or of none."""
        if names and self.observer is not None:
            self.observer.occurred(names, group, stranger=stranger)
        index = self.state.rules.index
        if index.touched:
            satisfied = self.satisfied()
            if satisfied:
                self.consider_each(satisfied, Occasion(event, record, fields))
        if index.occasions and not index.occasions.keys().isdisjoint(names):
            occasion = Occasion(event, record, fields)
            self.event_rules(names, group, occasion, stranger=stranger)
        if index.touched or self.state.withdrawn or self.state.dropped:
            self.settle(event)

    def settle(self, event: Event) -> None:
        """The rules that wait for what the firings themselves did, until there is nothing more:
        metric rules of what they counted, ``job-cancel`` of held jobs they cancelled, and what
        follows when these are over."""
        state = self.state
        while state.ended is None and (
            state.rules.index.touched or state.withdrawn or state.dropped
        ):
            state.link = state.deepest
            self.consider_each(self.satisfied(), Occasion(event))
            withdrawn, state.withdrawn = state.withdrawn, []
            for record, link in withdrawn:
                state.link = link
                self.report_occasions(("job-cancel",), record.job.group)
                self.event_rules(("job-cancel",), record.job.group, Occasion(event, record))
                self.cleaned(record, event)
            dropped, state.dropped = state.dropped, []
            for index in dropped:
                self._over(index, event)

    def report_occasions(
        self, names: Sequence[str], group: str | None, *, stranger: bool = False
    ) -> None:
        """Tell the observer that these arose."""
        if self.observer is not None:
            self.observer.occurred(names, group, stranger=stranger)

    def satisfied(self) -> list[RuleState]:
        """The rules that metrics which were updated satisfy now, or may satisfy, in order."""
        found: list[RuleState] = []
        state, observer = self.state, self.observer
        index, beating = state.rules.index, state.beating
        touched, index.touched = index.touched, {}
        for watch in touched:
            watch.updates += 1
            if observer is not None:
                observer.updated(watch)
            if beating:
                value = state.read(watch.path)
            else:
                bounds = watch.bounds
                if bounds is not None and bounds.high < watch.ceiling and bounds.low > watch.floor:
                    watch.unread = True
                    continue
                value = watch.read(state.now)
            watch.unread = False
            watch.last = value
            if value is not None and not watch.floor < value < watch.ceiling:
                watch.match(value, found)
        return in_order(found)

    def consider_each(self, found: Iterable[RuleState], occasion: Occasion) -> None:
        """Consider these rules, one after the other, while the run goes on."""
        for rule_state in found:
            if self.state.ended is not None:
                return
            self.consider(rule_state, occasion)

    def event_rules(
        self, names: Iterable[str], group: str | None, occasion: Occasion, *, stranger: bool = False
    ) -> None:
        """Consider the rules that wait for an occasion of one of these names."""
        index = self.state.rules.index
        found = [rule_state for name in names for rule_state in index.waiting(name, group)]
        if stranger:
            found = [rule_state for rule_state in found if rule_state.rule.queue_scope]
        self.consider_each(in_order(found), occasion)

    # -- one rule ------------------------------------------------------------------------------

    def consider(self, rule_state: RuleState, occasion: Occasion) -> None:
        """Fire the rule if its condition holds and its backoff lets it."""
        rule_state.woken += 1
        if not rule_state.live:
            # A rule of the same occasion has left it so.
            self._tell(rule_state, rule_state.asleep, None)
            return
        state, rule = self.state, rule_state.rule
        one: RuleState | Instance = rule_state
        if rule.each is not None:
            scope = occasion.scope or _scope(rule, occasion)
            if scope is None:  # a job that lacks one of the parameters
                return
            occasion = occasion._replace(scope=scope)
            one = scope.instance(rule.id)
            if one.cut or one.fired >= rule.repetitions:
                self._tell(rule_state, "cut" if one.cut else "exhausted", None)
                return
        if rule.retries and occasion.record is not None and occasion.record.index.retry is not None:
            self._tell(rule_state, "retried", None)
            return
        value = rule_state.value
        condition, match = rule.condition, rule.trigger.match
        known: dict[str, Any] | None = None
        if match is not None or (condition is not None and condition.comparison is None):
            known = self._known(rule_state, occasion)
        try:
            if match is not None and not match(occasion.event, known or {}):
                rule_state.refused += 1
                self._tell(rule_state, "trigger", known)
                return
            if condition is not None:
                verdict = condition.verdict(value, known or {}, state.metric)
                if not verdict:
                    one.holds = 0
                    # What was known says more than a last row in which it was not.
                    if known is not None and (
                        verdict is False or not rule_state.seen or _UNKNOWN in rule_state.seen
                    ):
                        rule_state.seen = ", ".join(
                            f"{name} {_UNKNOWN}" if value is None else f"{name}={value}"
                            for name, value in state.spoken_of(condition, known).items()
                        )
                    self._tell(rule_state, "no value" if verdict is None else "condition", known)
                    return
        except Exception as error:  # a plugin's match: it must not take the run with it
            place = raised_at(error)
            trigger = rule.spec.get("trigger", rule.label)
            why = f"its trigger {trigger!r} raised {error!r}" + (f" ({place})" if place else "")
            state.rules.cut(rule_state, why)
            state.look_for_end = True
            state.error(f"rule {rule.id} is switched off: {why}")
            self._tell(rule_state, "cut", known)
            return
        if rule.concerns_failure and occasion.record is not None:
            occasion.record.concern = True
        one.holds += 1
        if one.holds < rule.looks:
            self._tell(rule_state, "looks", known)
        elif one.skip > 0:
            one.skip -= 1
            self._tell(rule_state, "backoff", known)
        elif state.now < one.not_before:
            self._tell(rule_state, "backoff", known)
        else:
            self._fire(rule_state, one, occasion, known)

    def _tell(
        self, rule_state: RuleState, verdict: Verdict, known: Mapping[str, Any] | None
    ) -> None:
        if self.observer is not None:
            self.observer.considered(rule_state, verdict, known)

    def _known(self, rule_state: RuleState, occasion: Occasion) -> dict[str, Any]:
        known = self.state.fields(occasion)
        if rule_state.value is not None:
            known["value"] = rule_state.value
        for name in rule_state.rule.reads:
            if name not in known:  # a column of that whole name is meant where there is one
                value = self.state.read_scoped(name, rule_state.rule.reads_of, occasion)
                if value is not None:
                    known[name] = value
        return known

    def _fire(
        self,
        rule_state: RuleState,
        one: RuleState | Instance,
        occasion: Occasion,
        known: dict[str, Any] | None,
    ) -> None:
        state, rule = self.state, rule_state.rule
        link = state.extend(rule.id, state.link)
        if link.depth > state.ensemble.limits.chain:
            state.cut_chain(rule_state, one, link)
            self._tell(rule_state, "cut", known)
            return
        if state.deepest is None or link.depth >= state.deepest.depth:
            state.deepest = link
        state.rules.fired(rule_state, one, state.now)
        state.look_for_end = True
        state.firings += 1
        if known is None:
            known = self._known(rule_state, occasion)
        self._tell(rule_state, "fired", known)
        origin = Origin(rule_state, state.firings, link, occasion, known)
        state.out.append(
            Fired(
                **origin.mark,
                label=rule.label or rule.id,
                count=rule_state.fired,
                job=origin.job,
                value=rule_state.value,
                each=occasion.scope.parameters if isinstance(occasion.scope, Slice) else NOTHING,
            )
        )
        for action in rule.actions:
            if state.ended is not None:
                return
            self._act(origin, action)

    # -- indices that are over -----------------------------------------------------------------

    def cleaned(self, record: JobRecord, event: Event) -> None:
        """An attempt is over, and the rules about that have been considered."""
        state, index = self.state, record.index
        policy = None if index.source is None else index.source.retry
        if (
            policy is not None
            and index.retry is None
            and record.outcome == "failed"
            and index.retried < policy.times
            and state.ended is None
        ):
            occasion = Occasion(event, record)
            known = state.fields(occasion)
            for name in policy.reads:
                known.setdefault(name, state.read_scoped(name, None, occasion))
            if policy.when is None or policy.when.verdict(None, known, state.metric):
                index.retried += 1
                self._retry_by_group(record, policy, known)
        self.settle_index(index, event)
        if state.ended is None:
            state.hand_over(record.job.group)

    def _retry_by_group(
        self, record: JobRecord, policy: RetryPolicy, known: Mapping[str, Any]
    ) -> None:
        state = self.state
        try:
            fields, wait = policy.worked_out(known, state.metric)
        except EnsembleError as error:
            state.error(f"{record.job.id} is not submitted again: {error}")
            return
        state.retry(record.index, Retry(job=record.job.id, fields=fields, wait=wait))

    def settle_index(self, index: Index, event: Event) -> None:
        """Submit the next attempt of an index, or find it over, as soon as nothing of it is under
        way any more."""
        state = self.state
        if index.over or index.calls or index.record.job.id in state.table.records:
            return
        if index.retry is None or state.ended is not None or not state.begin_attempt(index):
            self._over(index, event)

    def _over(self, index: Index, event: Event) -> None:
        """No attempt of this index is left, and none is to come."""
        state, record = self.state, index.record
        done = record.outcome == "success"
        state.table.close(index, done=done)
        state.look_for_end = state.look_for_idle = True
        if state.ended is not None:
            state.rules.index.touched.clear()
            return
        if done and index.result:
            state.table.record_result(index, state.now)
        name, group = "job-done" if done else "job-lost", record.job.group
        state.link = record.link
        self.report_occasions((name,), group)
        if name in state.rules.index.occasions:
            self.event_rules((name,), group, Occasion(event, record))
        if state.rules.index.touched or state.withdrawn or state.dropped:
            self.settle(event)
        if (
            record.outcome == "failed"
            and not record.concern
            and not state.rules.awaits_failures(group)
        ):
            state.unhandled_failures += 1

    def idle(self, event: Event) -> None:
        """Consider the rules that wait for jobs to be over, where none is open any more: narrowest
        first, each settled before the next. A function under way counts as an open job."""
        state = self.state
        state.look_for_idle = False
        found = self._idle_now() if "idle" in state.rules.index.occasions else []
        while found and not state.calls and state.ended is None:
            for rule_state, scope in found:
                one = rule_state if scope is None else scope.instance(rule_state.rule.id)
                still_open, filled = state.standing(rule_state.rule, scope)
                if still_open or one.filled == filled or state.calls or state.ended is not None:
                    continue
                one.filled = filled
                state.link = state.deepest = None
                self.report_occasions(("idle",), rule_state.rule.trigger.group)
                self.consider(rule_state, Occasion(event, scope=scope))
                self.settle(event)
            found = self._idle_now()
        if not state.calls:
            state.table.emptied.clear()

    def _idle_now(self) -> list[tuple[RuleState, Slice | None]]:
        """The rules on ``idle`` whose jobs are over and had not been when they were last looked at,
        with the slice that each is about."""
        state = self.state
        emptied = sorted(state.table.emptied, key=attrgetter("order"))
        found: list[tuple[RuleState, Slice | None]] = []
        for rule_state in state.rules.idle():
            rule = rule_state.rule
            scopes: list[Slice | None] = [None]
            if rule.each is not None:
                key = SliceKey(rule.groups, rule.each)  # type: ignore[arg-type]
                scopes = [each for each in emptied if each.key == key]
            for scope in scopes:
                still_open, filled = state.standing(rule, scope)
                one = rule_state if scope is None else scope.instance(rule.id)
                if not still_open and filled != one.filled:
                    found.append((rule_state, scope))
        return found

    # -- what it does --------------------------------------------------------------------------

    def _act(self, origin: Origin, action: BoundAction) -> None:
        state = self.state
        try:
            for decision in EngineFiring(state, origin).perform(action):
                if state.ended is not None:
                    return
                state.apply(origin, decision)
        except EnsembleError as error:
            state.error(str(error), origin)
        except Exception as error:  # a plugin's plan: it must not take the run with it
            state.error(f"action {action.name} raised {error!r} ({raised_at(error)})", origin)

    def follow(self, origin: Origin, spec: Mapping[str, Any]) -> None:
        """Do what a function returned: an action, or a rule to add."""
        state = self.state
        if state.ended is not None:
            return
        try:
            if "rule" in spec:
                self._join(origin, spec["rule"])
            else:
                told = spec.get("fields")
                action = state.ensemble.binder.action(spec["action"])
                self._act(origin.knowing(told) if told else origin, action)
        except EnsembleError as error:
            state.error(str(error), origin)

    def _join(self, origin: Origin, spec: Mapping[str, Any]) -> None:
        state = self.state
        rule_state = state.rules.join(spec)
        rule = rule_state.rule
        state.out.append(AddRule(**origin.mark, id=rule.id, spec=dict(rule.spec)))
        state.schedule(rule_state, state.now)
        state.look_at_once(rule_state)
