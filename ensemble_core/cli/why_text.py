"""A rule and its story in words: what ``ensemble why`` says first and last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ensemble_core.cli.text_style import format_duration

if TYPE_CHECKING:
    from ensemble_core.engine.rule_trace import RuleTracer, Verdict
    from ensemble_core.model.rules import BoundRule

__all__ = ["conclude", "describe_condition", "describe_rule", "format_times"]

#: Occasions that are named where a rule was never woken.
_NAMED = 6


def format_times(count: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:,} times")


def describe_condition(rule: BoundRule) -> str:
    """The rule's condition, in quotation marks."""
    condition = rule.condition
    if condition is None:
        return "its condition"
    if condition.comparison is not None and condition.comparison[0] == "==":
        return f"'== {condition.comparison[1]:g}'"
    return repr(condition.text)


def describe_rule(rule: BoundRule) -> str:
    """What a rule waits for: ``count.sim.failed, when '> 3'; may fire 5 times``."""
    parts = [_waits_for(rule)]
    if rule.condition is not None:
        parts.append(f", when {describe_condition(rule)}")
    parts.append(f"; may fire {format_times(rule.repetitions)}")
    if rule.backoff:
        parts.append(f", skipping {rule.backoff} after each")
    if rule.backoff_seconds:
        parts.append(f", waiting {format_duration(rule.backoff_seconds)} after each")
    return "".join(parts)


def _waits_for(rule: BoundRule) -> str:
    trigger = rule.trigger
    if trigger.metric is not None:
        return f"metric {trigger.metric}"
    if trigger.every is not None:
        return f"every {format_duration(trigger.every)}"
    return " or ".join(trigger.wakes) + (f" of {trigger.group}" if trigger.group else "")


def conclude(
    rule: BoundRule,
    tracer: RuleTracer,
    *,
    kinds: Mapping[str, int],
    fired_at: Sequence[int],
    switched: tuple[int, str, str] | None,
    ended: tuple[int, str] | None,
    values: tuple[float, float] | None,
    last: Verdict | None,
) -> str:
    """One sentence on why a rule has fired, or not.

    ``kinds`` counts its verdicts, ``fired_at`` has the events of its first and last firing,
    ``switched`` how it was last enabled or disabled (event, type of decision, by which rule),
    ``ended`` when the run ended and why, ``values`` the range in which its condition was false.
    """
    state = tracer.state.rules.states.get(rule.id)
    over = ended is not None
    if state is None:
        fate = "it is no longer in the ensemble file"
    elif state.cut:
        note = (last.note if last is not None else "").partition("\n")[0]
        fate = f"it was switched off: {note}" if note else "it was switched off for good"
    elif state.fired >= rule.repetitions:
        fate = f"it may fire {format_times(rule.repetitions)}, so it is exhausted"
    elif not state.enabled:
        fate = f"it is disabled: {_how(switched)}"
    else:
        fate = _waiting(rule, tracer, kinds, values, last, over)
    if fired_at:
        when = f"at event {fired_at[0]}"
        if len(fired_at) > 1:
            when = f"first at event {fired_at[0]}, last at event {fired_at[-1]}"
        said = f"It fired {format_times(kinds.get('fired', 0))} ({when}); {fate}"
    else:
        said = f"It {'never fired' if over else 'has not fired so far'}: {fate}"
    if ended is not None and (state is None or state.live):
        reason = f" ({ended[1]})" if ended[1] else ""
        said += f"; the run ended at event {ended[0]}{reason}"
    return f"{said}."


def _how(switched: tuple[int, str, str] | None) -> str:
    if switched is None:
        return "the file says so, and no rule enabled it"
    seq, _, by = switched
    return f"rule {by} did that at event {seq}" if by else f"that was at event {seq}"


def _waiting(
    rule: BoundRule,
    tracer: RuleTracer,
    kinds: Mapping[str, int],
    values: tuple[float, float] | None,
    last: Verdict | None,
    over: bool,
) -> str:
    """Why a rule that could still fire did not, or not again."""
    looked = sum(kinds.get(kind, 0) for kind in ("condition", "no value", "trigger", "backoff"))
    if not looked:
        if kinds.get("fired"):
            return f"nothing that it waits for ({_waits_for(rule)}) happened after that"
        return f"it was never woken: {_nothing(rule, tracer)}"
    parts = []
    if kinds.get("condition"):
        text = f"{describe_condition(rule)} was false {format_times(kinds['condition'])}"
        if values is not None:
            low, high = values
            text += f" (values {low:g} to {high:g})" if low != high else f" (value {low:g})"
        elif last is not None and last.saw:
            text += f" (at last {last.saw})"
        parts.append(text)
    if kinds.get("no value"):
        what = last.saw if last is not None and last.kind == "no value" and last.saw else ""
        parts.append(
            f"{format_times(kinds['no value'])} something that it compares had no value"
            + (f" ({what})" if what else "")
        )
    if kinds.get("trigger"):
        parts.append(f"its trigger did not match {format_times(kinds['trigger'])}")
    if kinds.get("backoff"):
        parts.append(f"its backoff held it back {format_times(kinds['backoff'])}")
    return ", and ".join(parts)


def _nothing(rule: BoundRule, tracer: RuleTracer) -> str:
    """What happened instead of what the rule waits for."""
    trigger = rule.trigger
    if trigger.metric is not None:
        return f"metric {trigger.metric} was never updated"
    if trigger.every is not None:
        return f"{format_duration(trigger.every)} did not pass"
    elsewhere: Counter[str] = Counter()
    here: Counter[str] = Counter()
    for (name, group), count in tracer.happened.items():
        if name in trigger.wakes and group is not None:
            elsewhere[group] += count
        if group is not None and group == trigger.group and name.startswith("job-"):
            here[name] += count
    said = f"there was no {_waits_for(rule)}"
    if elsewhere:
        others = ", ".join(f"{group} {count}" for group, count in elsewhere.most_common(_NAMED))
        return f"{said}, only of other groups: {others}"
    if trigger.group is not None and trigger.group not in tracer.state.groups:
        return f"{said}: there is no such group"
    if trigger.group is not None and not here:
        return f"{said}: nothing happened to any job of {trigger.group}"
    ends = {name: here[name] for name in ("job-success", "job-fail", "job-cancel") if here[name]}
    if ends:
        told = ", ".join(f"{name} {count}" for name, count in ends.items())
        return f"{said}; of its jobs there were {told}"
    return said
