"""Warns about rules that trigger each other endlessly or retry the same job as another rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from ensemble_core.config.context import Context
from ensemble_core.metrics.store import parse_path
from ensemble_core.model.rules import UNLIMITED, BoundRule

#: Events that occur at most once for each job.
_EACH_JOB = frozenset(
    {
        *("job-submit", "job-sched", "job-alloc", "job-start", "job-run", "job-finish"),
        *("job-cleanup", "job-clean", "job-inactive", "job-success", "job-fail"),
        *("job-done", "job-lost"),
    }
)
#: Counts that never decrease. The next constant lists comparisons with them that are true from the
#: first job on.
_GROWING = frozenset({"submitted", "finished", "success", "failed", "done", "lost"})
_FROM_FIRST = ((">=", 0.0), (">=", 1.0), (">", 0.0))
#: Limits that do not limit how many jobs a run may submit.
_PACE = {"submits_per_second", "chain", "strict"}


def warn_of_cycles(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about rules that may submit jobs endlessly or retry the same job as another rule."""
    limits = context.document.data.get("limits") or {}
    for rule in rules:
        for_ever = rule.repetitions == UNLIMITED and not limits.keys() - _PACE
        if for_ever and "idle" in rule.trigger.events and _submits(rule):
            context.warnings.append(
                f"rule {rule.id!r} may submit jobs endlessly: its trigger is 'idle', its "
                "repetitions are unlimited and no limit ends the run; set limits.jobs"
            )
    if not limits.keys() - _PACE and not _can_stop(context, rules):
        _warn_of_submit_cycles(context, rules)
    retrying = [rule for rule in rules if rule.retries and rule.enabled]
    for one, other in combinations(retrying, 2):
        _warn_of_competing_retries(context, one, other)
    for rule in retrying:
        if sum(each.retries for action in rule.actions for each in action.flat()) > 1:
            context.warnings.append(
                f"rule {rule.id!r} retries the same job more than once per end: only the first "
                "retry counts"
            )


class _Edge(NamedTuple):
    """Edge of a graph of job groups: for each job of ``group``, ``rule`` submits jobs of
    ``submits``.
    """

    rule: str
    event: str
    group: str
    submits: str


def _can_stop(context: Context, rules: Sequence[BoundRule]) -> bool:
    """Return True if an action in the file may end the run or stop a rule."""
    if context.known.changing:
        return True
    actions = (each for rule in rules for action in rule.actions for each in action.flat())
    return any(
        each.name in ("terminate", "disable", "switch", "cancel", "custom") or each.plan is None
        for each in actions
    )


def _warn_of_submit_cycles(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about cycles of rules in which the end of each job always causes the next submit."""
    edges: dict[str, list[_Edge]] = {}
    for rule in rules:
        for edge in _edges(context, rule):
            edges.setdefault(edge.group, []).append(edge)
    over: set[str] = set()
    for group in edges:
        circle = _circle(edges, group, over)
        if circle:
            several = len({edge.rule for edge in circle}) > 1
            named = " and ".join(dict.fromkeys(repr(edge.rule) for edge in circle))
            steps = ", and ".join(
                f"{edge.event} of {edge.group!r} submits {edge.submits!r}" for edge in circle
            )
            context.warnings.append(
                f"rule{'s' * several} {named} submit{'s' * (not several)} jobs endlessly: {steps}; "
                "add a condition ('when') or repetitions, or set limits.jobs"
            )


def _circle(edges: Mapping[str, Sequence[_Edge]], first: str, over: set[str]) -> list[_Edge]:
    """Return the edges of a cycle that is reachable from the group ``first``, or an empty list.

    ``over`` has the groups visited so far.
    """
    way: list[_Edge] = []
    left = [(first, iter(edges.get(first, ())))]
    while left:
        group, onward = left[-1]
        edge = None if group in over else next(onward, None)
        if edge is None:
            over.add(group)
            left.pop()
            if way:
                way.pop()
            continue
        way.append(edge)
        there = [each for each, _ in left]
        if edge.submits in there:
            over.update(there)
            return way[there.index(edge.submits) :]
        left.append((edge.submits, iter(edges.get(edge.submits, ()))))
    return []


def _edges(context: Context, rule: BoundRule) -> Iterator[_Edge]:
    """Yield the edges for a rule that submits jobs on every match."""
    trigger, instance = rule.trigger, rule.instance
    on = rule.enabled and (instance is None or context.instances[instance].enabled)
    always = rule.repetitions == UNLIMITED or rule.each == "job"
    paced = rule.backoff or rule.backoff_seconds or rule.checks > 1
    if not on or not always or paced or trigger.match is not None:
        return
    group, event = trigger.group, ""
    if trigger.metric is not None:
        path = parse_path(trigger.metric, context.known.groups, context.known.statistics)
        sign, number = (rule.condition and rule.condition.comparison) or ("", 0.0)
        if path.kind == "count" and path.variable in _GROWING and (sign, number) in _FROM_FIRST:
            group, event = path.group, path.text
    elif rule.condition is None and len(trigger.events) == 1 and trigger.events[0] in _EACH_JOB:
        event = trigger.events[0]
    for action in rule.actions if event else ():
        if action.name != "submit" or action.options.keys() - {"label"}:
            continue
        label = action.options.get("label")
        # Without a label, the action submits the trigger's group or the group of the event's job.
        labels = [label] if label is not None else [group] if group else [*context.known.groups]
        for one in labels:
            known = context.known.groups.get(one)
            if known is not None and known.size:
                yield _Edge(rule.id, event, group or one, one)


def _submits(rule: BoundRule) -> bool:
    return any(each.submits for action in rule.actions for each in action.flat())


def _warn_of_competing_retries(context: Context, one: BoundRule, other: BoundRule) -> None:
    """Warn about two rules that can retry the same job, of which only the first one takes effect.

    There is no warning if the rules have conditions, because these usually distinguish different
    errors.
    """
    mine, yours = one.trigger.group, other.trigger.group
    if None not in (mine, yours) and mine != yours:
        return
    at_one_event = one.trigger.events == other.trigger.events
    if at_one_event and (one.condition is not None or other.condition is not None):
        return
    context.warnings.append(
        f"rules {one.id!r} and {other.id!r} can both retry the same job; the first one to fire wins"
    )
