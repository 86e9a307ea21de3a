"""Checks rules and converts each of them to a :class:`BoundRule`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core.config.action_entries import MatchContext, bind_action
from ensemble_core.config.condition_check import bind_condition
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.firing_limits import FiringLimits, listed_actions, read_firing_limits
from ensemble_core.config.placeholder_check import words_of
from ensemble_core.config.trigger_entries import BoundTrigger, bind_trigger
from ensemble_core.metrics.store import is_gauge, parse_path, split_filter
from ensemble_core.model.conditions import Condition
from ensemble_core.model.filters import split_name
from ensemble_core.model.rules import UNLIMITED, BoundAction, BoundRule
from ensemble_core.model.tables import table_column


def bind_rule(
    context: Context, path: Path, spec: Mapping[str, Any], default_id: str
) -> BoundRule | None:
    """Return the checked rule, or ``None`` after reporting errors."""
    before = len(context.errors)
    bound = bind_trigger(context, path, spec)
    condition, scoped = bind_condition(context, path, spec, bound)
    matched = bound.matched if bound else MatchContext()
    found = [
        bind_action(context, inner, one, matched)
        for inner, one in listed_actions(path, spec)
        if isinstance(one, dict)
    ]
    actions = [action for action in found if action is not None]
    limits = read_firing_limits(context, path, spec, bound.trigger if bound else None)
    if bound is None or not context.is_valid(path) or len(context.errors) > before:
        return None
    retries = _retries(context, path, spec, bound, actions, limits)
    if len(context.errors) > before:
        return None
    failures, group = _handled_failures(context, bound, condition, actions)
    name = spec.get("id", default_id)
    reads = scoped.union(*(one.reads for action in actions for one in action.flat()))
    tables = context.known.tables
    of_tables = frozenset(one for one in reads if table_column(split_name(one).path, tables))
    gauge_of = context.known.groups, context.known.rules
    of_gauges = frozenset(one for one in reads if is_gauge(one, *gauge_of))
    seen = bound.trigger.group
    if bound.trigger.events in (("observed",), ("silent",)) and not context.observed(seen):
        whose = "no job group has an" if seen is None else f"the job group {seen!r} has no"
        context.warnings.append(
            f"rule {name!r} waits for observed rows, but {whose} observer ('observe:')"
        )
    _warn_of_columns(context, name, spec, bound)
    return BoundRule(
        id=name,
        trigger=bound.trigger,
        actions=tuple(actions),
        condition=condition,
        repetitions=limits.repetitions,
        backoff=limits.backoff,
        backoff_seconds=limits.backoff_seconds,
        each=bound.each or ("job" if retries else None),
        checks=limits.checks,
        lasts=limits.lasts,
        crosses=limits.crosses,
        at_first=limits.at_first,
        enabled=spec.get("enabled", True),
        queue_scope=spec.get("scope") == "queue",
        reads=reads - of_tables - of_gauges,
        of_tables=of_tables,
        of_gauges=of_gauges,
        reads_of=bound.whole_group,
        retries=retries,
        label=bound.label,
        concerns_failure=bool(failures),
        failure_group=group,
        failures=failures,
        spec=copy.deepcopy(dict(spec)),
        location=context.document.at(path),
    )


def _warn_of_columns(
    context: Context, name: str, spec: Mapping[str, Any], bound: BoundTrigger
) -> None:
    """Warn about a name that is both a column and a parameter."""
    group = bound.trigger.group
    columns = bound.matched.observed and context.variables(group)
    for both in sorted(context.parameters(group) & set(columns or ())):
        if both in words_of([spec.get("when"), spec.get("crosses"), spec.get("action")]):
            context.warnings.append(
                f"rule {name!r} uses {both!r}, which is both a parameter and a column: the "
                f"parameter is used; last.{both} is the column"
            )


#: Triggers that fire when an attempt ends. Only these allow a retry.
_ENDS = frozenset({"job-success", "job-fail", "job-cancel", "job-finish", "job-clean"})


def _retries(
    context: Context,
    path: Path,
    spec: Mapping[str, Any],
    bound: BoundTrigger,
    actions: Iterable[BoundAction],
    limits: FiringLimits,
) -> bool:
    """Return True if an action of the rule may retry the event's job.

    Report a retry that the trigger or the firing limits do not allow.
    """
    retrying = [inner.name for one in actions for inner in one.flat() if inner.retries]
    if not retrying:
        return False
    if not _ENDS.issuperset(bound.trigger.events):
        context.report(
            (*path, "trigger"),
            f"{retrying[0]!r} retries a job that has ended, but the trigger {spec['trigger']!r} "
            "does not report ends of jobs",
            hint=f"use one of these triggers: {', '.join(sorted(_ENDS))}",
            code="no-job",
        )
    if limits.repetitions == UNLIMITED:
        context.report(
            path,
            f"{retrying[0]!r} has no limit: a job that always fails would be retried forever",
            hint="limit the retries per job, for example with 'repetitions: 3'",
            code="bad-pace",
        )
    return True


#: The outcomes that count as failures for each counter of failures.
_COUNTED: Mapping[str, frozenset[str]] = {
    "failed": frozenset({"failed"}),
    "cancelled": frozenset({"cancelled"}),
    "lost": frozenset({"failed", "cancelled"}),
}


def _handled_failures(
    context: Context,
    bound: BoundTrigger,
    condition: Condition | None,
    actions: Iterable[BoundAction],
) -> tuple[frozenset[str], str | None]:
    """Return which outcomes the rule handles if they are failures, and the group of these jobs
    (``None``: any group).
    """
    groups: set[str | None] = set()
    handled: set[str] = set()
    by_outcome = "job-ended" in bound.about and any(
        context.registry.actions[inner.name].by_outcome
        for action in actions
        for inner in action.flat()
    )
    if "job-failed" in bound.about or by_outcome:
        groups.add(bound.trigger.group)
        handled |= _COUNTED["lost"]
    paths = [bound.path] if bound.path is not None else []
    if condition is not None:
        known = context.known
        paths += [parse_path(text, known.groups, known.statistics) for text in condition.metrics]
        group = bound.path.group or None if bound.path else bound.trigger.group
        of_end = {"exit_code", "status", "cause", "cancelled_by"}
        of_end -= context.parameters(group) | bound.record.fields
        if condition.names & of_end:
            groups.add(group)
            handled |= _COUNTED["lost"]
        for counter, outcomes in _COUNTED.items():
            if f"count.{counter}" in condition.names:
                groups.add(group)
                handled |= outcomes
    for path in paths:
        for counter, outcomes in _COUNTED.items():
            if path.group and split_filter(path.variable)[0].endswith(counter):
                groups.add(path.group)
                handled |= outcomes
    return frozenset(handled), groups.pop() if len(groups) == 1 else None
