"""Standing of what is served: how a run stands, by its journal; and of a jobspec in an ensemble
that it shares with others, whether all of it is done, or some of it failed and nothing more of it
can happen. Used by ``serving`` and ``shared_run``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from ensemble_core import EnsembleError
from ensemble_core.cli.toolkit import KeptRun, state_folder
from ensemble_jobspec.options import Converted

__all__ = ["GroupCounts", "is_over", "run_state", "standing"]


def run_state(state: str | None, tag: str) -> str:
    """How a run stands (``ended`` …); ``new`` where nothing of it is on record."""
    try:
        with KeptRun(state, tag) as kept:
            return kept.state if kept.journal.texts() else "new"
    except EnsembleError as error:
        journal = state_folder(state) / "runs" / tag / "journal.db"
        return "new" if error.code == "never-began" or not journal.exists() else "unreadable"


def is_over(stands: str, code: int) -> bool:
    """True if there is nothing to go on with after a controller that ended with this code."""
    # It was refused before it began; what else kept it from beginning may pass.
    return stands == "ended" or (stands == "new" and code == 2)


class GroupCounts(Protocol):
    """Counts of a group: how many jobs there were, and are still to end."""

    @property
    def submitted(self) -> int:
        """Jobs that were handed to the queue."""

    @property
    def waiting(self) -> int:
        """Jobs that wait in the queue."""

    @property
    def running(self) -> int:
        """Jobs that run."""


def standing(
    converted: Converted,
    value: Callable[[str], float],
    groups: Mapping[str, GroupCounts],
    failed_calls: Collection[str],
) -> str | None:
    """Why it failed, empty where all is done; ``None`` while something of it can still happen.

    ``value`` gives a metric's value, ``groups`` have the counts of jobs, and ``failed_calls`` the
    names of what failed beside the controller.
    """
    done = {name for name, (path, least) in converted.done.items() if value(path) >= least}
    failed = []
    for unit in converted.units:
        counts = groups.get(unit.name)
        active = counts is not None and bool(counts.waiting + counts.running)
        if unit.name in done or active:
            continue
        if unit.name in failed_calls or (counts is not None and counts.submitted):
            failed.append(unit.name)
    never = set(failed)
    while more := {
        unit.name for unit in converted.units if unit.name not in never and never & {*unit.after}
    }:
        never |= more
    if any(unit.name not in done | never for unit in converted.units):
        return None
    return f"{', '.join(failed)} failed" if failed else ""
