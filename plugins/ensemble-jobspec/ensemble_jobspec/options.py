"""Options of a conversion, and what comes of it.

``conversion`` goes by the one and makes the other; the writers and the commands read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ensemble_jobspec.plan import Mode, Unit
from ensemble_jobspec.resource_shapes import Copies, Shape

__all__ = ["Converted", "Options"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Executors on which a group is a job with an ensemble of its own.
_NESTING = ("flux", "slurm")
_STAGE = "{cwd}/jobspec-{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a workload is converted.

    ``executor`` is whose job groups they will be, ``executors`` those whose options may be written
    (installed ones). ``site`` says by requirement and executor what meets it; with ``strict`` one
    that is not there is an error. ``gauges`` are the executor's, by which alternatives are chosen;
    where they are ``firm`` it can never have more, and otherwise what is down may come back.
    ``shared`` says whether all nodes see the staging folder where no step says it, ``contents``
    reads files that are staged. ``program``, ``file`` and ``state`` are the command ``ensemble``,
    the jobspec and the folder of runs as a batch's job is to know them; ``flux`` is the command of
    Flux there, empty where there is none.
    """

    executor: str | None = None
    executors: frozenset[str] = frozenset()
    groups: Mode | None = None
    copies: Copies = "slots"
    prefix: str = ""
    submit: bool = True
    only: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    stage: str = _STAGE
    shared: bool = True
    site: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    strict: bool = False
    gauges: Mapping[str, float] | None = None
    firm: bool = True
    parameters: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    program: tuple[str, ...] = ("ensemble",)
    flux: str = ""
    file: str = ""
    state: str = ""
    contents: Callable[[str], str] | None = None

    @property
    def mode(self) -> Mode:
        """How groups are carried out."""
        return self.groups or ("nested" if self.executor in _NESTING else "flat")


@dataclass(frozen=True, slots=True)
class Converted:
    """An ensemble file's ``jobs`` and ``rules``, the shape of each job group, and warnings."""

    name: str
    jobs: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]]
    shapes: Mapping[str, Shape]
    selectors: Mapping[str, Mapping[str, Any]]
    units: Sequence[Unit]
    watched: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The ensemble file as plain data."""
        return {"name": self.name, "jobs": list(self.jobs), "rules": list(self.rules)}
