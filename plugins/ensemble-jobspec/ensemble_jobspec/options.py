"""Options for converting a jobspec into an ensemble file, and the result of the conversion.

``conversion`` reads :class:`Options` and creates :class:`Converted`, which the commands run, or
write as text for a queue.
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
#: Executors that run a group as one job with a nested ensemble.
_NESTING = ("flux", "slurm")
_STAGE = "{cwd}/jobspec-{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for converting a jobspec.

    - ``executor``: the executor that will run the jobs
    - ``executors``: the installed executors; the job groups have options of these only
    - ``site``: for each requirement (such as a CPU type), the executors' options that meet it; with
      ``strict``, a requirement without an entry is an error
    - ``gauges``: resources of the executor (``nodes.up`` …), to choose the first alternative of a
      request that fits; with ``firm``, the executor can never have more, so that none fits is an
      error instead of a warning
    - ``shared``: whether all nodes see the staging folder, for steps that do not specify it
    - ``contents``: function that reads a staged file
    - ``program``, ``file``, ``state``: the ``ensemble`` command, the jobspec and the folder of
      runs, for a job that runs a group as a nested ensemble
    - ``flux``: the ``flux`` command for such a job; empty if Flux is missing
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
        """The way in which groups are run."""
        return self.groups or ("nested" if self.executor in _NESTING else "flat")


@dataclass(frozen=True, slots=True)
class Converted:
    """An ensemble file's ``jobs`` and ``rules``, each job group's shape, and warnings."""

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
