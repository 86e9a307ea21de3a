"""The triggers ``lammps-thermo`` and ``lammps-converged``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import Trigger, TriggerPlugin, hookimpl
from ensemble_lammps.actions import LAMMPS
from ensemble_lammps.log_facts import NO_COLUMNS, is_thermo

if TYPE_CHECKING:
    from ensemble_core import Event

__all__ = ["ensemble_triggers"]

OBSERVER = "lammps"


def _thermo(name: str | None, options: Mapping[str, Any]) -> Trigger:
    from ensemble_core import Observed

    def prints_thermo(event: Event, fields: Mapping[str, Any]) -> bool:
        return (
            isinstance(event, Observed)
            and event.observer.rpartition(":")[2] == OBSERVER
            and is_thermo(event.values)
        )

    return Trigger(events=("observed",), group=name, match=prints_thermo)


@hookimpl
def ensemble_triggers() -> Iterable[TriggerPlugin]:
    """Return the triggers ``lammps-thermo`` and ``lammps-converged``."""
    yield TriggerPlugin(
        name="lammps-thermo",
        summary="a LAMMPS job of the group printed a row of thermo output",
        build=_thermo,
        name_means="group",
        needs_observer=OBSERVER,
        lacks=dict.fromkeys(
            NO_COLUMNS - {"NonFinite", "Converged"},
            "rows of thermo output do not have it; use 'trigger: observed' for rows that do",
        ),
    )
    yield from LAMMPS.triggers()
