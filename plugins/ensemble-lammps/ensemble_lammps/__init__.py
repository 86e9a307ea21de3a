"""LAMMPS plugin: observes growing logs, so that rules can react to the physics.

Every run loads this module, so other modules are imported only inside functions.
"""

from ensemble_lammps.actions import LAMMPS, ensemble_actions
from ensemble_lammps.triggers import ensemble_triggers

__all__ = ["ensemble_actions", "ensemble_observers", "ensemble_triggers"]

ensemble_observers = LAMMPS.hooks()[0]
