"""Checks the changes that an action makes to a job group (the keys ``with`` and ``parameters``).

Expressions in these changes have a value only when the rule fires, so they are checked separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.groups import change_group
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.placeholders import FIELD_PLACEHOLDER, JOB_PLACEHOLDER, placeholders
from ensemble_core.model.retry_policy import LITERAL_FIELDS

__all__ = ["check_merge", "known_at_load"]

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
