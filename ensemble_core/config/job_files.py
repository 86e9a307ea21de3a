"""Checks the key ``outputs`` of job groups: the files that jobs leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path

__all__ = ["check_visible", "read_outputs"]

#: How many seconds to wait for a file on a network file system, if the entry does not say it.
_WAIT = 5.0


def read_outputs(context: Context, path: Path, given: list[Any]) -> dict[str, float] | None:
    """Return for each file how many seconds to wait for it, or ``None`` after reporting errors."""
    before = len(context.errors)
    found: dict[str, float] = {}
    for number, each in enumerate(given):
        place = (*path, number)
        if not context.is_valid(place):
            continue
        name, at = (each, place) if isinstance(each, str) else (each["path"], (*place, "path"))
        wait: float | None = _WAIT
        if isinstance(each, dict) and "wait" in each:
            wait = context.duration((*place, "wait"), each["wait"])
        if "\0" in name:
            context.report(at, "a file's name cannot contain a NUL character", code="bad-value")
        elif name in found:
            context.report(
                at,
                f"{name!r} is listed twice",
                hint="remove one of the entries",
                code="duplicate-name",
            )
        elif wait is not None:
            found[name] = wait
    return found if len(context.errors) == before else None


def check_visible(context: Context, path: Path, spec: Mapping[str, Any]) -> None:
    """Report ``outputs`` if jobs of the executor write where the run cannot look."""
    why = "" if context.executor is None else context.executor.unseen
    if "outputs" in spec and spec["outputs"] and why and context.executor is not None:
        context.report(
            (*path, "outputs"),
            f"'outputs' cannot be checked with the executor {context.executor.name}: {why}",
            hint="remove 'outputs', and check the files in the job's command: "
            "sh -c 'sim && test -s traj.xtc'",
            code="bad-value",
            where=context.document.at_key((*path, "outputs")),
        )
