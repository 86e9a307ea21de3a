"""The engine with a witness: why one rule fired or did not, each time that it was considered.

:class:`TracingEngine` handles events exactly as the engine does and keeps, beside that, a verdict
for each time that its rule was looked at, or would have been had it not been switched off or
exhausted. Made for a replay by ``ensemble why``; no run uses it, so that runs pay nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.job_table import JobRecord, JobTable, Strangers
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.model.conditions import Condition
from ensemble_core.model.decisions import Decision, Log
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event, JobEvent, TimerElapsed

__all__ = ["ASLEEP", "Kind", "TracingEngine", "Verdict", "event_words"]

#: What came of it that a rule was considered. ``fired``; ``condition``: its ``when`` did not hold;
#: ``no value``: something that its ``when`` speaks of had no value; ``trigger``: the trigger's own
#: ``match`` said no; ``backoff``: held back by its backoff; ``exhausted``, ``disabled``, ``cut``:
#: it could not fire any more, or not then; ``ended``: the run had ended.
Kind = Literal[
    "fired",
    "condition",
    "no value",
    "trigger",
    "backoff",
    "exhausted",
    "disabled",
    "cut",
    "ended",
]

#: The kinds of a rule that the engine does not even look at.
ASLEEP: frozenset[Kind] = frozenset({"exhausted", "disabled", "cut", "ended"})


class Verdict(NamedTuple):
    """What came of it that the rule was considered once.

    ``value`` is its metric's value, ``saw`` what else its condition saw, ``note`` what more there
    is to say, ``until`` when a backoff ends (seconds since the epoch), ``skips`` how many further
    matches it skips, ``fired`` how often the rule had fired by then.
    """

    kind: Kind
    value: float | None = None
    saw: str = ""
    note: str = ""
    until: float | None = None
    skips: int = 0
    fired: int = 0


def event_words(event: Event) -> str:
    """An event in a few words: ``finish of sim.3``, ``heartbeat``, ``call-returned``."""
    if isinstance(event, JobEvent):
        return f"{event.name} of {event.job}" + ("" if event.ours else " (not ours)")
    if isinstance(event, TimerElapsed):
        return event.timer
    job = getattr(event, "job", None)
    name = getattr(event, "name", event.type)
    return f"{name} of {job}" if job else str(name)


class _Occasion(NamedTuple):
    names: tuple[str, ...]
    group: str | None
    stranger: bool


class _Table(JobTable):
    """The job table, which tells of the occasions that job events make."""

    made: list[_Occasion]

    def take(self, record: JobRecord, event: JobEvent) -> tuple[str, ...] | None:
        occasions = super().take(record, event)
        if occasions is not None:
            self.made.append(_Occasion(occasions, record.job.group, False))
        return occasions


class _Strangers(Strangers):
    made: list[_Occasion]

    def take(self, event: JobEvent) -> tuple[tuple[str, ...], dict[str, Any]]:
        names, fields = super().take(event)
        self.made.append(_Occasion(names, None, True))
        return names, fields


class TracingEngine(Engine):
    """An engine that says of the rule with id ``traced`` why it fired or did not.

    ``verdicts`` are those of the event that was handled last. ``happened`` counts every occasion
    by its name and the job's group, so that a rule that was never woken can be told what was there
    instead.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        traced: str,
        *,
        everything: bool | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__(ensemble, everything=everything, shared=shared)
        self.traced = traced
        self.verdicts: list[Verdict] = []
        self.happened: Counter[tuple[str, str | None]] = Counter()
        self._made: list[_Occasion] = []
        # Nothing has been told of the engine's own yet.
        self.table = table = _Table(ensemble.groups, self.metrics, self.rules.index)
        self._strangers = strangers = _Strangers()
        table.made = strangers.made = self._made

    def handle(self, event: Event) -> list[Decision]:
        self.verdicts = []
        self._made.clear()
        state = self.rules.states.get(self.traced)
        ended = self.ended is not None
        asleep = state is not None and (ended or not state.live)
        before = self._metric_of(state) if asleep else None
        decisions = super().handle(event)
        for occasion in self._made:
            for name in occasion.names:
                self.happened[name, occasion.group] += 1
        if state is not None and not self.verdicts and (asleep or self.ended is not None):
            after = self._metric_of(state)
            if (asleep and after != before) or any(map(self._concerns(state), self._made)):
                self._say("ended" if self.ended is not None else _standing(state), state, after)
        return decisions

    # -- what the engine does, with a witness ----------------------------------------------------

    def _metric_rules(
        self, event: Event, record: JobRecord | None, fields: Mapping[str, Any]
    ) -> None:
        state = self.rules.states.get(self.traced)
        watch = state.watch if state is not None and state.live else None
        if state is None or watch is None or watch not in self.rules.index.touched:
            super()._metric_rules(event, record, fields)
            return
        # Before anything fires; the engine itself does not read what is out of every rule's reach.
        value = self._read(watch.path) if self._beating else watch.read(self.now)
        said = len(self.verdicts)
        super()._metric_rules(event, record, fields)
        if len(self.verdicts) > said:
            return
        if value is None:
            self._say("no value", state)
        elif self.ended is not None and _may_reach(state, value):
            self._say("ended", state, value)
        else:
            self._say("condition", state, value)

    def _event_rules(
        self,
        names: Sequence[str],
        group: str | None,
        event: Event,
        record: JobRecord | None,
        fields: Mapping[str, Any],
        *,
        stranger: bool = False,
    ) -> None:
        # A job's own event has told of its occasions when the job table took it.
        told = type(event) is JobEvent and (
            stranger or (record is not None and record.job.id == event.job)
        )
        if not told:
            self._made.append(_Occasion(tuple(names), group, stranger))
        super()._event_rules(names, group, event, record, fields, stranger=stranger)

    def _consider(
        self,
        state: RuleState,
        event: Event,
        record: JobRecord | None,
        fields: Mapping[str, Any],
    ) -> None:
        if state.rule.id != self.traced:
            super()._consider(state, event, record, fields)
            return
        value = None if state.watch is None else state.watch.last
        if not state.live:
            self._say(_standing(state), state, value)
            return
        known = self._fields(event, record, fields)
        if value is not None:
            known["value"] = value
        doubt = self._doubt(state, event, value, known)
        fired, skip = state.fired, state.skip
        super()._consider(state, event, record, fields)
        kind, saw = doubt
        if state.fired > fired:
            self._say("fired", state, value, saw)
        elif state.cut:
            self._say("cut", state, value, saw, self._last_error())
        elif kind is not None:
            self._say(kind, state, value, saw)
        elif state.skip < skip:
            self.verdicts.append(
                Verdict("backoff", value, saw, skips=state.skip, fired=state.fired)
            )
        else:
            self.verdicts.append(
                Verdict("backoff", value, saw, until=state.not_before, fired=state.fired)
            )

    # -- why -------------------------------------------------------------------------------------

    def _doubt(
        self, state: RuleState, event: Event, value: float | None, known: Mapping[str, Any]
    ) -> tuple[Kind | None, str]:
        """Why the rule will not fire for this event, as far as trigger and condition say; and what
        the condition saw."""
        match, condition = state.rule.trigger.match, state.rule.condition
        saw = "" if condition is None else self._saw(condition, known)
        try:
            if match is not None and not match(event, known):
                return "trigger", saw
            if condition is not None:
                verdict = condition.verdict(value, known, self.metric)
                if not verdict:
                    return ("no value" if verdict is None else "condition"), saw
        except Exception:  # the engine meets it too, and switches the rule off
            return None, saw
        return None, saw

    def _saw(self, condition: Condition, known: Mapping[str, Any]) -> str:
        """What a condition speaks of, with the values it had."""
        if condition.comparison is not None:
            return ""
        seen = {name: known.get(name) for name in sorted(condition.names) if name != "value"}
        seen.update((path, self.metric(path)) for path in sorted(condition.metrics))
        return ", ".join(_spelled(seen.items()))

    def _metric_of(self, state: RuleState | None) -> float | None:
        path = None if state is None else state.rule.trigger.metric
        return None if path is None else self.metric(path)

    @staticmethod
    def _concerns(state: RuleState) -> Any:
        trigger, whole_queue = state.rule.trigger, state.rule.queue_scope

        def concerns(occasion: _Occasion) -> bool:
            return (
                (whole_queue or not occasion.stranger)
                and trigger.group in (None, occasion.group)
                and not set(trigger.wakes).isdisjoint(occasion.names)
            )

        return concerns

    def _last_error(self) -> str:
        errors = [d.message for d in self._out if isinstance(d, Log) and d.level == "error"]
        return errors[-1] if errors else ""

    def _say(
        self,
        kind: Kind,
        state: RuleState,
        value: float | None = None,
        saw: str = "",
        note: str = "",
    ) -> None:
        self.verdicts.append(Verdict(kind, value, saw, note, fired=state.fired))


def _spelled(seen: Iterable[tuple[str, object]]) -> Iterable[str]:
    for name, value in seen:
        if value is None:
            yield f"{name} has no value"
        elif isinstance(value, float):
            yield f"{name}={value:g}"
        else:
            yield f"{name}={value}"


def _standing(state: RuleState) -> Kind:
    """Why a rule that is not live is not."""
    if state.cut:
        return "cut"
    return "disabled" if not state.enabled else "exhausted"


def _may_reach(state: RuleState, value: float) -> bool:
    """Whether the index hands the rule to the engine for this value."""
    condition = state.rule.condition
    if condition is None or condition.comparison is None or state.rule.trigger.match is not None:
        return True
    return condition.holds(value, {}, lambda _: None)
