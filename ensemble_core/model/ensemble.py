"""One ensemble, checked and immutable: what the config part makes and the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.jobs import JobGroup
from ensemble_core.model.rules import BoundAction, BoundRule
from ensemble_core.model.tables import Table

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec

__all__ = ["AlgorithmInstance", "Binder", "Ensemble", "Limits", "amount"]


def amount(number: float) -> str:
    """A number of jobs or hours as people read it.

    >>> amount(12), amount(0.04321), amount(1234.5678)
    ('12', '0.0432', '1234.57')
    """
    return f"{number:.4g}" if abs(number) < 100 else f"{number:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Guards against storms, and what a run may cost.

    ``jobs``: attempts that are handed on in the whole run, ``None`` for no limit; ``core_hours``,
    ``node_hours``, ``gpu_hours``: what these may take, likewise. What could pass one of them is
    held. ``submits_per_second``: jobs above this rate wait for their turn. ``chain``: rule firings
    that may cause one another without any job finishing in between. ``wall``: seconds after which
    a controller stops the run. ``stop``: seconds that a stop or an end waits while nothing is heard
    of the jobs that it cancelled.
    """

    jobs: int | None = None
    core_hours: float | None = None
    node_hours: float | None = None
    gpu_hours: float | None = None
    submits_per_second: float | None = None
    chain: int = 100
    wall: float | None = None
    stop: float = 300.0

    @property
    def hours(self) -> dict[str, float | None]:
        """The limits on what jobs take, by name, in hours."""
        return {
            "core_hours": self.core_hours,
            "node_hours": self.node_hours,
            "gpu_hours": self.gpu_hours,
        }

    @property
    def holds(self) -> bool:
        """True if there is a limit that jobs are held by until there is room."""
        return any(most is not None for most in (self.jobs, *self.hours.values()))


def _refused(spec: Mapping[str, Any], name: str = "") -> Any:
    raise EnsembleError("this ensemble has no binder: it takes no rules and actions while it runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Checks and binds specifications that arrive during the run.

    All three are pure and raise :class:`~ensemble_core.errors.EnsembleError`. ``rule`` gets the
    specification and a default id; ``group`` a group and the fields to change. By default, rules
    and actions are rejected and fields unchecked.
    """

    rule: Callable[[Mapping[str, Any], str], BoundRule] = _refused
    action: Callable[[Mapping[str, Any]], BoundAction] = _refused
    group: Callable[[JobGroup, Mapping[str, Any]], JobGroup] = lambda group, fields: replace(
        group, **fields
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmInstance:
    """One entry under ``use:``: rules that are switched on and off as one.

    ``algorithm`` is what made them, empty where the file has them itself, and ``version`` the
    distribution that it came from, with its version. ``enabled`` says that it is on when the run
    begins.
    """

    name: str
    algorithm: str = ""
    version: str = ""
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """A checked ensemble file.

    ``heartbeat`` is in seconds, 0 for none. ``statistics`` are all that can be asked for by name.
    ``functions`` names the functions of ``custom``, the source of the file's ``custom:`` part.
    ``attached`` are the texts of the files that it names, ``tables`` those under ``results:``,
    ``generators`` those under ``generators:``.
    ``instances`` are those of ``use:``, by name; each of their rules names its own.
    ``on_stop`` is what a stop does with jobs: to leave them to the queue (``keep``), or to cancel
    them; ``None`` leaves that to the executor.
    """

    name: str
    groups: Mapping[str, JobGroup]
    rules: tuple[BoundRule, ...]
    statistics: Mapping[str, StatisticSpec]
    binder: Binder = field(default_factory=Binder)
    tables: Mapping[str, Table] = field(default_factory=lambda: NOTHING)
    instances: Mapping[str, AlgorithmInstance] = field(default_factory=lambda: NOTHING)
    generators: Mapping[str, GeneratorSpec] = field(default_factory=lambda: NOTHING)
    limits: Limits = field(default_factory=Limits)
    heartbeat: float = 0.0
    debug: bool = False
    custom: str = ""
    functions: frozenset[str] = frozenset()
    attached: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    on_stop: Literal["keep", "cancel"] | None = None
    file: str = ""
    warnings: tuple[str, ...] = ()
    #: The run's tag and the folder where it was started, once it is begun.
    run: str = ""
    cwd: str = ""
    #: The folders of the earlier runs whose jobs it reuses.
    reuse: tuple[str, ...] = ()

    def begun(self, tag: str, cwd: str, reuse: Sequence[str] = ()) -> Ensemble:
        """The ensemble of the run with this tag, started in this folder: its jobs' placeholders
        ``{run}`` and ``{cwd}``. It reuses jobs of the runs in the folders ``reuse``."""

        def known(group: JobGroup) -> JobGroup:
            return replace(group, run=tag, cwd=cwd, more=tuple(map(known, group.more)))

        groups = {name: known(group) for name, group in self.groups.items()}
        return replace(self, groups=groups, run=tag, cwd=cwd, reuse=tuple(reuse))
