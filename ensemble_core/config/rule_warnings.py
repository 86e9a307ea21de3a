"""Warns about rules that are probably mistakes, such as a count of jobs that is never reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ensemble_core.config.context import Context
from ensemble_core.metrics.store import parse_path
from ensemble_core.model.conditions import contradiction
from ensemble_core.model.rules import BoundAction, BoundRule

#: Counts that are at most 1 for a single job, however often it is retried.
_OF_ONE_JOB = ("active", "open", "done", "lost")
#: Triggers for jobs that did not succeed. If a job is retried only by rules with these triggers,
#: its ``count.success`` is at most 1.
_WITHOUT_SUCCESS = {"job-fail", "job-lost", "job-cancel", "job-exception"}


def warn_of_submits(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about groups that no rule submits."""
    chosen = {each.group for each in context.known.generators.values() if each is not None}
    if context.known.functions:
        return  # functions can submit any group
    submitted: set[object] = set()
    for action in actions_of(rules):
        if action.plan is None:
            return  # an action's run can submit any group too
        record = context.registry.actions[action.name]
        for key, schema in record.options.get("properties", {}).items():
            if "submit" in record.needs and schema.get("x-ensemble") == "group":
                named = action.options.get(key)
                submitted.update(named if isinstance(named, list) else (named,))
    for group in context.known.groups:
        if group not in {*submitted, *chosen} and None not in submitted:
            context.warnings.append(f"no rule submits the job group {group!r}")


def warn_of_endings(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn if several enabled instances can end the run."""
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
            "both end the run; to run one after the other, use enabled: false and 'switch'"
        )


def warn_of_counts(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about a condition that requires a larger count than the run has jobs."""
    most = _most_jobs(context, rules)
    for rule in rules:
        comparison = rule.condition.comparison if rule.condition else None
        if rule.trigger.metric is None or comparison is None or not most:
            continue
        path = parse_path(rule.trigger.metric, context.known.groups, context.known.statistics)
        sign, number = comparison
        counts_jobs = path.kind == "count" and not path.variable.startswith("rows")
        jobs = most.get(path.group, math.inf) if counts_jobs else math.inf
        if (sign in ("==", ">=") and number > jobs) or (sign == ">" and number >= jobs):
            context.warnings.append(
                f"rule {rule.id!r} waits for {path.text} {sign} {number:g}, but at most {jobs} "
                f"jobs of {path.group!r} are ever submitted"
            )


def warn_of_job_counts(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about a condition that is never true because it counts only the event's job.

    The author probably meant to count the jobs of the group.
    """
    repeated = {
        rule.trigger.group
        for rule in rules
        if rule.retries and not _WITHOUT_SUCCESS.issuperset(rule.trigger.events)
    }
    for rule in rules:
        condition = rule.condition
        if condition is None or rule.reads_of is not None or isinstance(rule.each, tuple):
            continue
        tree = condition.tree
        if tree is None:
            continue
        group = rule.trigger.group
        names = sorted(each for each in rule.reads & condition.names if each.startswith("count."))
        if len(names) > 1:  # probably a fraction of the jobs in the group
            written = " and ".join(f"all.{each}" for each in names) if group else "metric(…)"
            context.warnings.append(
                f"rule {rule.id!r} compares {' and '.join(names)}, which count only the event's "
                f"job; for the whole group, write {written}"
            )
            continue
        may_repeat = None in repeated or group in repeated or (group is None and repeated)
        counters = _OF_ONE_JOB if may_repeat else (*_OF_ONE_JOB, "success")
        for name in names:
            if name[6:] in counters and contradiction(tree, {name: 1.0}) is not None:
                written = f"all.{name}" if group else f"metric('count.GROUP.{name[6:]}')"
                context.warnings.append(
                    f"rule {rule.id!r} can never fire: {name} counts only the event's job, so it "
                    f"is at most 1; for the whole group, write {written}"
                )


def _most_jobs(context: Context, rules: Sequence[BoundRule]) -> Mapping[str, int]:
    """Return the maximum number of jobs of each group; empty if unknown."""
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


def warn_of_short_jobs(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about a condition that would have to be true for longer than a job may run."""
    for rule in rules:
        groups = rule.groups
        if rule.each != "job" or not rule.lasts or context.known.changing.intersection(groups):
            continue
        known = [group for name in groups if (group := context.known.groups.get(name))]
        limits = [entry.duration for group in known for entry in (group, *group.more)]
        if limits and all(0 < limit <= rule.lasts for limit in limits):
            context.warnings.append(
                f"rule {rule.id!r} can never fire: its condition would have to be true for "
                f"{rule.lasts:g} s in one attempt of a job, but jobs of {' and '.join(groups)} end "
                f"after {max(limits):g} s at the latest (duration)"
            )


def warn_of_no_heartbeat(context: Context, rules: Sequence[BoundRule]) -> None:
    """Warn about a rule on a metric that changes with time, if no heartbeat checks the rule."""
    for rule in rules:
        if rule.trigger.metric is None:
            continue
        path = parse_path(rule.trigger.metric, context.known.groups, context.known.statistics)
        waits = path.kind == "series" and path.variable == "pending"
        if waits or (path.kind == "series" and context.known.statistics[path.statistic].timed):
            context.warnings.append(
                f"rule {rule.id!r} uses {path.text}, which changes while jobs wait, but no "
                "heartbeat would check it; set logging.heartbeat"
            )


def actions_of(rules: Iterable[BoundRule]) -> Iterator[BoundAction]:
    """Yield the actions of these rules, including nested ones."""
    for rule in rules:
        for action in rule.actions:
            yield from action.flat()
