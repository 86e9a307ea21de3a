"""LAMMPS for Ensemble: the physics of a growing log decides what runs next.

Ensemble finds this module through the entry-point group ``ensemble`` and calls its hooks. Every run
loads it, so what is only needed where the file uses it is imported by the functions that do.
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
    """The observer ``lammps``."""
    return [
        ObserverPlugin(
            name="lammps",
            summary="Rows of thermo output in a LAMMPS log, by column name, while it grows.",
            build=build,
            options=OPTIONS,
            variables=variables,
            unasked=unasked,
        )
    ]


@hookimpl
def ensemble_triggers() -> Iterable[TriggerPlugin]:
    """``lammps-thermo`` and ``lammps-converged``."""
    return triggers()


@hookimpl
def ensemble_actions() -> Iterable[ActionPlugin]:
    """``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""
    return actions()
