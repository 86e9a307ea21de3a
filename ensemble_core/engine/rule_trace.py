"""Explains why a rule fires or does not fire, each time that an event triggers it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.rule_evaluation import RuleObserver, VerdictKind
from ensemble_core.engine.rule_index import (
    InactiveReason,
    RuleInstance,
    RuleState,
    Watch,
    comparison,
)
from ensemble_core.engine.scopes import Scope, Slice
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import Event, JobEvent, Requested, TimerElapsed

#: The result of considering a rule. ``ended``: the run had ended.
Kind = Literal[VerdictKind, "ended"]

#: Verdicts for cases in which the engine did not consider the rule.
INACTIVE: frozenset[Kind] = frozenset({*get_args(InactiveReason), "ended"})


class Verdict(NamedTuple):
    """Why a rule fired or did not fire when an event triggered it."""

    kind: Kind
    value: float | None = None  # of the rule's metric
    seen: Mapping[str, object] = NOTHING  # the other values in the rule's condition
    note: str = ""
    until: float | None = None  # when the backoff ends (seconds since the epoch)
    skips: int = 0  # how many more matches the backoff skips
    held: float = 0  # at how many checks in a row, or for how many seconds, the condition was true
    fired: int = 0  # how often the rule has fired so far
    job: str = ""  # the event's job
    parameters: Mapping[str, object] = NOTHING  # of the slice or the job

    @property
    def saw(self) -> str:
        """The values in the rule's condition as text: ``energy=3, mean.energy has no value``."""
        return ", ".join(_as_text(self.seen.items()))


def trace_rules(engine: Engine, rules: Iterable[str]) -> list[RuleTracer]:
    """Trace several rules of one engine."""
    tracers = [RuleTracer(engine, rule) for rule in rules]
    engine.observe(_RuleObservers(tracers))
    return tracers


class _RuleObservers:
    """A ``RuleObserver`` that passes every call on to several observers."""

    def __init__(self, observers: Sequence[RuleObserver]) -> None:
        self._observers = observers

    def occurred(self, names: Sequence[str], group: str | None, *, foreign: bool) -> None:
        for each in self._observers:
            each.occurred(names, group, foreign=foreign)

    def updated(self, watch: Watch, only: Container[RuleState] | None) -> None:
        for each in self._observers:
            each.updated(watch, only)

    def considered(
        self,
        state: RuleState,
        match: Match,
        verdict: VerdictKind,
        known: Mapping[str, Any] | None,
    ) -> None:
        for each in self._observers:
            each.considered(state, match, verdict, known)

    def handled(self, event: Event) -> None:
        for each in self._observers:
            each.handled(event)

    def reconfigured(self) -> None:
        for each in self._observers:
            each.reconfigured()


def event_words(event: Event) -> str:
    """Describe an event briefly: ``finish of sim.3``, ``heartbeat``, ``call-returned``."""
    if isinstance(event, JobEvent):
        return f"{event.name} of {event.job}" + ("" if event.ours else " (not ours)")
    if isinstance(event, TimerElapsed):
        return f"drop of {event.key}" if event.timer == "within" else event.timer
    if isinstance(event, Requested):
        return f"{event.action.get('name')} requested by {event.by}"
    job = getattr(event, "job", None)
    name = getattr(event, "name", event.type)
    return f"{name} of {job}" if job else str(name)


class RuleTracer:
    """A ``RuleObserver`` that explains why the rule ``traced`` fired or did not fire."""

    def __init__(self, engine: Engine, traced: str) -> None:
        self.state = engine.state
        self.traced = traced
        #: The verdicts of the last event.
        self.verdicts: list[Verdict] = []
        #: Trigger events by name and group, to explain why a rule was never triggered.
        self.happened: Counter[tuple[str, str | None]] = Counter()
        #: Data on the current event: the verdicts, the trigger events, and the updated value of the
        #: metric with the number of verdicts before the update.
        self._recorded: list[Verdict] = []
        self._trigger_events: list[tuple[Sequence[str], str | None, bool]] = []
        self._update: tuple[float | None, int] | None = None
        self._wait_for_event()
        engine.observe(self)

    def _wait_for_event(self) -> None:
        """Record the state of the rule before the next event."""
        self._rule = state = self.state.rules.states.get(self.traced)
        self._asleep = state is not None and (self.state.ended is not None or not state.live)
        self._before = self._metric() if self._asleep else None

    # -- reports of the rule evaluation ----------------------------------------------------------

    def occurred(self, names: Sequence[str], group: str | None, *, foreign: bool) -> None:
        for name in names:
            self.happened[name, group] += 1
        self._trigger_events.append((names, group, foreign))

    def updated(self, watch: Watch, only: Container[RuleState] | None) -> None:
        state = self.state.rules.states.get(self.traced)
        if state is None or state.watch is not watch or not state.live:
            return
        if only is not None and state not in only:
            return
        if self._update is not None:
            self._conclude_update(*self._update)
        # If a metric's value cannot satisfy any rule, the engine does not read it.
        value = (
            self.state.read(watch.path) if self.state.in_heartbeat else watch.read(self.state.now)
        )
        self._update = value, len(self._recorded)

    def considered(
        self,
        state: RuleState,
        match: Match,
        verdict: VerdictKind,
        known: Mapping[str, Any] | None,
    ) -> None:
        if state.rule.id != self.traced:
            return
        record, scope = match.record, match.scope
        one = state.main
        if scope is not None and state.rule.each is not None:
            one = (scope.instances or {}).get(state.key, state.main)
        job, parameters = "", NOTHING
        if record is not None:
            job, parameters = record.job.id, record.job.parameters
        if isinstance(scope, Slice):
            parameters = scope.parameters
        note, until, skips = "", None, 0
        if verdict == "cut":
            note = self._last_error()
        elif verdict == "backoff":
            skips, until = one.skip, one.not_before
            if self.state.now >= until:
                until = None
        seen = self._seen_values(state, verdict, known)
        if verdict == "no value":
            note = self._explain_missing_value(state, seen, scope)
        self._recorded.append(
            Verdict(
                verdict,
                state.value,
                seen,
                note,
                until,
                skips,
                self._held(state, one),
                one.fired,
                job,
                parameters,
            )
        )

    def handled(self, event: Event) -> None:
        if self._update is not None:
            self._conclude_update(*self._update)
        state, ended = self._rule, self.state.ended is not None
        if state is not None and not self._recorded and (self._asleep or ended):
            after = self._metric()
            moved = self._asleep and after != self._before
            if moved or any(_concerns(state, *match) for match in self._trigger_events):
                self._add("ended" if ended else state.inactive_reason, state, after)
        self.verdicts, self._recorded = self._recorded, []
        self._trigger_events.clear()
        self._wait_for_event()

    def reconfigured(self) -> None:
        self._wait_for_event()

    # -- reasons ---------------------------------------------------------------------------------

    def _conclude_update(self, value: float | None, recorded: int) -> None:
        """Record why the rule was not considered after an update of its metric."""
        self._update = None
        state = self.state.rules.states[self.traced]
        if len(self._recorded) > recorded:
            return
        if state in getattr(state.watch, "held", ()):
            kind: Kind = "checks" if state.main.timer else "crossed"
            held = self._held(state, state.main)
            self._recorded.append(Verdict(kind, value, held=held, fired=state.fired))
        elif value is None:
            self._add("no value", state)
        elif self.state.ended is not None and _may_reach(state, value):
            self._add("ended", state, value)
        else:
            self._add("condition", state, value)

    def _held(self, state: RuleState, one: RuleInstance) -> float:
        """Return how often in a row, or for how many seconds, the condition was true."""
        if not state.rule.lasts:
            return one.checks_passed
        return 0.0 if one.since is None else self.state.now - one.since

    def _seen_values(
        self, state: RuleState, verdict: VerdictKind, known: Mapping[str, Any] | None
    ) -> Mapping[str, object]:
        """Return the names in the rule's condition with their values."""
        condition = state.rule.condition
        if condition is None or condition.comparison is not None or known is None:
            return NOTHING
        # If the condition was false, the engine has just read the same values.
        seen = state.seen if verdict == "condition" else None
        if seen is None:
            seen = self.state.condition_values(condition, known)
        if "value" in seen:
            seen = {name: value for name, value in seen.items() if name != "value"}
        return seen

    def _explain_missing_value(
        self, state: RuleState, seen: Mapping[str, object], scope: Scope | None
    ) -> str:
        """Explain why statistics over tables have no value."""
        tables = self.state.tables(scope)
        missing = [n for n, v in seen.items() if v is None and n in state.rule.of_tables]
        found = ((name, tables.why_no_value(name)) for name in missing)
        return ", ".join(f"{name} ({why})" for name, why in found if why)

    def _metric(self) -> float | None:
        path = None if self._rule is None else self._rule.rule.trigger.metric
        return None if path is None else self.state.metric(path)

    def _last_error(self) -> str:
        errors = [d.message for d in self.state.out if isinstance(d, Log) and d.level == "error"]
        return errors[-1] if errors else ""

    def _add(self, kind: Kind, state: RuleState, value: float | None = None) -> None:
        self._recorded.append(Verdict(kind, value, fired=state.fired))


def _concerns(state: RuleState, names: Sequence[str], group: str | None, foreign: bool) -> bool:
    """Return True if a trigger event with one of these names would trigger this rule."""
    trigger = state.rule.trigger
    return (
        (state.rule.queue_scope or not foreign)
        and trigger.group in (None, group)
        and not set(trigger.events).isdisjoint(names)
    )


def _as_text(seen: Iterable[tuple[str, object]]) -> Iterable[str]:
    for name, value in seen:
        if value is None:
            yield f"{name} has no value"
        elif isinstance(value, float):
            yield f"{name}={value:g}"
        else:
            yield f"{name}={value}"


def _may_reach(state: RuleState, value: float) -> bool:
    """Return True if the index would find the rule for this value."""
    condition = state.rule.condition
    return (
        condition is None or not comparison(state)[0] or condition.holds(value, {}, lambda _: None)
    )
