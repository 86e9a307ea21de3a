"""Jobspecs for Ensemble: one description of work that any queue can run.

A jobspec is a YAML file in one of three forms: Flux's own (``flux``), jobspec 0.0 (``transform``)
or jobspec 0.1 (``nextgen``). The function ``read`` returns its content as a ``Workload``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_jobspec.jobspec_reader import read as read
    from ensemble_jobspec.workload import Workload as Workload

__all__ = ["Workload", "read"]


def __getattr__(name: str) -> object:
    if name == "read":
        from ensemble_jobspec.jobspec_reader import read

        return read
    if name == "Workload":
        from ensemble_jobspec.workload import Workload

        return Workload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
