"""Pilots for Ensemble: the executor ``pilot``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, JobGroup, hookimpl
from ensemble_pilot.schema import OPTIONS

__all__ = ["ensemble_executors"]


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_pilot.executor import PilotExecutor

    return PilotExecutor(**options)


def _never(group: JobGroup, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    from ensemble_pilot.options import never

    return never(group, options)


def _status(folder: Path) -> tuple[Sequence[str], Any]:
    from ensemble_pilot.status import pilot_status

    return pilot_status(folder)


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``pilot``."""
    return [
        ExecutorPlugin(
            name="pilot",
            summary="Runs jobs inside a few jobs of another queue (pilots)",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "signal", "reattach", "detach"}),
            options=OPTIONS,
            never=_never,
            status=_status,
            available=lambda: (False, "select it with --executor pilot"),
        )
    ]
