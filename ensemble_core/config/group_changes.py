"""Changes of job groups: checks the keys ``with`` and ``parameters`` of an action, and merges them.

Expressions in these changes have a value only when the rule fires, so they are checked separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.group_entries import (
    DEFAULTS,
    MAPPINGS,
    check_whole_group,
    read_fields,
    read_observers,
)
from ensemble_core.config.schema import RESET_BY_NULL
from ensemble_core.model.evaluated_options import LITERAL_FIELDS
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.option_values import merged
from ensemble_core.model.placeholders import FIELD_PLACEHOLDER, JOB_PLACEHOLDER, placeholders
from ensemble_core.model.retry_policy import RetryPolicy
from ensemble_core.quick_dataclass import replace

#: Function that checks a text that is evaluated when the rule fires.
CheckText = Callable[[Path, str, "re.Pattern[str]"], None]


class _DeferredValue:
    """Stand-in for a value that is known only when the rule fires."""

    def __format__(self, form: str) -> str:
        return ""


_LATER = _DeferredValue()
#: Stand-in for an option, whose type only the executor knows.
_OMITTED = object()


def known_at_load(path: Path, fields: Mapping[str, Any], check: CheckText) -> dict[str, Any]:
    """Return the changes as far as they are known before the rule fires.

    An expression is left out or, inside another list or mapping than ``options``, replaced by a
    stand-in. The function ``check`` is called with each expression, and with each text that has
    placeholders.
    """
    found: dict[str, Any] = {}
    for key, value in fields.items():
        place = (*path, key)
        if key in LITERAL_FIELDS:
            found[key] = value
        elif key == "parameters":
            found[key] = _resolve(place, value, check, FIELD_PLACEHOLDER, _LATER)
        elif isinstance(value, str) and value.startswith("="):
            check(place, value, JOB_PLACEHOLDER)
        else:
            found[key] = _resolve(
                place, value, check, JOB_PLACEHOLDER, _OMITTED if key == "options" else "0"
            )
    return found


def _resolve(
    path: Path, value: Any, check: CheckText, pattern: re.Pattern[str], stand_in: object
) -> Any:
    if isinstance(value, dict):
        items = {
            k: _resolve((*path, k), item, check, pattern, stand_in) for k, item in value.items()
        }
        return {k: item for k, item in items.items() if item is not _OMITTED}
    if isinstance(value, list):
        found = [
            _resolve((*path, i), item, check, pattern, stand_in) for i, item in enumerate(value)
        ]
        return [item for item in found if item is not _OMITTED]
    if not isinstance(value, str):
        return value
    formula = value.startswith("=")
    filled = not formula and next(placeholders(value, pattern), None) is not None
    if formula or filled:
        check(path, value, pattern)
    return stand_in if formula or (filled and pattern is FIELD_PLACEHOLDER) else value


def check_merge(
    context: Context,
    path: Path,
    fields: Mapping[str, Any],
    targets: Collection[JobGroup],
    *,
    single: bool,
) -> JobGroup | None:
    """Check changes whose parameters are merged with those of an existing job.

    Return the changed group. With ``single``, the action submits a single job, so each parameter
    must have a single value.
    """
    given = fields.get("parameters") or {}
    names = {name for group in targets for name in group.names}
    for name in given:
        place: Path = (*path, "parameters", name)
        if targets and name not in names:
            first = next(iter(targets)).name
            whose = f"the job group {first!r} has no" if len(targets) == 1 else "no job group has a"
            what, where = f"{whose} parameter {name!r}", context.document.at_key(place)
            context.unknown(place, "parameter", name, names, what=what, where=where)
        elif isinstance(given[name], dict) and "function" in given[name]:
            context.report(
                place,
                f"this action cannot take the value of {name!r} from a function: functions are "
                "called only when a group is submitted",
                hint="use the action 'submit', or write a value instead of the function",
                code="bad-value",
            )
        elif given[name] is None:
            context.report(
                place,
                f"{name!r} is null, but this action needs a value of each parameter",
                hint=f"write '{name}: VALUE', or remove the line to keep the job's value",
                code="bad-value",
            )
        elif single and isinstance(given[name], (list, dict)):
            context.report(
                place,
                f"{name!r} has several values, but a retry submits a single job",
                hint=f"write '{name}: VALUE', or submit one job per value with the action 'vary'",
                code="bad-value",
            )
    for key in ("count", "replicas", "points"):
        if key in fields and (single or key == "points"):
            context.report(
                (*path, key),
                f"this action cannot change {key!r}: "
                + (
                    "a retry submits a single job"
                    if single
                    else "'parameters' determine the number of jobs"
                ),
                hint=f"remove {key!r}",
                code="bad-value",
                where=context.document.at_key((*path, key)),
            )
            return None
    if len(targets) != 1:
        return None
    (group,) = targets
    if not {*given} <= names:
        return None
    return change_group(context, path, replace(group, more=()) if group.more else group, fields)


def change_group(
    context: Context, path: Path, group: JobGroup, spec: Mapping[str, Any]
) -> JobGroup | None:
    """Return the group with the fields of ``spec``, or ``None`` after reporting errors.

    Mappings are merged with those of the group (:func:`merged`); other fields replace those of the
    group. ``None`` stands for the default of a field.
    """
    before = len(context.errors)
    fields = read_fields(context, path, spec)
    if not context.is_valid(path) or len(context.errors) > before:
        return None
    if "parameters" in fields:
        removed = [name for name, value in spec["parameters"].items() if value is None]
        fields["parameters"] = {**fields["parameters"], **dict.fromkeys(removed)}
    nulls = [name for name, value in spec.items() if value is None]
    reset = {name: DEFAULTS[name] for name in nulls if name in RESET_BY_NULL}
    if "at_once" in nulls:
        reset |= {"at_once": None, "at_once_each": ()}
    if "uses" in nulls:
        reset["uses"] = ()
    if spec.get("observe") is not None:
        _check_removed_observers(context, (*path, "observe"), spec["observe"], group)
    changed, *more = (
        _with_changes(
            context,
            path,
            _with_retry(context, path, replace(entry, **reset) if reset else entry, spec),
            fields,
            spec.get("observe"),
        )
        for entry in (group, *group.more)
    )
    if more:
        changed = replace(changed, more=tuple(more))
    for old, entry in zip((group, *group.more), (changed, *more), strict=True):
        check_whole_group(context, path, spec, entry, old)
    return changed if len(context.errors) == before else None


def _with_retry(context: Context, path: Path, group: JobGroup, spec: Mapping[str, Any]) -> JobGroup:
    """Return the group with the changes of its ``retry``; null removes it."""
    if "retry" not in spec:
        return group
    changes = spec["retry"]
    if changes is None:
        return replace(group, retry=None)
    if group.retry is None and "times" not in changes:
        context.report(
            (*path, "retry"),
            f"{group.name!r} has no 'retry' that could change",
            hint="add 'times': how often a failed job is retried",
            code="bad-value",
        )
        return group
    given: dict[str, Any] = {}
    if "times" in changes:
        given["times"] = int(changes["times"])
    if "wait" in changes:
        given["wait"] = context.duration((*path, "retry", "wait"), changes["wait"]) or 0.0
    if "continue" in changes:
        given["resume"] = bool(changes["continue"])
    policy = RetryPolicy(**given) if group.retry is None else replace(group.retry, **given)
    return replace(group, retry=policy)


def _check_removed_observers(
    context: Context, path: Path, changes: Mapping[str, Any], group: JobGroup
) -> None:
    for name, options in changes.items():
        if options is None and all(name not in entry.observe for entry in (group, *group.more)):
            context.report(
                (*path, name),
                f"null removes an observer, but {group.name!r} has no observer {name!r}",
                hint=f"write '{name}: {{}}' for an observer with its default options",
                code="bad-value",
            )


def _with_changes(
    context: Context,
    path: Path,
    group: JobGroup,
    fields: Mapping[str, Any],
    observe: Mapping[str, Any] | None,
) -> JobGroup:
    changed = dict(fields)
    for name in MAPPINGS:
        if name in fields:
            changed[name] = merged(getattr(group, name), fields[name])
    if "avoid" in fields:
        changed["avoid"] = tuple(dict.fromkeys((*group.avoid, *fields["avoid"])))
    if observe is not None:  # without the defaults of options that it does not name
        changed["observe"] = read_observers(context, path, merged(group.observe, observe))
    if "parameters" in fields and "points" not in fields:
        kept = {name: v for name, v in group.points.items() if name not in fields["parameters"]}
        changed["points"] = kept
    return replace(group, **changed)
