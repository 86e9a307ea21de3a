"""LAMMPS plugin: observes growing logs, so that rules can react to the physics.

Every run loads this module, so other modules are imported only inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core import ActionPlugin, ObserverPlugin, TriggerPlugin, hookimpl
from ensemble_lammps.actions import actions
from ensemble_lammps.observer import OPTIONS, build, unasked, variables
from ensemble_lammps.triggers import triggers

__all__ = ["ensemble_actions", "ensemble_observers", "ensemble_triggers"]


@hookimpl
def ensemble_observers() -> Iterable[ObserverPlugin]:
    """Return the observer ``lammps``."""
    return [
        ObserverPlugin(
            name="lammps",
            summary="Rows of thermo output in a growing LAMMPS log, by column name.",
            build=build,
            options=OPTIONS,
            variables=variables,
            unasked=unasked,
        )
    ]


@hookimpl
def ensemble_triggers() -> Iterable[TriggerPlugin]:
    """Return the triggers ``lammps-thermo`` and ``lammps-converged``."""
    return triggers()


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """Return the actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""
    return actions()
