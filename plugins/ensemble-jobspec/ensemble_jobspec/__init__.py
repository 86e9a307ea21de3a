"""Jobspecs for Ensemble: one description of work that any queue can run.

The function ``read`` returns the workload of a jobspec in any of the three forms. Submodules are
imported on first use.
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
