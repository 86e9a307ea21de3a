"""Checks the key ``warn`` of job groups: a signal some time before a job's time limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.model.job_group import JobGroup


def read_warning(context: Context, path: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entry with its duration in seconds, or ``None`` after reporting errors."""
    if not context.is_valid((*path, "before")):
        return None
    before = context.duration((*path, "before"), given["before"], above=0)
    return None if before is None else {**given, "before": before}


def check_warning(context: Context, path: Path, spec: Mapping[str, Any], group: JobGroup) -> None:
    """Report a warning that no job can get."""
    if not group.warn or not spec.keys() & {"warn", "duration"}:
        return
    at = (*path, "warn") if spec.get("warn") else (*path, "duration")
    key, before = context.document.at_key(at), group.warn["before"]
    refused = "" if context.executor is None else context.executor.warn
    if refused and context.executor is not None:
        context.report(
            at,
            f"'warn' does not work with the executor {context.executor.name}: {refused}",
            hint="remove 'warn', and send the signal in the command: timeout --signal=USR1 50m sim",
            code="cannot-signal",
            where=key,
        )
    elif not group.duration:
        context.report(
            at,
            f"'warn' needs a time limit, but {group.name!r} has none",
            hint="add 'duration'",
            code="bad-value",
            where=key,
        )
    elif before >= group.duration:
        context.report(
            (*at, "before") if at[-1] == "warn" else at,
            f"'warn' comes {before:g} s before the time limit, but the limit of "
            f"{group.name!r} is {group.duration:g} s",
            hint="choose a shorter 'before' or a longer 'duration'",
            code="out-of-range",
        )
