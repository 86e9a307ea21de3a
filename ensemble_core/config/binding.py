"""Rule binding: the semantic checks that make a :class:`BoundRule` of a mapping.

Called by the loader for each entry under ``rules:``, and by the binder for rules that users'
functions return while a run is under way. The rule's trigger is bound in ``woken``, its condition
in ``when``, its actions in ``actions``; how often it fires is read in ``pace``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core.config.actions import Occasion, bind_action
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.pace import Pace, listed_actions, read_pace
from ensemble_core.config.placeholders import words_of
from ensemble_core.config.when import bind_condition
from ensemble_core.config.woken import Woken, bind_trigger
from ensemble_core.metrics.store import is_gauge, parse_path
from ensemble_core.model.conditions import Condition
from ensemble_core.model.filters import spoken
from ensemble_core.model.rules import UNLIMITED, BoundAction, BoundRule
from ensemble_core.model.tables import table_column

__all__ = ["bind_rule"]


def bind_rule(
    context: Context, path: Path, spec: Mapping[str, Any], default_id: str
) -> BoundRule | None:
    """The checked rule; ``None`` where it has errors, which were reported."""
    before = len(context.errors)
    woken = bind_trigger(context, path, spec)
    condition, scoped = bind_condition(context, path, spec, woken)
    occasion = woken.occasion if woken else Occasion()
    bound = [
        bind_action(context, inner, one, occasion)
        for inner, one in listed_actions(path, spec)
        if isinstance(one, dict)
    ]
    actions = [action for action in bound if action is not None]
    pace = read_pace(context, path, spec, woken.trigger if woken else None)
    if woken is None or not context.intact(path) or len(context.errors) > before:
        return None
    retries = _retries(context, path, spec, woken, actions, pace)
    if len(context.errors) > before:
        return None
    concerns, group = _concerns_failure(context, woken, condition, actions)
    name = spec.get("id", default_id)
    reads = scoped.union(*(one.reads for action in actions for one in action.flat()))
    tables = context.known.tables
    of_tables = frozenset(one for one in reads if table_column(spoken(one).path, tables))
    gauge_of = context.known.groups, context.known.rules
    of_gauges = frozenset(one for one in reads if is_gauge(one, *gauge_of))
    seen = woken.trigger.group
    if woken.trigger.wakes in (("observed",), ("silent",)) and not context.observed(seen):
        whose = "no job group has an" if seen is None else f"the job group {seen!r} has no"
        context.warnings.append(
            f"rule {name!r} waits for what observers read, and {whose} observer ('observe:')"
        )
    _warn_of_columns(context, name, spec, woken)
    return BoundRule(
        id=name,
        trigger=woken.trigger,
        actions=tuple(actions),
        condition=condition,
        repetitions=pace.repetitions,
        backoff=pace.backoff,
        backoff_seconds=pace.backoff_seconds,
        each=woken.each or ("job" if retries else None),
        looks=pace.looks,
        enabled=spec.get("enabled", True),
        queue_scope=spec.get("scope") == "queue",
        reads=reads - of_tables - of_gauges,
        of_tables=of_tables,
        of_gauges=of_gauges,
        reads_of=woken.whole_group,
        retries=retries,
        label=woken.label,
        concerns_failure=concerns,
        failure_group=group,
        spec=copy.deepcopy(dict(spec)),
        location=context.document.at(path),
    )


def _warn_of_columns(context: Context, name: str, spec: Mapping[str, Any], woken: Woken) -> None:
    """Warn of a name that a row's column and a parameter both have."""
    group = woken.trigger.group
    columns = woken.occasion.observed and context.variables(group)
    for both in sorted(context.parameters(group) & set(columns or ())):
        if both in words_of([spec.get("when"), spec.get("action")]):
            context.warnings.append(
                f"rule {name!r} speaks of {both!r}, which is a parameter and a column: the "
                f"parameter is meant; last.{both} is the column"
            )


#: Triggers of the end of an attempt, under which it may be submitted again.
_ENDS = frozenset({"job-success", "job-fail", "job-cancel", "job-finish", "job-clean"})


def _retries(
    context: Context,
    path: Path,
    spec: Mapping[str, Any],
    woken: Woken,
    actions: Iterable[BoundAction],
    pace: Pace,
) -> bool:
    """True if the rule may submit the event's job again. Reports it where that cannot be."""
    retrying = [inner.name for one in actions for inner in one.flat() if inner.retries]
    if not retrying:
        return False
    if not _ENDS.issuperset(woken.trigger.wakes):
        context.report(
            (*path, "trigger"),
            f"{retrying[0]!r} submits a job again that has ended, and the trigger "
            f"{spec['trigger']!r} is not about that",
            hint=f"one of {', '.join(sorted(_ENDS))} is",
            code="no-job",
        )
    if pace.repetitions == UNLIMITED:
        context.report(
            path,
            f"{retrying[0]!r} without a limit: a job that fails each time would never be over",
            hint="write how often at most for each job: repetitions: 3",
            code="bad-pace",
        )
    return True


def _concerns_failure(
    context: Context,
    woken: Woken,
    condition: Condition | None,
    actions: Iterable[BoundAction],
) -> tuple[bool, str | None]:
    """True if failed jobs are this rule's business, and of which group (``None``: of any)."""
    groups: set[str | None] = set()
    by_outcome = "job-ended" in woken.about and any(
        context.registry.actions[inner.name].by_outcome
        for action in actions
        for inner in action.flat()
    )
    if "job-failed" in woken.about or by_outcome:
        groups.add(woken.trigger.group)
    paths = [woken.path] if woken.path is not None else []
    if condition is not None:
        known = context.known
        paths += [parse_path(text, known.groups, known.statistics) for text in condition.metrics]
        group = woken.path.group or None if woken.path else woken.trigger.group
        told = {"exit_code", "status", "cause"} - context.parameters(group) - woken.record.fields
        if condition.names & {*told, "count.failed", "count.lost"}:
            groups.add(group)
    for path in paths:
        if path.group and path.variable.endswith(("failed", "lost")):
            groups.add(path.group)
    return bool(groups), groups.pop() if len(groups) == 1 else None
