"""Checked, immutable form of an ensemble file: created by the config package, run by the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import BoundAction, BoundRule
from ensemble_core.model.tables import Table
from ensemble_core.quick_dataclass import dataclass, replace

if TYPE_CHECKING:
    from ensemble_core.model.generators import GeneratorSpec


def amount(number: float) -> str:
    """Format a number of jobs or hours: four digits, or two decimals from 100 on.

    >>> amount(12), amount(0.04321), amount(1234.5678)
    ('12', '0.04321', '1234.57')
    """
    return f"{number:.4g}" if abs(number) < 100 else f"{number:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run; ``None`` means no limit.

    Jobs that could exceed a limit on jobs or hours are held.
    """

    jobs: int | None = None  # attempts that are submitted
    core_hours: float | None = None
    node_hours: float | None = None
    gpu_hours: float | None = None
    #: Attempts in the queue at the same time: for groups that use this name; ``""``: of the run.
    at_once: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    submits_per_second: float | None = None  # a rate limit: jobs beyond it wait
    #: Longest chain of firings in which each causes the next while no job finishes.
    chain: int = 100
    output: int | None = None  # bytes that the files of an attempt may have
    wall: float | None = None  # seconds after which a controller stops the run
    stop: float = 300.0  # seconds to wait for events of cancelled jobs
    #: Whether jobs that would overwrite one another's files are an error. Otherwise a warning.
    strict: bool = False

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Functions that check rules, actions and changes of groups that arrive during the run.

    All functions are pure and raise :class:`~ensemble_core.errors.EnsembleError` if the
    specification is invalid.

    - ``rule`` takes a specification and a default id.
    - ``action`` takes a specification.
    - ``group`` takes a group and the fields to change.
    - ``options`` takes the options of a job, with placeholders filled in.
    - ``settings`` is like ``group``, for a group whose fields all later jobs have, so it also takes
      ``at_once``, ``uses`` and ``retry``.
    - ``limits`` takes limits to change and the groups, and returns arguments of ``Limits``.

    The default functions reject all rules and actions, and accept changes of groups and options
    without a check.
    """

    rule: Callable[[Mapping[str, Any], str], BoundRule] = _refused
    action: Callable[[Mapping[str, Any]], BoundAction] = _refused
    group: Callable[[JobGroup, Mapping[str, Any]], JobGroup] = lambda group, fields: replace(
        group, **fields
    )
    options: Callable[[Mapping[str, Any]], object] = lambda options: options
    settings: Callable[[JobGroup, Mapping[str, Any]], JobGroup] = lambda group, fields: replace(
        group, **fields
    )
    limits: Callable[[Mapping[str, Any], Iterable[JobGroup]], Mapping[str, Any]] = (
        lambda limits, groups: limits
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmInstance:
    """An entry under ``use:``: a set of rules that are enabled and disabled together."""

    name: str
    algorithm: str = ""  # empty if the file lists the rules
    version: str = ""  # name and version of the algorithm's distribution
    enabled: bool = True  # when the run begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """A checked ensemble file."""

    name: str
    groups: Mapping[str, JobGroup]
    rules: tuple[BoundRule, ...]
    statistics: Mapping[str, StatisticSpec]  # all that are available
    binder: Binder = field(default_factory=Binder)
    tables: Mapping[str, Table] = field(default_factory=lambda: NOTHING)  # of ``results:``
    #: For each environment that ``within`` may name, a function that turns the command of a job
    #: with these options into the words of a command that sets up the environment first.
    environments: Mapping[str, Callable[[Job, Mapping[str, Any]], Sequence[str]]] = field(
        default_factory=lambda: NOTHING
    )
    #: Entries of ``use:``. The field ``instance`` of their rules has their name.
    instances: Mapping[str, AlgorithmInstance] = field(default_factory=lambda: NOTHING)
    generators: Mapping[str, GeneratorSpec] = field(default_factory=lambda: NOTHING)
    limits: Limits = field(default_factory=Limits)
    #: Kinds of allocations inside which an executor runs jobs: entries of ``pilots:``.
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    heartbeat: float = 0.0  # seconds; 0: no heartbeat
    debug: bool = False
    custom: str = ""  # source code of the part ``custom:``
    functions: frozenset[str] = frozenset()  # defined in ``custom``
    #: Texts of the files that the ensemble file refers to.
    attached: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    #: Whether a stop leaves jobs to the queue or cancels them. ``None``: the executor decides.
    on_stop: Literal["keep", "cancel"] | None = None
    file: str = ""
    warnings: tuple[str, ...] = ()
    #: The run's tag and the folder where it was started; empty before the run begins.
    run: str = ""
    cwd: str = ""
    #: Folders of earlier runs whose jobs are reused.
    reuse: tuple[str, ...] = ()

    def begun(
        self,
        tag: str,
        cwd: str,
        reuse: Sequence[str] = (),
        executor: Mapping[str, Any] = NOTHING,
    ) -> Ensemble:
        """Return the ensemble with the data of a run filled in.

        ``tag`` replaces ``{run}``, and ``cwd``, the folder where the run was started, replaces
        ``{cwd}``. ``reuse`` lists the folders of the runs whose jobs are reused. ``executor`` has
        the ``name`` and the ``options`` of the run's executor.
        """
        name, options = str(executor.get("name")), executor.get("options", NOTHING)

        def known(group: JobGroup) -> JobGroup:
            compared = group.compared
            if name in compared:
                own = {option: options.get(option) for option in compared[name]}
                compared = {**compared, name: own}
            more = tuple(map(known, group.more))
            return replace(group, run=tag, cwd=cwd, compared=compared, more=more)

        groups = {name: known(group) for name, group in self.groups.items()}
        return replace(self, groups=groups, run=tag, cwd=cwd, reuse=tuple(reuse))
