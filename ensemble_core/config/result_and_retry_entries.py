"""Checks the keys ``result``, ``fail_if`` and ``retry`` of job groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.config.action_entries import MatchContext, OptionCheck, warn_of_fields_meant
from ensemble_core.config.condition_check import check_causes, check_sense
from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.statistic_names import scoped_names
from ensemble_core.errors import EnsembleError
from ensemble_core.model import conditions
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import EVENT_FIELDS, Expression, check_names, expression
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.placeholders import BUILTIN_PLACEHOLDERS
from ensemble_core.model.retry_policy import RetryPolicy
from ensemble_core.quick_dataclass import replace

#: The schema by which ``retry`` is checked, in the form of an action's options.
_RETRY = {
    "x-ensemble-retries": True,
    "properties": {
        "wait": {"x-ensemble": "duration", "x-ensemble-expression": True},
        "with": {"x-ensemble": "fields"},
    },
}


def bind_result(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> JobGroup:
    """Return the group with its checked ``result``."""
    given = spec.get("result")
    place = (*path, "result")
    if not isinstance(given, dict) or not context.is_valid(place):
        return group
    known = _known_names(context, group)
    found: dict[str, Expression] = {}
    reads: set[str] = set()
    for name, text in given.items():
        inner = (*place, name)
        found[name] = expression("0")  # even if invalid, for references to it
        if not context.is_valid(inner):
            continue
        taken = _existing_meaning(group, name)
        if taken is not None:
            context.report(
                inner,
                f"{name!r} is {taken}, so no result can have this name",
                hint="choose another name",
                code="bad-name",
                where=context.document.at_key(inner),
            )
            continue
        try:
            parsed = expression(str(text), texts=True)
            scoped = scoped_names(context, inner, parsed.names, known, (group.name,), of_job=True)
            if scoped is None:
                continue
            bare = parsed.names - scoped
            _check_bare(context, group, bare - known)
            check_names(parsed.text, bare, known)
            if parsed.metrics:
                raise EnsembleError(
                    f"a result belongs to one job, but {min(parsed.metrics)!r} belongs to a group",
                    hint="use a statistic over the job's values, such as last.energy",
                    code="bad-condition",
                )
        except EnsembleError as error:
            context.attach(error, inner)
            continue
        matched = MatchContext(own=known, group=group.name)
        warn_of_fields_meant(context, inner, parsed.text, bare, matched)
        found[name] = parsed
        reads |= scoped
    return replace(group, result=found, reads=group.reads | reads)


def _existing_meaning(group: JobGroup, name: str) -> str | None:
    """Return what a name already means, or ``None`` if the name is free."""
    if name in group.names:
        return "a parameter"
    if name in EVENT_FIELDS or name in BUILTIN_PLACEHOLDERS:
        return "a field of events"
    return None


def _check_bare(context: Context, group: JobGroup, names: frozenset[str]) -> None:
    """Report columns without a statistic, because a job has many values of a column."""
    columns = context.variables(group.name)
    for name in sorted(names & (columns or frozenset())):
        raise EnsembleError(
            f"{name!r} is a column: it has many values for each job, but one is needed",
            hint=f"write last.{name}, mean.{name} or another statistic of its rows",
            code="bad-condition",
        )


#: Fields of a job's end that ``fail_if`` decides itself.
_DECIDED = frozenset({"cause", "cancelled_by", "type", "severity", "note"})


def bind_fail_if(
    context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup
) -> JobGroup:
    """Return the group with its checked ``fail_if``."""
    place = (*path, "fail_if")
    if spec.get("fail_if") is None or not context.is_valid(place):
        return group
    known = (EVENT_FIELDS - _DECIDED) | context.parameters(group.name)
    try:
        condition = conditions.parse(spec["fail_if"], has_value=False, key="fail_if")
        conditions.check_nan(condition, known)
        scoped = scoped_names(context, place, condition.names, known, (group.name,), of_job=True)
        if scoped is None:
            return group
        bare = condition.names - scoped
        _check_bare(context, group, bare - known)
        for name in sorted(bare & group.result.keys()):
            raise EnsembleError(
                f"{name!r} is a result, and only jobs that succeed have results",
                hint=f"write its expression: {group.result[name].text}",
                code="bad-condition",
            )
        for name in sorted(bare & _DECIDED - known):
            raise EnsembleError(
                f"{name!r} has no value yet: 'fail_if' decides about jobs that exited with code 0",
                hint="write a condition on the job's values, such as isnan(last.energy); "
                "'retry' and rules on 'job-fail' can use the cause",
                code="bad-condition",
            )
        check_names(condition.text, bare, known)
    except EnsembleError as error:
        context.attach(error, place)
        return group
    for text in sorted(condition.metrics):
        context.metric(text, place)
    check_sense(context, place, condition, scoped)
    context.warn_of_kinds(place, condition, group.name)
    matched = MatchContext(own=EVENT_FIELDS, group=group.name)
    warn_of_fields_meant(context, place, condition.text, bare, matched)
    return replace(group, fail_if=condition, reads=group.reads | scoped)


def _known_names(context: Context, group: JobGroup) -> frozenset[str]:
    return EVENT_FIELDS | context.parameters(group.name)


def bind_retry(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> JobGroup:
    """Return the group with its checked ``retry``."""
    given = spec.get("retry")
    place = (*path, "retry")
    if not isinstance(given, dict) or not context.is_valid(place):
        return group
    known = _known_names(context, group)
    over = (group.name,)
    matched = MatchContext(
        "retry", True, known, own=known, group=group.name, over=over, of_job=True
    )
    check = OptionCheck(context, _RETRY, matched)
    before = len(context.errors)
    options = check.options(place, {key: given[key] for key in ("wait", "with") if key in given})
    condition: Condition | None = None
    if "when" in given:
        inner = (*place, "when")
        try:
            condition = conditions.parse(given["when"], has_value=False)
            scoped = check.scoped(inner, condition.names)
            if scoped is None:
                return group
            check_names(condition.text, condition.names - scoped, known)
            check_causes(context, inner, condition, group.name)
            context.warn_of_kinds(inner, condition, group.name)
            warn_of_fields_meant(context, inner, condition.text, condition.names, matched)
        except EnsembleError as error:
            context.attach(error, inner)
            return group
        for text in sorted(condition.metrics):
            context.metric(text, inner)
    if len(context.errors) > before:
        return group
    policy = RetryPolicy(
        times=int(given["times"]),
        when=condition,
        wait=options.get("wait") or 0.0,
        fields=options.get("with") or {},
        resume=given.get("continue") is True,
        reads=frozenset(check.reads),
        metrics=frozenset(check.metrics) | (condition.metrics if condition else frozenset()),
    )
    return replace(group, retry=policy, reads=group.reads | policy.reads)
