"""Warnings about rules as a whole: what can never be, of what the file says by itself rightly.

Called by the loader when all rules are bound and nothing is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ensemble_core.config.context import Context
from ensemble_core.metrics.store import parse_path
from ensemble_core.model.rules import BoundAction, BoundRule

__all__ = [
    "actions_of",
    "warn_of_counts",
    "warn_of_endings",
    "warn_of_no_heartbeat",
    "warn_of_submits",
]


def warn_of_submits(context: Context, rules: Sequence[BoundRule]) -> None:
    """Groups that nobody submits."""
    chosen = {each.group for each in context.known.generators.values() if each is not None}
    if context.known.functions:
        return  # a function may submit anything
    submitted: set[object] = set()
    for action in actions_of(rules):
        if action.plan is None:
            return  # so may a slow action
        record = context.registry.actions[action.name]
        for key, schema in record.options.get("properties", {}).items():
            if "submit" in record.needs and schema.get("x-ensemble") == "group":
                named = action.options.get(key)
                submitted.update(named if isinstance(named, list) else (named,))
    for group in context.known.groups:
        if group not in {*submitted, *chosen} and None not in submitted:
            context.warnings.append(f"no rule submits the job group {group!r}")


def warn_of_endings(context: Context, rules: Sequence[BoundRule]) -> None:
    """Several instances that are on from the start and that may each end the run."""
    ending = {
        rule.instance: rule.location
        for rule in rules
        if rule.instance is not None
        and context.instances[rule.instance].enabled
        and any(action.name == "terminate" for one in rule.actions for action in one.flat())
    }
    if len(ending) > 1:
        context.warnings.append(
            f"{list(ending.values())[-1]}: the instances {' and '.join(map(repr, ending))} may "
            "both end the run, whichever is first; enabled: false and 'switch' let one follow the "
            "other"
        )


def warn_of_counts(context: Context, rules: Sequence[BoundRule]) -> None:
    """A count that no number of jobs can bring, where it is known how many there can be."""
    most = _most_jobs(context, rules)
    for rule in rules:
        comparison = rule.condition.comparison if rule.condition else None
        if rule.trigger.metric is None or comparison is None or not most:
            continue
        path = parse_path(rule.trigger.metric, context.known.groups, context.known.statistics)
        sign, number = comparison
        jobs = most.get(path.group, math.inf) if path.kind == "count" else math.inf
        if (sign in ("==", ">=") and number > jobs) or (sign == ">" and number >= jobs):
            context.warnings.append(
                f"rule {rule.id!r} waits for {path.text} {sign} {number:g}, and at most "
                f"{jobs} jobs of {path.group!r} are ever submitted"
            )


def _most_jobs(context: Context, rules: Sequence[BoundRule]) -> Mapping[str, int]:
    """The most jobs that there can be of each group; empty where that is not known."""
    if context.known.functions or context.known.changing:
        return {}
    most = dict.fromkeys(context.known.groups, 0)
    for rule in rules:
        for action in (each for one in rule.actions for each in one.flat()):
            record = context.registry.actions[action.name]
            if action.plan is not None and "submit" not in record.needs:
                continue
            if action.name != "submit" or set(action.options) - {"label"}:
                return {}
            label = action.options.get("label")
            for name in most if label is None else (label,):
                group = context.known.groups[name]
                most[name] += rule.repetitions * (group.size if group is not None else 0)
    groups = [group for group in context.known.groups.values() if group is not None]
    again = any(entry.retry for group in groups for entry in (group, *group.more))
    return {} if again or context.known.generators else most


def warn_of_no_heartbeat(context: Context, rules: Sequence[BoundRule]) -> None:
    """A metric that moves while nothing happens, and nothing that would look at it then."""
    for rule in rules:
        if rule.trigger.metric is None:
            continue
        path = parse_path(rule.trigger.metric, context.known.groups, context.known.statistics)
        waits = path.kind == "series" and path.variable == "pending"
        if waits or (path.kind == "series" and context.known.statistics[path.statistic].timed):
            context.warnings.append(
                f"rule {rule.id!r} asks for {path.text}, which moves while jobs wait, and "
                "there is no heartbeat to look at it then; set logging.heartbeat"
            )


def actions_of(rules: Iterable[BoundRule]) -> Iterator[BoundAction]:
    """The actions of these rules, and those within their options."""
    for rule in rules:
        for action in rule.actions:
            yield from action.flat()
