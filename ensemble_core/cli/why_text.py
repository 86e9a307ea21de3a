"""Describes a rule and its history as text, for ``ensemble why``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core.display.text_style import count_of, format_duration, format_times
from ensemble_core.display.why_not_fired import held_back_words, held_text
from ensemble_core.engine.rule_trace import Kind, RuleTracer, Verdict, trace_rules
from ensemble_core.model.decisions import Decision, DisableRule, EnableRule, Switch
from ensemble_core.model.events import Event, Requested
from ensemble_core.model.rules import UNLIMITED, BoundRule
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ensemble_core.journal.replay import Replay

#: How many events are named if a rule was never triggered.
_NAMED = 6


@dataclass(slots=True)
class Span:
    """Summary of events to which a rule reacted in the same way, for example by firing."""

    #: The verdict for the last of these events.
    verdict: Verdict
    #: Number of the first event; ``time`` and ``event`` describe it.
    first: int
    time: float
    event: str
    #: Number of the last event.
    last: int = 0
    count: int = 1
    #: Extremes of the metric in the rule's condition.
    lowest: float | None = None
    highest: float | None = None

    def __post_init__(self) -> None:
        self.last, self.lowest, self.highest = self.first, self.verdict.value, self.verdict.value

    def take(self, verdict: Verdict, seq: int) -> None:
        """Add the verdict for the event with this number."""
        self.verdict, self.last, self.count = verdict, seq, self.count + 1
        value = verdict.value
        if value is None:
            return
        # Inlined, because this runs for every verdict, and a call would double its cost.
        if self.lowest is None or value < self.lowest:
            self.lowest = value
        if self.highest is None or value > self.highest:
            self.highest = value

    def to_dict(self, began: float) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "first": self.first,
            "last": self.last,
            "count": self.count,
            "timestamp": self.time,
            "elapsed": self.time - began,
            "event": self.event,
            "verdict": verdict.kind,
            "value": verdict.value,
            "lowest": self.lowest,
            "highest": self.highest,
            "saw": verdict.saw,
            "note": verdict.note,
            "until": verdict.until,
            "skips": verdict.skips if verdict.kind == "backoff" else None,
            "fired": verdict.fired,
            "job": verdict.job or None,
            "parameters": dict(verdict.parameters),
        }


@dataclass(slots=True)
class Story:
    """History of one rule over a whole run."""

    tracer: RuleTracer
    #: All verdicts of each kind.
    totals: dict[Kind, Span] = field(default_factory=dict)
    #: The last verdict of any kind.
    latest: Verdict | None = None
    #: The rule in its last form, or ``None`` if it never existed.
    rule: BoundRule | None = None
    #: At which event, and by whom, the rule was last enabled or disabled.
    switched: tuple[int, str] | None = None
    #: At which event, and why, the run ended.
    ended: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self.find_rule()

    def find_rule(self) -> None:
        """Look up the rule in its current form."""
        state = self.tracer.state.rules.states.get(self.tracer.traced)
        self.rule = self.rule if state is None else state.rule

    def follow(self, seq: int, event: Event, decisions: Iterable[Decision]) -> None:
        """Note whether the event with this number switched the rule or ended the run."""
        for decision in decisions:
            if self._is_switched_by(decision):
                by = f"rule {decision.rule}" if decision.rule else ""
                self.switched = (seq, event.by if isinstance(event, Requested) else by)
        self.find_rule()
        ended = self.tracer.state.ended
        if ended is None:
            self.ended = None  # a resume may have reopened the run
        elif self.ended is None:
            self.ended = (seq, ended.reason)

    def _is_switched_by(self, decision: Decision) -> bool:
        """Return True if a decision switches the rule or its instance on or off."""
        instance = None if self.rule is None else self.rule.instance
        if isinstance(decision, (DisableRule, EnableRule)):
            return self.tracer.traced in decision.rules or (
                instance is not None and instance in decision.rules
            )
        return isinstance(decision, Switch) and instance in (*decision.off, *decision.on)

    def take(self, verdict: Verdict, seq: int, time: float) -> None:
        """Add the verdict for the event with this number and time."""
        self.latest = verdict
        total = self.totals.get(verdict.kind)
        if total is None:
            self.totals[verdict.kind] = Span(verdict, seq, time, "")
        else:
            total.take(verdict, seq)


def describe_condition(rule: BoundRule) -> str:
    """Return the rule's condition in quotation marks."""
    condition = rule.condition
    if condition is None:
        return "its condition"
    if condition.comparison is not None and condition.comparison[0] == "==":
        return f"'== {condition.comparison[1]:g}'"
    return repr(condition.text)


def describe_rule(rule: BoundRule) -> str:
    """Describe a rule: ``count.sim.failed, when '> 3'; may fire 5 times``."""
    parts = [_waits_for(rule)]
    if rule.condition is not None:
        becomes = " becomes true" if rule.crosses else ""
        parts.append(f", when {describe_condition(rule)}{becomes}")
    if rule.lasts:
        parts.append(f" for {format_duration(rule.lasts)}")
    parts.append(f"; may fire {_repetitions_text(rule)}")
    if rule.backoff:
        parts.append(f", skipping {rule.backoff} after each")
    if rule.backoff_seconds:
        parts.append(f", waiting {format_duration(rule.backoff_seconds)} after each")
    return "".join(parts)


def _repetitions_text(rule: BoundRule) -> str:
    often = format_times(rule.repetitions)
    if rule.repetitions == UNLIMITED:
        often = "any number of times"
    if rule.each is None:
        return often
    return f"{often} for each {'job' if rule.each == 'job' else ' and '.join(rule.each)}"


def _waits_for(rule: BoundRule) -> str:
    trigger = rule.trigger
    if trigger.metric is not None:
        return f"metric {trigger.metric}"
    if trigger.every is not None:
        return f"every {format_duration(trigger.every)}"
    return " or ".join(trigger.events) + (f" of {' and '.join(rule.groups)}" if rule.groups else "")


def describe_span(span: Span, rule: BoundRule, began: float) -> str:
    """Describe a span of verdicts. Times are relative to ``began``."""
    verdict = span.verdict
    times = f"{span.count} times: " if span.count > 1 else ""
    value = "" if verdict.value is None else f"value {verdict.value:g}"
    if span.lowest is not None and span.lowest != span.highest:
        value = f"value {span.lowest:g} to {span.highest:g}, last {verdict.value:g}"
    seen = ", ".join(part for part in (value, verdict.saw) if part)
    if span.count > 1 and verdict.saw:
        seen = f"last {seen}"
    if verdict.kind == "fired":
        of = (
            f" of {rule.repetitions}"
            if rule.each is None and 1 < rule.repetitions < UNLIMITED
            else ""
        )
        said = f"fired ({verdict.fired}{of})" if of else "fired"
        return f"{said}: {seen}" if seen else said
    if verdict.kind == "condition":
        short = rule.condition is not None and rule.condition.comparison is not None
        wanted = describe_condition(rule) if short else "its condition"
        return f"{times}{wanted} was false" + (f": {seen}" if seen else "")
    if verdict.kind == "no value" and verdict.note:
        return f"{times}no value: {verdict.note}: not decided"
    if verdict.kind == "no value":
        return f"{times}{seen or f'{rule.trigger.metric} had no value'}: not decided"
    if verdict.kind == "trigger":
        return f"{times}its trigger did not match the event" + (f": {seen}" if seen else "")
    if verdict.kind == "backoff":
        if verdict.until is None and span.count > 1:
            return f"{times}held back by its backoff"
        if verdict.until is None:
            more = f"{verdict.skips} more to skip" if verdict.skips else "the last to skip"
            return f"{times}held back by its backoff, {more}"
        until = verdict.until - began
        return f"{times}held back by its backoff until [{until:.3f}]"
    if verdict.kind == "checks":
        held = "true " + held_text(verdict.held, rule.checks, rule.lasts)
        return f"{describe_condition(rule)} was {held}" + (f": {seen}" if seen else "")
    if verdict.kind == "crossed":
        still = f"{times}{describe_condition(rule)} was true already, so it did not become true"
        return still + (f": {seen}" if seen else "")
    if verdict.kind == "retried":
        return f"{times}not considered: the job was already retried"
    if verdict.kind == "cut":
        return f"{times}switched off{': ' + verdict.note if verdict.note else ''}"
    if verdict.kind == "ended":
        return f"{times}not considered: the run had ended"
    if verdict.kind == "disabled":
        return f"{times}not considered: it was disabled" + (f" ({value})" if value else "")
    # If a kind has no words above, mypy reports this line.
    _left: Literal["exhausted"] = verdict.kind
    limit = f"{times}not considered: it had fired {format_times(verdict.fired)}, its limit"
    return limit + (f" ({value})" if value else "")


def conclusions(replay: Replay, rules: Iterable[str], until: int) -> dict[str, str]:
    """Return the result of :func:`conclude` for each rule."""
    stories = [Story(tracer) for tracer in trace_rules(replay.engine, rules)]
    for row, event, decisions in replay.steps(until):
        for story in stories:
            for verdict in story.tracer.verdicts:
                story.take(verdict, row.seq, event.timestamp)
            story.follow(row.seq, event, decisions)
    return {
        story.tracer.traced: conclude(story.rule, story)
        for story in stories
        if story.rule is not None
    }


def conclude(rule: BoundRule, story: Story) -> str:
    """Return one sentence that explains why a rule has fired or has not fired."""
    state, ended, last = story.tracer.state.rules.states.get(rule.id), story.ended, story.latest
    if state is None:
        fate = "the ensemble file no longer has it"
    elif state.cut:
        note = (last.note if last is not None else "").partition("\n")[0]
        fate = f"it was switched off: {note}" if note else "it was switched off permanently"
    elif rule.each is None and state.fired >= rule.repetitions:
        fate = f"it may fire {format_times(rule.repetitions)}, so its limit is reached"
    elif not state.enabled:
        fate = f"it is disabled: {_switch_text(story.switched)}"
    else:
        fate = _waiting(rule, story)
    fired = story.totals.get("fired")
    if fired is None:
        said = f"It {'has not fired so far' if ended is None else 'never fired'}: {fate}"
    else:
        when = f"at event {fired.first}"
        if fired.count > 1:
            when = f"first {when}, last at event {fired.last}"
        said = f"It fired {format_times(fired.count)} ({when}); {fate}"
    if ended is not None and (state is None or state.live):
        reason = f" ({ended[1]})" if ended[1] else ""
        said += f"; the run ended at event {ended[0]}{reason}"
    return f"{said}."


def _switch_text(switched: tuple[int, str] | None) -> str:
    if switched is None:
        return "the file says so, and no rule enabled it"
    seq, by = switched
    return f"by {by} at event {seq}" if by else f"since event {seq}"


def _waiting(rule: BoundRule, story: Story) -> str:
    """Return why a rule that could still fire has not fired, or has not fired again."""
    times = {kind: format_times(total.count) for kind, total in story.totals.items()}
    parts = []
    if (false := story.totals.get("condition")) is not None:
        text = f"{describe_condition(rule)} was false {times['condition']}"
        if false.lowest is not None:
            one = false.lowest == false.highest
            text += f" (value {false.lowest:g}" if one else f" (values {false.lowest:g}"
            text += ")" if one else f" to {false.highest:g})"
        elif story.latest is not None and story.latest.saw:
            text += f" (last {story.latest.saw})"
        parts.append(text)
    if "no value" in times:
        last = story.latest
        if last and last.kind == "no value" and last.note:
            parts.append(f"had no value {times['no value']}: {last.note}")
        else:
            what = f" ({last.saw})" if last and last.kind == "no value" and last.saw else ""
            parts.append(f"{times['no value']} a value was missing or could not be computed{what}")
    told = {"fired", "condition", "no value", "ended", "cut", "disabled"}
    if rule.each is None:
        told.add("exhausted")  # it has fired since it was switched on again
    parts += held_back_words(
        {kind: total.count for kind, total in story.totals.items() if kind not in told},  # type: ignore[misc]
        held=story.tracer.state.rules.states[rule.id].longest,
        needed=rule.checks,
        lasts=rule.lasts,
        may_fire=_repetitions_text(rule),
    )
    if parts:
        return ", and ".join(parts)
    if "fired" in times:
        return f"no matching event ({_waits_for(rule)}) after that"
    if "disabled" in times:
        return f"it was disabled {times['disabled']} when its trigger matched"
    if "ended" in times:
        return "its trigger matched only after the run had ended"
    return f"it was never triggered: {_explain_no_event(rule, story.tracer)}"


def _explain_no_event(rule: BoundRule, tracer: RuleTracer) -> str:
    """Describe what happened instead of an event that would have triggered the rule."""
    trigger = rule.trigger
    if trigger.metric is not None:
        return f"metric {trigger.metric} was never updated"
    if trigger.every is not None:
        return f"{format_duration(trigger.every)} did not pass"
    elsewhere: Counter[str] = Counter()
    here: Counter[str] = Counter()
    for (name, group), count in tracer.happened.items():
        # The event was for another rule of this group, such as one for an idle slice.
        if group is None:
            continue
        if name in trigger.events and rule.groups and group not in rule.groups:
            elsewhere[group] += count
        if group == trigger.group and name.startswith("job-"):
            here[name] += count
    said = f"no {_waits_for(rule)} occurred"
    still_open, ever = tracer.state.coverage(rule, None)
    if "idle" in trigger.events and ever:
        which = f" for any {' and '.join(rule.each)}" if isinstance(rule.each, tuple) else ""
        jobs = f"{count_of(still_open, 'job')} of {ever} " + ("is" if still_open == 1 else "are")
        left = f": {jobs} still open" if still_open else ""
        return f"{said}{which}{left}"
    if elsewhere:
        others = ", ".join(f"{group} {count}" for group, count in elsewhere.most_common(_NAMED))
        return f"{said}, only for other groups: {others}"
    if trigger.group is not None and trigger.group not in tracer.state.table.groups:
        return f"{said}: this group does not exist"
    if trigger.group is not None and not here:
        return f"{said}: no job of {trigger.group} had any event"
    ends = {name: here[name] for name in ("job-success", "job-fail", "job-cancel") if here[name]}
    if ends:
        told = ", ".join(f"{name} {count}" for name, count in ends.items())
        return f"{said}; its jobs only had {told}"
    return said
