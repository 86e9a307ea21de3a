"""Base for plugins of simulation programs: one record gives all that Ensemble needs to steer one.

A plugin describes its program in a :class:`Program`, and passes on the three hooks::

    GROMACS = Program(name="gromacs", title="GROMACS", …)
    ensemble_observers, ensemble_triggers, ensemble_actions = GROMACS.hooks()

Every run loads such a plugin, so other modules of this package are imported only where they are
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_programs.convergence import Convergence
    from ensemble_programs.outcome import Outcome
    from ensemble_programs.program import Kept, Program

__all__ = ["Convergence", "Kept", "Outcome", "Program"]

_HOMES = {
    "Convergence": "convergence",
    "Kept": "program",
    "Outcome": "outcome",
    "Program": "program",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'ensemble_programs' has no attribute {name!r}")
    return getattr(import_module(f"ensemble_programs.{_HOMES[name]}"), name)
