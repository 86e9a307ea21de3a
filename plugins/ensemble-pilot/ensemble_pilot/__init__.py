"""Pilots for Ensemble: the executor ``pilot``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, JobGroup, VirtualPilots, hookimpl
from ensemble_pilot.option_schema import KIND, OPTIONS


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_pilot.executor import PilotExecutor

    return PilotExecutor(**options)


def _never(group: JobGroup, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    from ensemble_pilot.options import never

    return never(group, options)


def _check_kind(name: str, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    from ensemble_pilot.options import check_kind

    return check_kind(name, options)


def _virtual(
    options: Mapping[str, Any], wait: Callable[[int], float], steered: bool
) -> VirtualPilots:
    from ensemble_pilot.virtual import Virtual

    return Virtual(options, wait, steered)


def _status(folder: Path) -> tuple[Sequence[str], Any]:
    from ensemble_pilot.status import pilot_status

    return pilot_status(folder)


def _remains(_: str, folder: Path, end: bool) -> int:
    from ensemble_pilot.leftover_jobs import leftover

    return leftover(folder, end=end)


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``pilot``."""
    return [
        ExecutorPlugin(
            name="pilot",
            summary="Runs jobs inside a few jobs of another queue (pilots)",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "resize", "signal", "reattach", "detach"}),
            options=OPTIONS,
            never=_never,
            kinds=KIND,
            check_kind=_check_kind,
            virtual=_virtual,
            status=_status,
            remains=_remains,
            available=lambda: (False, "select it with --executor pilot"),
        )
    ]
