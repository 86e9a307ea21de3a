"""Options for converting a jobspec into an ensemble file, and the result of the conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ensemble_jobspec.resource_shapes import Copies, Shape
from ensemble_jobspec.unit_order import Mode, Unit

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Executors that run a group as one job with a nested ensemble.
_NESTING = ("flux", "slurm")
_STAGE = "{cwd}/jobspec-{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for converting a jobspec into an ensemble file."""

    executor: str | None = None  # which will run the jobs
    executors: frozenset[str] = frozenset()  # installed; job groups get options of these only
    groups: Mode | None = None
    copies: Copies = "slots"
    prefix: str = ""
    submit: bool = True
    only: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    stage: str = _STAGE
    #: Whether all nodes see the staging folder, for steps that do not specify it.
    shared: bool = True
    #: The executors' options that meet each requirement, such as a CPU type.
    site: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    strict: bool = False  # a requirement without an entry in ``site`` is an error
    #: Resources of the executor (``nodes.up`` …), to choose the first alternative that fits.
    gauges: Mapping[str, float] | None = None
    #: Whether the executor can never have more than ``gauges``. Then it is an error if no
    #: alternative fits, otherwise a warning.
    firm: bool = True
    parameters: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    #: For jobs that run a group as a nested ensemble: the commands ``ensemble`` and ``flux`` (empty
    #: if Flux is missing), the jobspec and the folder of runs.
    program: tuple[str, ...] = ("ensemble",)
    flux: str = ""
    file: str = ""
    state: str = ""
    contents: Callable[[str], str] | None = None  # reads a staged file

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
