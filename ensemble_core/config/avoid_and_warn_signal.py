"""Checks two keys of job groups that not every executor supports: ``avoid`` and ``warn``.

``avoid`` has the nodes on which jobs must not run. ``warn`` sends a signal to a job some time
before its time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.job_group import JobGroup

#: Names of nodes. A placeholder can stand for any part. A job that never ran has no ``{job.host}``.
_NODES = late_pattern(r"(\{[^{}]+\}|[A-Za-z0-9._:,-])*")


def read_avoided(context: Context, path: Path, given: str | list[str]) -> tuple[str, ...] | None:
    """Return the names of the nodes, or ``None`` after reporting errors."""
    before = len(context.errors)
    names = [given] if isinstance(given, str) else given
    for number, name in enumerate(names):
        if not _NODES.fullmatch(name):
            context.report(
                path if isinstance(given, str) else (*path, number),
                f"{name!r} is not the name of a node",
                hint="write each node's name in full: avoid: [n17, n18]",
                code="bad-value",
            )
    return tuple(names) if len(context.errors) == before else None


def check_avoided(context: Context, path: Path, spec: Mapping[str, Any], *, made: bool) -> None:
    """Report ``avoid`` if the executor cannot keep jobs away from a node, or if no node is named.

    ``made``: a rule made the value. It may be empty, because a job that never ran has no node.
    """
    executor = context.executor
    if spec.get("avoid") == "" and not made:
        context.report(
            (*path, "avoid"),
            "'avoid' is empty",
            hint="name a node, as in avoid: [n17, n18], or remove 'avoid'",
            code="bad-value",
        )
    if not spec.get("avoid") or executor is None or "avoid" in executor.capabilities:
        return
    able = [
        repr(name)
        for name in sorted(context.registry.executors.names)
        if "avoid" in context.registry.executors[name].capabilities
    ]
    context.report(
        (*path, "avoid"),
        f"'avoid' needs an executor that can avoid nodes; {executor.name!r} cannot",
        hint=f"remove 'avoid'; {', '.join(able)} can" if able else "remove 'avoid'",
        code="cannot-avoid",
        where=context.document.at_key((*path, "avoid")),
    )


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
