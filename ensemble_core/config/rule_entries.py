"""Checks rules and converts each of them to a :class:`BoundRule`.

The keys that limit firings are read here: ``repetitions``, ``backoff``, ``for`` and others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ensemble_core.config.action_entries import MatchContext, bind_action
from ensemble_core.config.condition_check import bind_condition
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.placeholder_check import words_of
from ensemble_core.config.trigger_entries import BoundTrigger, bind_trigger
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import is_gauge, parse_path, split_filter
from ensemble_core.model.conditions import Condition
from ensemble_core.model.durations import seconds
from ensemble_core.model.filters import split_name
from ensemble_core.model.rules import UNLIMITED, BoundAction, BoundRule, Trigger
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
        for inner, one in _listed_actions(path, spec)
        if isinstance(one, dict)
    ]
    actions = [action for action in found if action is not None]
    limits = _read_firing_limits(context, path, spec, bound.trigger if bound else None)
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
    limits: _FiringLimits,
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


class _FiringLimits(NamedTuple):
    """Limits of a rule: how often it may fire, and how long it waits after firing."""

    repetitions: int
    #: After firing, the rule skips ``backoff`` matches, or all matches for ``backoff_seconds``. One
    #: of them is 0.
    backoff: int
    backoff_seconds: float
    #: Number of consecutive checks at which the condition must be true (key ``for``).
    checks: int
    #: For how many seconds it must be true (key ``for`` with a unit). 0: ``checks`` counts.
    lasts: float
    #: Whether the rule only fires when its condition becomes true (key ``crosses``), and whether
    #: that may be at the first check (``at_first``).
    crosses: bool
    at_first: bool


def _read_firing_limits(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None
) -> _FiringLimits:
    """Return the firing limits, which are keys of the rule or of its only action."""
    actions = _listed_actions(path, spec)
    values: dict[str, tuple[Any, Path]] = {}
    for key in ("repetitions", "backoff"):
        if key in spec:
            values[key] = (spec[key], (*path, key))
        for inner, action in actions:
            place = (*inner, key)
            if not isinstance(action, dict) or key not in action:
                continue
            if key not in spec and len(actions) == 1:
                values[key] = (action[key], place)
                continue
            what, hint = f"{key!r} is set on both the rule and its action", "keep one of them"
            if key not in spec:
                what = f"{key!r} is set on one of several actions, which always run together"
                hint = "write it on the rule, next to 'trigger'"
            where = context.document.at_key(place)
            context.report(place, what, hint=hint, code="bad-pace", where=where)
    found = {key: value for key, (value, place) in values.items() if context.is_valid(place)}
    backoff = found.get("backoff", 0)
    # A run that was resumed can end more than once.
    ends = trigger is not None and "end" in trigger.events
    given = found.get("repetitions", "unlimited" if ends else 1)
    repetitions = UNLIMITED if given == "unlimited" else int(given)
    required = _required_checks(context, (*path, "for"), spec, trigger)
    crossing = _crossing(context, path, spec, trigger)
    if isinstance(backoff, str):
        wait = (
            _seconds(context, values["backoff"][1], backoff, "backoff {}", "skip {} matches") or 0.0
        )
        return _FiringLimits(repetitions, 0, wait, *required, *crossing)
    return _FiringLimits(repetitions, int(backoff), 0.0, *required, *crossing)


def _crossing(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None
) -> tuple[bool, bool]:
    """Return the values of ``crosses`` and ``at_first`` as truth values."""
    crosses, at_first = "crosses" in spec, spec.get("at_first") is True
    what = hint = ""
    place = (*path, "crosses")
    if crosses and "when" in spec:
        what, hint = "a rule has 'when' or 'crosses', not both", "join the conditions with 'and'"
    elif crosses and trigger is not None and {"start", "end"} & {*trigger.events}:
        what = f"'crosses' needs several checks, but {spec['trigger']!r} occurs once"
        hint = "write 'when' instead"
    elif "at_first" in spec and not crosses:
        place = (*path, "at_first")
        what, hint = "'at_first' needs 'crosses'", "write 'crosses' instead of 'when', or remove it"
    if what:
        where = context.document.at_key(place)
        context.report(place, what, hint=hint, code="bad-pace", where=where)
    return crosses, at_first


def _required_checks(
    context: Context, path: Path, spec: Mapping[str, Any], trigger: Trigger | None
) -> tuple[int, float]:
    """Return for how many checks, and for how many seconds, the condition must be true."""
    if "for" not in spec or not context.is_valid(path):
        return 1, 0.0
    given, where = spec["for"], context.document.at_key(path)
    regular = trigger is None or trigger.metric or trigger.every or "heartbeat" in trigger.events
    rows = trigger is not None and trigger.events == ("observed",)
    if not regular and not (rows and "each" in spec):
        hint = "use the trigger 'metric', 'heartbeat' or 'interval', or remove 'for'"
        if rows:
            hint = "add 'each: job', so that the rows of each job are checked apart"
        context.report(
            path,
            f"'for' needs consecutive checks, but rules with the trigger {spec['trigger']!r} "
            + ("check rows of several jobs" if rows else "are not checked regularly"),
            hint=hint,
            code="bad-pace",
            where=where,
        )
    if not isinstance(given, str):
        return int(given), 0.0
    found = _seconds(context, path, given, "value {} of 'for'", "count {} checks")
    if found is None:
        return 1, 0.0
    wall = context.document.data.get("limits")
    wall = wall.get("wall") if isinstance(wall, dict) else None
    if not found:
        hint = "write how long the condition must be true, such as 5m, or remove 'for'"
        context.report(path, "the time in 'for' is 0", hint=hint, code="out-of-range")
    elif found and not {"when", "crosses"} & spec.keys():
        context.report(
            path,
            "the rule has 'for', but no condition ('when') that could be true for some time",
            hint="add 'when', or use the trigger 'interval' with 'seconds'",
            code="bad-pace",
            where=where,
        )
    elif found and wall is not None and (most := _quiet_seconds(wall)) and found >= most:
        context.report(
            path,
            f"the condition would have to be true for {given}, but the run lasts at most {wall} "
            "(limits.wall), so the rule could never fire",
            hint="shorten 'for', or raise limits.wall",
            code="out-of-range",
        )
    return 1, found


def _quiet_seconds(given: object) -> float:
    """Return a duration in seconds, or 0 if it is invalid."""
    try:
        return seconds(given)
    except EnsembleError:
        return 0.0


def _listed_actions(path: Path, spec: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """Return the actions of a rule, each with its path."""
    given = spec.get("action")
    if isinstance(given, list):
        return [((*path, "action", i), one) for i, one in enumerate(given)]
    return [((*path, "action"), given)]


def _seconds(context: Context, path: Path, text: str, what: str, count: str) -> float | None:
    """Return a duration with a unit, or ``None`` after reporting an error.

    For the error: ``what`` names the value, and ``count`` says what the same number without quotes
    would do.
    """
    found = context.duration(path, text)
    if found is None and "seconds (90)" in (context.errors[-1].hint or ""):
        # Here, 90 would not mean seconds.
        unit = count.split()[-1]
        context.errors[-1].hint = f'write "90s", "10m" or "1h30m"; 90 is a number of {unit}'
    if found is not None and not text.strip()[-1:].isalpha():
        number = text.strip()
        plain = f"to {count.format(number)}, write {number} without quotes; " * number.isdecimal()
        context.report(
            path,
            f"the {what.format(repr(text))} is neither a number of {count.split()[-1]} nor a "
            "duration",
            hint=f'{plain}to wait {number} seconds, write "{number}s"',
            code="bad-duration",
        )
        return None
    return found
