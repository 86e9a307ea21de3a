"""Warns about rules that are probably mistakes.

- A rule waits for a count of jobs that is never reached, or can never fire for another reason.
- Rules trigger each other endlessly, or two rules retry the same job.
- A rule uses the name of both a printed column and a ``result``. Over several jobs, the name means
  the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.metrics.store import ROWS, parse_path
from ensemble_core.model.conditions import contradiction
from ensemble_core.model.filters import split_name
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.rules import UNLIMITED, BoundAction, BoundRule

#: Counts that are at most 1 for a single job, however often it is retried.
_OF_ONE_JOB = ("active", "open", "done", "lost")
#: Triggers for jobs that did not succeed. If a job is retried only by rules with these triggers,
#: its ``count.success`` is at most 1.
_WITHOUT_SUCCESS = {"job-fail", "job-lost", "job-cancel", "job-exception"}


def warn_of_mistakes(context: Context, rules: Sequence[BoundRule], *, heartbeat: bool) -> None:
    """Warn about rules, and about groups that no rule submits."""
    _warn_of_submits(context, rules)
    _warn_of_counts(context, rules)
    _warn_of_job_counts(context, rules)
    _warn_of_short_jobs(context, rules)
    _warn_of_endings(context, rules)
    _warn_of_cycles(context, rules)
    if not heartbeat:
        _warn_of_no_heartbeat(context, rules)


def _warn_of_submits(context: Context, rules: Sequence[BoundRule]) -> None:
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


def _warn_of_endings(context: Context, rules: Sequence[BoundRule]) -> None:
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


def _warn_of_counts(context: Context, rules: Sequence[BoundRule]) -> None:
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


def _warn_of_job_counts(context: Context, rules: Sequence[BoundRule]) -> None:
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


def _warn_of_short_jobs(context: Context, rules: Sequence[BoundRule]) -> None:
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


def _warn_of_no_heartbeat(context: Context, rules: Sequence[BoundRule]) -> None:
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


def _warn_of_cycles(context: Context, rules: Sequence[BoundRule]) -> None:
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


#: Trigger events at which the results of the jobs are known. At all others, jobs may still run.
_AFTER_RESULTS = frozenset({"idle", "job-done", "job-lost", "end"})


def warn_of_rows_meant(context: Context, path: Path, rule: BoundRule) -> None:
    """Warn once about each name in the rule at this path that is both a column and a result, if the
    rule is considered while jobs run.
    """
    if rule.trigger.metric is None and _AFTER_RESULTS.issuperset(rule.trigger.events):
        return
    used: dict[str, dict[str, str]] = {}
    groups: dict[str, dict[str, None]] = {}
    for group, written, variable in _statistics(context, rule):
        parts = _parts(context, group)
        if any(variable in part.result for part in parts) and any(
            _prints(context, part, variable) for part in parts
        ):
            used.setdefault(variable, {}).setdefault(split_name(written).path, written)
            groups.setdefault(variable, {}).setdefault(group)
    for variable, names in used.items():
        first, written = next(iter(names.items()))
        leaf = next((place for place, text in _texts(path, rule.spec) if written in text), None)
        where = rule.location if leaf is None else context.document.at_text(leaf, written)
        whose = " and ".join(map(repr, groups[variable]))
        covers = "they cover" if len(names) > 1 else "it covers"
        rows = first.removesuffix(variable) + ROWS + variable
        context.warnings.append(
            (f"{where}: " if where else "")
            + f"rule {rule.id!r} uses {' and '.join(names)} while jobs run, but {variable!r} is a "
            f"result of {whose}: {covers} the results of done jobs, not the rows that jobs print. "
            f"If you mean the rows, write {rows}. If you mean the results, use a trigger such as "
            "job-done or idle, or give the result another name"
        )


def _statistics(context: Context, rule: BoundRule) -> Iterator[tuple[str, str, str]]:
    """Yield the statistics over several jobs in the rule: group, name as written, and variable."""
    groups = rule.groups or tuple(context.known.groups)
    texts: list[str] = []
    if rule.trigger.metric is not None:
        texts.append(rule.trigger.metric)
        watched = parse_path(texts[0], context.known.groups, context.known.statistics, None).group
        groups = (watched,) if watched else ()
    for written in sorted(rule.reads):
        whole, base, _ = split_name(written)
        if whole or rule.reads_of is not None or isinstance(rule.each, tuple):
            for group in groups:
                yield group, written, base.partition(".")[2]
    if rule.condition is not None:
        texts += sorted(rule.condition.metrics)
    for action in rule.actions:
        for each in action.flat():
            texts += sorted(each.metrics)
    for text in texts:
        metric = parse_path(text, context.known.groups, context.known.statistics, None)
        if metric.kind == "series" and metric.group:
            yield metric.group, text, metric.variable


def _prints(context: Context, part: JobGroup, name: str) -> bool:
    """Return True if the jobs print this column.

    If an observer cannot list its columns, those count that the results use.
    """
    for observer, options in part.observe.items():
        columns = context.yields(context.registry.observers[observer], options)
        if columns is not None:
            if name in columns:
                return True
        elif any(
            split_name(each).path.partition(".")[2].removeprefix(ROWS) == name
            for formula in part.result.values()
            for each in formula.names
        ):
            return True
    return False


def _parts(context: Context, group: str) -> tuple[JobGroup, ...]:
    known = context.known.groups.get(group)
    return () if known is None else (known, *known.more)


def _texts(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    """Yield the texts in a part of the file with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts((*path, key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts((*path, number), inner)
