"""Rules that meet themselves or one another: warnings of what may go on for ever, or never come.

Asked by the loader once all rules are bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ensemble_core.config.context import Context
from ensemble_core.model.rules import UNLIMITED, BoundRule

__all__ = ["warn_of_loops"]

#: Limits that do not say how much a run may submit.
_PACE = {"submits_per_second", "chain"}


def warn_of_loops(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn of rules on ``idle`` that may submit for ever, and of rules that retry at one end."""
    limits = context.document.data.get("limits") or {}
    for rule in rules:
        for_ever = rule.repetitions == UNLIMITED and not limits.keys() - _PACE
        if for_ever and "idle" in rule.trigger.wakes and _submits(rule):
            context.warnings.append(
                f"rule {rule.id!r} may submit jobs for ever: it waits for 'idle', its repetitions "
                "are unlimited, and no limit ends the run; set limits.jobs"
            )
    retrying = [rule for rule in rules if rule.retries and rule.enabled]
    for one, other in combinations(retrying, 2):
        _warn_of_two(context, one, other)
    for rule in retrying:
        if sum(each.retries for action in rule.actions for each in action.flat()) > 1:
            context.warnings.append(
                f"rule {rule.id!r} submits its job again more than once at one end: only the first "
                "retry counts"
            )


def _submits(rule: BoundRule) -> bool:
    return any(each.submits for action in rule.actions for each in action.flat())


def _warn_of_two(context: Context, one: BoundRule, other: BoundRule) -> None:
    """Of two rules that retry at one end the first to fire wins. That is how errors are told apart
    by conditions; without any, or at two events of one end, the later may never have its turn."""
    mine, yours = one.trigger.group, other.trigger.group
    if None not in (mine, yours) and mine != yours:
        return
    at_one_event = one.trigger.wakes == other.trigger.wakes
    if at_one_event and (one.condition is not None or other.condition is not None):
        return
    context.warnings.append(
        f"rules {one.id!r} and {other.id!r} may both submit a job again at one end of it: the "
        "first of them to fire, by event, then by their order, wins there, and the other is "
        "passed over"
    )
