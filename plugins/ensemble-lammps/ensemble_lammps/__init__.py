"""LAMMPS for Ensemble: the thermo output of a growing log becomes metrics and events.

Ensemble finds this module through the entry-point group ``ensemble`` and calls its one hook.
"""

from __future__ import annotations

from collections.abc import Iterable

from ensemble_core import ObserverPlugin, hookimpl
from ensemble_lammps.observer import OPTIONS, build, variables

__all__ = ["ensemble_observers"]


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
        )
    ]
