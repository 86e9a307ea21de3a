"""Rule binding: the semantic checks that make a :class:`BoundRule` of a mapping.

Called by the loader for each entry under ``rules:``, and by the binder for rules that users'
functions return while a run is under way.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple

from ensemble_core.config.actions import Occasion, OptionCheck, bind_action, not_asked_for
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.scoped_names import Over, scoped_names
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.store import BACKLOG, FIRINGS, MetricPath, parse_path
from ensemble_core.model import conditions
from ensemble_core.model.causes import CAUSES
from ensemble_core.model.conditions import EVENT_FIELDS, Condition
from ensemble_core.model.expressions import check_names
from ensemble_core.model.rules import BoundAction, BoundRule, Trigger
from ensemble_core.model.slips import always, never
from ensemble_core.model.tables import table_column
from ensemble_core.plugin.hookspecs import TriggerPlugin
from ensemble_core.plugin.validation import meant_occasion

__all__ = ["bind_rule"]

_RULE_KEYS = frozenset(
    {"id", "trigger", "name", "when", "action", "repetitions", "backoff", "scope", "enabled"}
)
#: Gauges that are whole numbers from 0.
_COUNTED = ("queue.", "waiting.", BACKLOG, FIRINGS)
#: What says how a job ended: of one that has not ended it has no value yet.
_OF_THE_END = frozenset({"exit_code", "status", "duration", "cause"})
#: Built-in triggers that wait for no occasion, and how a plugin's trigger says the same.
_NO_OCCASIONS = {"metric": "metric=PATH", "interval": "every=SECONDS"}


class _Woken(NamedTuple):
    """The trigger of a rule, and what is known of its occasions."""

    record: TriggerPlugin
    trigger: Trigger
    name: str | None
    path: MetricPath | None
    occasion: Occasion


def bind_rule(
    context: Context, path: Path, spec: Mapping[str, Any], default_id: str
) -> BoundRule | None:
    """The checked rule; ``None`` where it has errors, which were reported."""
    before = len(context.errors)
    woken = _trigger(context, path, spec)
    condition, scoped = _condition(context, path, spec, woken)
    occasion = woken.occasion if woken else Occasion()
    bound = [
        bind_action(context, inner, one, occasion)
        for inner, one in _listed_actions(path, spec)
        if isinstance(one, dict)
    ]
    actions = [action for action in bound if action is not None]
    repetitions, backoff, wait = _pace(context, path, spec)
    if woken is None or not context.intact(path) or len(context.errors) > before:
        return None
    concerns, group = _concerns_failure(context, woken, condition, actions)
    name = spec.get("id", default_id)
    reads = scoped.union(*(one.reads for action in actions for one in action.flat()))
    of_tables = frozenset(one for one in reads if table_column(one, context.known.tables))
    seen = woken.trigger.group
    if woken.trigger.wakes == ("observed",) and not context.observed(seen):
        whose = "no job group has an" if seen is None else f"the job group {seen!r} has no"
        context.warnings.append(
            f"rule {name!r} waits for what observers read, and {whose} observer ('observe:')"
        )
    return BoundRule(
        id=name,
        trigger=woken.trigger,
        actions=tuple(actions),
        condition=condition,
        repetitions=repetitions,
        backoff=backoff,
        backoff_seconds=wait,
        enabled=spec.get("enabled", True),
        queue_scope=spec.get("scope") == "queue",
        reads=reads - of_tables,
        of_tables=of_tables,
        reads_of=_whole_group(woken),
        label=_label(woken),
        concerns_failure=concerns,
        failure_group=group,
        spec=copy.deepcopy(dict(spec)),
        location=context.document.at(path),
    )


# -- triggers ----------------------------------------------------------------------------------


def _trigger(context: Context, path: Path, spec: Mapping[str, Any]) -> _Woken | None:
    kind = spec.get("trigger")
    if not isinstance(kind, str) or kind not in context.registry.triggers:
        return None
    record = context.registry.triggers[kind]
    name = spec.get("name") if context.intact((*path, "name")) else None
    metric: MetricPath | None = None
    named_well = True
    if record.name_means == "metric":
        if not isinstance(name, str):
            return None
        metric = context.metric(name, (*path, "name"))
        named_well = metric is not None
    elif record.name_means is not None and name is not None:
        place = (*path, "name")
        named = [((*place, i), one) for i, one in enumerate(name)] if isinstance(name, list) else []
        found = [context.group(one, at) for at, one in named or [(place, name)]]
        named_well = all(found)
    given = {key: value for key, value in spec.items() if key not in _RULE_KEYS}
    options = OptionCheck(context, record.options, Occasion()).options(path, given)
    shown = context.named(record, kind)
    required = record.options.get("required", ())
    if any(options.get(key) is None or not context.intact((*path, key)) for key in required):
        return None
    if not named_well:
        return None
    before = len(context.errors)
    trigger = context.build((*path, "trigger"), shown, lambda: record.build(name, options))
    if not isinstance(trigger, Trigger):
        if len(context.errors) == before:
            context.report(
                (*path, "trigger"),
                f"{shown} built a {type(trigger).__name__}, expected a Trigger",
                hint="tell its author",
                code="bad-trigger",
            )
        return None
    if not _can_wake(context, (*path, "trigger"), shown, record, trigger):
        return None
    _check_observed(context, path, kind, record, trigger, options)
    if metric is None and trigger.metric is not None and len(context.errors) == before:
        # The metric of a trigger that is not named by one: how many jobs have converged.
        metric = context.metric(trigger.metric, (*path, "trigger"))
        if metric is None:
            return None
    occasion = _occasion(context, kind, record, trigger, metric)
    return _Woken(record, trigger, name, metric, occasion)


def _can_wake(
    context: Context, path: Path, shown: str, record: TriggerPlugin, trigger: Trigger
) -> bool:
    """True if the trigger waits for something that can happen; else that is reported. Of an
    occasion of which nobody knows who would report it there is a warning: an executor may."""
    ways = [
        f"{way}={value!r}"
        for way in ("wakes", "metric", "every")
        if (value := getattr(trigger, way)) not in ((), None)
    ]
    if len(ways) != 1:
        named = f"names {' and '.join(ways)}" if ways else "names nothing that wakes a rule"
        context.report(
            path,
            f"{shown} {named}, expected one of wakes, metric and every",
            hint="tell its author",
            code="never-wakes",
        )
        return False
    triggers = context.registry.triggers
    for name in trigger.wakes:
        is_trigger = name in triggers or name in triggers.clashes or name == record.name
        if is_trigger and name not in _NO_OCCASIONS:
            continue
        meant = meant_occasion(name)
        if meant is None and name not in _NO_OCCASIONS:
            context.warnings.append(
                f"{shown} waits for {name!r}, and nothing that is installed is known to report "
                "that; a plugin's own event has the name of a trigger"
            )
            continue
        context.report(
            path,
            f"{shown} waits for {name!r}, which nothing ever reports",
            hint=f"did you mean {meant!r}? Tell its author"
            if meant
            else f"tell its author: a Trigger says {_NO_OCCASIONS[name]}, not wakes=({name!r},)",
            code="never-wakes",
        )
        return False
    return True


def _check_observed(
    context: Context,
    path: Path,
    kind: str,
    record: TriggerPlugin,
    trigger: Trigger,
    options: Mapping[str, Any],
) -> None:
    """Report a trigger whose group has no observer that yields what it needs."""
    needs = record.needs_variables
    place = (*path, "name" if trigger.group is not None else "trigger")
    observer = record.needs_observer
    if observer is not None and not context.observed(trigger.group, observer):
        whose = "no job group has" if trigger.group is None else f"{trigger.group!r} has not"
        context.report(
            place,
            f"{kind!r} waits for what the observer {observer!r} reads, and {whose} that observer",
            hint=f"add it to the job group: observe: {{{observer}: {{}}}}",
            code="not-observed",
        )
        return
    if needs is None:
        return
    wanted = context.names(needs, options, f"trigger {kind!r}: its 'needs_variables'")
    for name in sorted(wanted or ()):
        hint = context.why_not(trigger.group, name)
        if hint is not None:
            whose = "any job group" if trigger.group is None else f"the job group {trigger.group!r}"
            context.report(
                place,
                f"{kind!r} needs {name!r}, and no observer of {whose} yields it",
                hint=hint or "give the job group an observer that does ('observe:')",
                code="not-observed",
            )
            return


def _about(context: Context, trigger: Trigger) -> set[str]:
    """What the events are about that the trigger waits for; a plugin's own are about jobs."""
    triggers = context.registry.triggers
    return {triggers[name].about if name in triggers else "job" for name in trigger.wakes}


def _occasion(
    context: Context, kind: str, record: TriggerPlugin, trigger: Trigger, metric: MetricPath | None
) -> Occasion:
    group = metric.group or None if metric else trigger.group
    about, observed = _about(context, trigger), "observed" in trigger.wakes
    if metric is not None:
        has_job = bool(metric.group)
    else:
        has_job = trigger.every is None and about != {"run"}
    known: frozenset[str] = frozenset({"timestamp"})
    if has_job or metric is not None:
        known = EVENT_FIELDS | context.parameters(group)
        if about == {"job-begun"}:
            known -= _OF_THE_END - context.parameters(group)
    known |= record.fields
    if metric is not None:
        known |= {"value"}
    variables: frozenset[str] | None = frozenset()
    if observed:
        known |= {"clock", "observer"}
        variables = context.variables(group)
    names = None if "*" in record.fields or variables is None else known | variables
    return Occasion(
        kind,
        has_job,
        names,
        own=known,
        observed=observed,
        group=group,
        over=_over(trigger, metric, has_job),
    )


def _over(trigger: Trigger, metric: MetricPath | None, has_job: bool) -> Over:
    """Which groups' jobs ``STAT.NAME`` is over."""
    if metric is not None:
        return (metric.group,) if metric.group else ()
    return (trigger.group,) if has_job or trigger.group is not None else ()


def _whole_group(woken: _Woken) -> str | None:
    """The group whose metrics ``STAT.NAME`` is, where it is over no single job."""
    over = woken.occasion.over
    return over[0] if over and (woken.path is not None or not woken.occasion.job) else None


def _label(woken: _Woken) -> str:
    if woken.path is not None and woken.record.name_means == "metric":
        return woken.path.text
    if woken.trigger.every is not None:
        return f"{woken.record.name} {woken.trigger.every:g}s"
    groups = woken.trigger.groups or ((woken.name,) if woken.name else ())
    return f"{woken.record.name} ({', '.join(groups)})" if groups else woken.record.name


# -- conditions --------------------------------------------------------------------------------


def _condition(
    context: Context, path: Path, spec: Mapping[str, Any], woken: _Woken | None
) -> tuple[Condition | None, frozenset[str]]:
    """The checked condition, and the ``STAT.NAME`` that it speaks of."""
    place = (*path, "when")
    scoped: frozenset[str] = frozenset()
    if "when" not in spec or not context.intact(place):
        return None, frozenset()
    when = spec["when"]
    names = woken.occasion.names if woken else None
    has_value = woken is None or woken.path is not None
    try:
        condition = conditions.parse(when, has_value=has_value)
        plain = condition.names
        if woken is not None:
            found = scoped_names(context, place, plain, names, woken.occasion.over)
            if found is None:
                return None, frozenset()
            scoped = found
            plain -= scoped
            if not_asked_for(context, place, plain, woken.occasion):
                return None, frozenset()
        if names is not None:
            check_names(condition.text, plain, {*names, "value"} if has_value else names)
    except EnsembleError as error:
        context.attach(error, place)
        return None, frozenset()
    lacks = woken.record.lacks if woken else {}
    for name in sorted(condition.names & lacks.keys()):
        context.report(
            place,
            f"{name!r} in {condition.text!r} is in no event of {spec['trigger']!r}",
            hint=lacks[name],
            code="never-holds",
            where=context.document.at_text(place, name),
        )
    for text in sorted(condition.metrics):
        context.metric(text, place)
    if woken is not None and woken.path is not None:
        _check_possible(context, place, condition, woken.path)
    if woken is not None and not woken.occasion.observed:
        _check_causes(context, place, condition, woken.occasion.group)
    if condition.tree is not None:
        impossible, certain = never(condition.tree), always(condition.tree)
        if impossible is not None:
            context.warnings.append(f"{condition.text!r} can never hold: {impossible}")
        elif certain is not None:
            context.warnings.append(
                f"{condition.text!r} always holds: {certain} is true by itself; compare it with "
                'something, as in \'group in ("a", "b")\''
            )
    if condition.asks_metric_for_nan:
        context.report(
            place,
            f"{condition.text!r} can never hold: metrics pass over what is no finite number",
            hint="for a row that has nan, write trigger: observed with when: isnan(COLUMN)",
            code="never-holds",
        )
    return condition, scoped


def _check_possible(context: Context, path: Path, condition: Condition, metric: MetricPath) -> None:
    """Counts are whole numbers from 0: refuse what no count can ever be."""
    counts = metric.kind == "count" or metric.text.startswith(_COUNTED)
    if condition.comparison is None or not counts:
        return
    operator, number = condition.comparison
    reason = None
    if operator == "==" and number != int(number) if abs(number) < 1e300 else operator == "==":
        reason = "it is a whole number"
    elif (operator in ("==", "<=") and number < 0) or (operator == "<" and number <= 0):
        reason = "it is never below 0"
    elif operator in (">", ">=") and number > 1e300:
        reason = "it is a whole number"
    if reason is not None:
        context.report(
            path,
            f"{metric.text!r} can never be {operator} {number:g}: {reason}",
            hint="such a rule would never fire",
            code="never-holds",
        )


def _check_causes(context: Context, path: Path, condition: Condition, group: str | None) -> None:
    """What ``cause`` is compared with is one of those that there are."""
    if condition.tree is None or "cause" not in condition.names - context.parameters(group):
        return
    for node in ast.walk(condition.tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        if not any(isinstance(side, ast.Name) and side.id == "cause" for side in sides):
            continue
        lists = [side.elts for side in sides if isinstance(side, (ast.Tuple, ast.List))]
        for part in chain(sides, *lists):
            if not isinstance(part, ast.Constant) or part.value in CAUSES:
                continue
            near = get_close_matches(str(part.value), CAUSES, 1, 0.5)
            context.report(
                path,
                f"{part.value!r} in {condition.text!r} is no cause of a job's end",
                hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(CAUSES)}",
                code="no-such-cause",
                where=context.document.at_text(path, str(part.value)),
            )


# -- actions and pace --------------------------------------------------------------------------


def _pace(context: Context, path: Path, spec: Mapping[str, Any]) -> tuple[int, int, float]:
    """Repetitions, backoff in matches and backoff in seconds, from the rule or its one action."""
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
            what, hint = f"{key!r} stands on the rule and on its action", "keep one of them"
            if key not in spec:
                what = f"{key!r} on one of several actions, which are all done at each firing"
                hint = "write it on the rule, beside 'trigger'"
            where = context.document.at_key(place)
            context.report(place, what, hint=hint, code="bad-pace", where=where)
    found = {key: value for key, (value, place) in values.items() if context.intact(place)}
    backoff = found.get("backoff", 0)
    repetitions = int(found.get("repetitions", 1))
    if isinstance(backoff, str):
        return repetitions, 0, _wait(context, values["backoff"][1], backoff)
    return repetitions, int(backoff), 0.0


def _listed_actions(path: Path, spec: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """The rule's actions, each with its path."""
    given = spec.get("action")
    if isinstance(given, list):
        return [((*path, "action", i), one) for i, one in enumerate(given)]
    return [((*path, "action"), given)]


def _wait(context: Context, path: Path, text: str) -> float:
    found = context.duration(path, text)
    if found is not None and not text.strip()[-1:].isalpha():
        context.report(
            path,
            f"the backoff {text!r} says neither matches nor a time",
            hint=f'write {text.strip()} for matches to skip, or "{text.strip()}s" for seconds',
            code="bad-duration",
        )
    return found or 0.0


# -- failures ----------------------------------------------------------------------------------


def _concerns_failure(
    context: Context,
    woken: _Woken,
    condition: Condition | None,
    actions: Iterable[BoundAction],
) -> tuple[bool, str | None]:
    """True if failed jobs are this rule's business, and of which group (``None``: of any)."""
    groups: set[str | None] = set()
    about = _about(context, woken.trigger)
    by_outcome = "job-ended" in about and any(
        context.registry.actions[inner.name].by_outcome
        for action in actions
        for inner in action.flat()
    )
    if "job-failed" in about or by_outcome:
        groups.add(woken.trigger.group)
    paths = [woken.path] if woken.path is not None else []
    if condition is not None:
        known = context.known
        paths += [parse_path(text, known.groups, known.statistics) for text in condition.metrics]
        group = woken.path.group or None if woken.path else woken.trigger.group
        if condition.names & ({"exit_code", "status", "cause"} - context.parameters(group)):
            groups.add(group)
    for path in paths:
        if path.group and path.variable.endswith("failed"):
            groups.add(path.group)
    return bool(groups), groups.pop() if len(groups) == 1 else None
