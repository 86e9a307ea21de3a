"""Explains why a rule did not fire, with words for the engine's verdicts.

``ensemble why``, the summary of a run and the dashboard use them. A test checks that every verdict
has words.
"""

from __future__ import annotations

from collections.abc import Mapping

from ensemble_core.display.text_style import count_of, format_duration, format_times, printable
from ensemble_core.engine.report import RuleReport
from ensemble_core.engine.rule_evaluation import VerdictKind
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import format_number

_NUMBER = late_pattern(r"[+-]?[\d.]+(?:[eE][+-]?\d+)?")


def why_not_fired(rule: RuleReport) -> str:
    """Explain why a rule never fired."""
    if rule.state == "never triggered":
        return "never triggered: it saw no matching event"
    times = f"triggered {count_of(rule.triggered, 'time')}"
    if rule.state == "condition false":
        missing = rule.held_back.get("no value", 0) == rule.triggered - rule.refused
        was = "had no result" if missing else "was false"
        when = f"{rule.when!r} {was}" if rule.when else f"its condition {was}"
        if _NUMBER.fullmatch(rule.when):
            when = f"the value was never {rule.when}"
        if rule.last_value is not None:
            seen = f"; the last value was {format_number(rule.last_value)}"
        elif rule.last_seen:
            seen = f"; it last saw {rule.last_seen}"
        else:
            seen = ""
        if not rule.refused:
            return f"{times}, but {when}{seen}"
        left = rule.triggered - rule.refused
        if left <= 0 or not rule.when:
            return f"{times}, but its trigger did not match"
        refused = f"its trigger did not match {format_times(rule.refused)}"
        return f"{times}, but {refused}, and {when} {format_times(left)}{seen}"
    if rule.state == "held back":
        words = held_back_words(
            rule.held_back,  # type: ignore[arg-type]
            held=rule.longest,
            needed=rule.checks,
            lasts=rule.lasts,
            may_fire=format_times(rule.repetitions),
        )
        return f"{times}, but {', and '.join(words)}"
    if rule.state == "cut":
        return (
            f"switched off: {printable(rule.cut) or 'it was part of an endless chain of firings'}"
        )
    if rule.state == "disabled":
        return "disabled" + (f" ({times} before)" if rule.triggered else "")
    return rule.state


def held_text(held: float, needed: int, lasts: float) -> str:
    """Return how often in a row, or for how long, a condition was true, and what its rule needs."""
    if not lasts:
        return f"{held:g} of {needed} times in a row"
    return f"for {format_duration(held)} of {format_duration(lasts)}"


def held_back_words(
    counts: Mapping[VerdictKind, int], *, held: float, needed: int, lasts: float, may_fire: str
) -> list[str]:
    """Return a clause for each verdict that kept a rule from firing, with how often it did.

    ``held``: how many checks in a row the condition was true at most, of ``needed``; or, if it must
    be true for some time (``lasts``), for how many seconds. ``may_fire``: how often the rule may
    fire.
    """
    words: Mapping[VerdictKind, str] = {
        "fired": "",
        "condition": "its condition was false {times}",
        "no value": "{times} a value was missing or could not be computed",
        "trigger": "its trigger did not match {times}",
        "checks": "its condition was true " + held_text(held, needed, lasts),
        "crossed": "{times} its condition was true already, and it fires only when it becomes true",
        "backoff": "its backoff held it back {times}",
        "retried": "{times} another rule or the group had already retried the job",
        "exhausted": f"matched {{times}} more, but it may fire only {may_fire}",
        "disabled": "it was disabled {times} when its trigger matched",
        "cut": "it was switched off permanently",
    }
    return [
        text.replace("{times}", format_times(counts[verdict]))
        for verdict, text in words.items()
        if counts.get(verdict) and text
    ]
