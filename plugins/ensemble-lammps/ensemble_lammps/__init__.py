"""LAMMPS plugin: observes growing logs, so that rules can react to the physics.

Every run loads this module, so other modules are imported only inside functions.
"""

from ensemble_lammps.actions import ensemble_actions
from ensemble_lammps.program import ensemble_observers, ensemble_triggers

__all__ = ["ensemble_actions", "ensemble_observers", "ensemble_triggers"]
