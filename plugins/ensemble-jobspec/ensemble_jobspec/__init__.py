"""Jobspecs for Ensemble: one description of work, carried out by any queue.

``read`` gives the workload that a jobspec describes, whichever of the three forms it has. Nothing
else is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_jobspec.reader import read as read
    from ensemble_jobspec.workload import Workload as Workload

__all__ = ["Workload", "read"]


def __getattr__(name: str) -> object:
    if name == "read":
        from ensemble_jobspec.reader import read

        return read
    if name == "Workload":
        from ensemble_jobspec.workload import Workload

        return Workload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
