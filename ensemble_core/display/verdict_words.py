"""Words for the engine's verdicts: why a rule that was triggered did not fire.

``ensemble why``, the summary of a run and the dashboard use them. A test checks that every verdict
has words.
"""

from __future__ import annotations

from collections.abc import Mapping

from ensemble_core.display.text_style import format_duration, format_times
from ensemble_core.engine.rule_evaluation import VerdictKind


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
