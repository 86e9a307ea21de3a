"""Checked, immutable form of an ensemble file: created by the config package, run by the engine."""

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
from ensemble_core.model.value import Value

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec

__all__ = ["AlgorithmInstance", "Binder", "Ensemble", "Limits", "amount"]


def amount(number: float) -> str:
    """Format a number of jobs or hours for people.

    >>> amount(12), amount(0.04321), amount(1234.5678)
    ('12', '0.04321', '1234.57')
    """
    return f"{number:.4g}" if abs(number) < 100 else f"{number:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Limits(Value):
    """Limits of a run; ``None`` means no limit.

    - ``jobs``: the maximum number of attempts that the run submits;
    - ``core_hours``, ``node_hours``, ``gpu_hours``: the hours that these attempts may use. Jobs
      that could exceed one of these limits, or the limit ``jobs``, are held;
    - ``submits_per_second``: a rate limit; jobs beyond it wait;
    - ``chain``: the maximum length of a chain of firings in which each causes the next and no job
      finishes;
    - ``wall``: the number of seconds after which a controller stops the run;
    - ``stop``: after cancelling jobs at the end of the run or at a stop, how many seconds the run
      waits for their events.
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
        """The limits in hours, by name."""
        return {
            "core_hours": self.core_hours,
            "node_hours": self.node_hours,
            "gpu_hours": self.gpu_hours,
        }

    @property
    def holds(self) -> bool:
        """True if jobs may be held because of a limit."""
        return any(most is not None for most in (self.jobs, *self.hours.values()))


def _refused(spec: Mapping[str, Any], name: str = "") -> Any:
    raise EnsembleError(
        "rules and actions cannot be added to this run: its Ensemble was created without a 'binder'"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Binder(Value):
    """Functions that check rules, actions and changes of groups that arrive during the run.

    All three functions are pure and raise :class:`~ensemble_core.errors.EnsembleError` if the
    specification is invalid. ``rule`` takes a specification and a default id; ``action`` takes a
    specification; ``group`` takes a group and the fields to change. The default functions reject
    all rules and actions, and accept changes of groups without a check.
    """

    rule: Callable[[Mapping[str, Any], str], BoundRule] = _refused
    action: Callable[[Mapping[str, Any]], BoundAction] = _refused
    group: Callable[[JobGroup, Mapping[str, Any]], JobGroup] = lambda group, fields: replace(
        group, **fields
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlgorithmInstance(Value):
    """An entry under ``use:``: a set of rules that are enabled and disabled together.

    ``algorithm`` is the name of the algorithm that created the rules, or empty if the file lists
    the rules. ``version`` has the name and version of the algorithm's distribution. If ``enabled``
    is true, the rules are enabled when the run begins.
    """

    name: str
    algorithm: str = ""
    version: str = ""
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ensemble(Value):
    """A checked ensemble file.

    - ``heartbeat``: the interval in seconds, or 0 if the run has no heartbeat.
    - ``statistics``: all available statistics, by name.
    - ``custom``: the source code of the file's ``custom:`` part; ``functions``: the functions in
      it.
    - ``attached``: the text of each file that the ensemble file refers to.
    - ``tables``, ``generators``, ``instances``: the entries under ``results:``, ``generators:`` and
      ``use:``, by name. Rules that belong to an instance have its name in their field ``instance``.
    - ``on_stop``: what a stop does with the jobs: leave them to the queue (``keep``), cancel them,
      or do what the executor prefers (``None``).
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
    #: The run's tag and the folder where it was started; empty before the run begins.
    run: str = ""
    cwd: str = ""
    #: Folders of earlier runs whose jobs are reused.
    reuse: tuple[str, ...] = ()

    def begun(self, tag: str, cwd: str, reuse: Sequence[str] = ()) -> Ensemble:
        """Return the ensemble with the data of a run filled in.

        ``tag`` replaces ``{run}``, and ``cwd``, the folder where the run was started, replaces
        ``{cwd}``. ``reuse`` lists the folders of the runs whose jobs are reused.
        """

        def known(group: JobGroup) -> JobGroup:
            return replace(group, run=tag, cwd=cwd, more=tuple(map(known, group.more)))

        groups = {name: known(group) for name, group in self.groups.items()}
        return replace(self, groups=groups, run=tag, cwd=cwd, reuse=tuple(reuse))
