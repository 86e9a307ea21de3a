"""The records that hooks return: what a plugin offers, by kind, and what its functions are given.

``hookspecs`` is the manual, with a complete example for each; plugins import these names from
``ensemble_core``. Read by the registry, the config part and the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ensemble_core.metrics.series import Statistic, StatisticSpec, TimedStatistic
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import Action, Plan, Rule, Trigger

if TYPE_CHECKING:
    from pathlib import Path

    from ensemble_core.model.generators import Generator, Vocs
    from ensemble_core.plugin.executor import Executor
    from ensemble_core.plugin.observer import Observer
    from ensemble_core.plugin.rendering import Rendered
    from ensemble_core.plugin.resizer import Resizer

__all__ = [
    "ActionPlugin",
    "CallContext",
    "ExecutorPlugin",
    "GeneratorPlugin",
    "ObserverPlugin",
    "Outcome",
    "ResizerPlugin",
    "StatisticPlugin",
    "TriggerPlugin",
]

_NOTHING: Mapping[str, Any] = MappingProxyType({})

Schema = Mapping[str, Any]
#: What the events of a trigger may be about.
About = Literal["run", "job", "job-begun", "job-ended", "job-failed"]
ABOUT: tuple[About, ...] = get_args(About)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorPlugin:
    """The record of an executor.

    ``options`` is a JSON Schema of an object: what ``--option KEY=VALUE`` and ``--slots`` may set.
    ``build`` is given the checked options. ``job_options`` is one of what a job group may say under
    ``options: {NAME: …}``; where it is empty, anything goes. ``capabilities`` are those
    of the executor it builds.
    ``available`` says whether it can work here and why or why not, without side effects; where no
    executor is named, the available one of highest ``priority`` is used. ``members`` says that the
    ``executor`` of a job group names one of its members; its option ``members`` is then a list of
    the names that the file has, with an empty one where a group names none.
    ``render`` is pure: given a job and the executor's options, it says what the queue would be
    handed for it, as text with a media type (a jobspec, a batch script, a command line).
    ``remains``, given a run's tag, the folder that the executor kept there (``Run.state``) and
    whether to end them, counts jobs of the run that may be alive where its journal is lost.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Executor]
    capabilities: frozenset[str] = frozenset({"submit", "cancel"})
    options: Schema = field(default_factory=lambda: _NOTHING)
    job_options: Schema = field(default_factory=lambda: _NOTHING)
    shared: bool = False
    available: Callable[[], tuple[bool, str]] | None = None
    priority: int = 0
    members: bool = False
    remains: Callable[[str, Path, bool], int] | None = None
    render: Callable[[Job, Mapping[str, Any]], Rendered] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerPlugin:
    """The record of a trigger.

    ``options`` are properties that a rule with this trigger may have beside ``trigger``, ``name``,
    ``when``, ``action`` and the other keys of every rule. ``name_means`` says what the rule's
    ``name`` is: a job group, a job group or a list of several (``groups``), a metric's path, a
    ``generator``, or nothing (then it is refused). ``fields`` are
    names that the rule's ``when`` may use beside those of every event. ``build`` is given the
    rule's ``name`` and its checked options. ``needs_variables``, given the options, are variables
    without which the rule could never fire, ``needs_observer`` is the observer whose rows it waits
    for: a rule is refused where its group has not that observer, or none that yields these.
    ``lacks`` are names that its events never have although others of the same observer do, each
    with what to write instead: a ``when`` that speaks of one could never hold, and is refused.
    ``about`` says what its own events concern: the ``run`` and no job; a ``job``, or one that has
    not ended yet (``job-begun``), has ended (``job-ended``) or failed (``job-failed``).
    """

    name: str
    summary: str
    build: Callable[[str | None, Mapping[str, Any]], Trigger]
    options: Schema = field(default_factory=lambda: _NOTHING)
    name_means: Literal["group", "groups", "metric", "generator"] | None = None
    fields: frozenset[str] = frozenset()
    needs_variables: Callable[[Mapping[str, Any]], Collection[str]] | None = None
    needs_observer: str | None = None
    lacks: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    about: About = "job"


@dataclass(frozen=True, slots=True)
class CallContext:
    """The arguments of a slow action's ``run``.

    ``options`` are the action's checked options, ``event`` the event that led here and ``job`` the
    job it concerns, both as plain data. Beside the fields that a condition sees, ``job`` has
    ``command`` (a list), ``workdir`` (absolute, as the job really ran; ``None`` where that is not
    known), ``parameters``, ``nodes``, ``tasks``, ``started`` (seconds since the epoch; ``None``
    where it never ran) and, once it is known, ``outcome`` (``success``, ``failed`` or
    ``cancelled``). ``metrics`` reads metrics by path (``context.metrics["mean.lammps-duration"]``);
    ``handle`` is the executor's. ``run`` is the run's tag, ``cwd`` the folder where it was started,
    ``folder`` the one that keeps the run, empty where none does. ``call`` names the call, and is
    the same where it is made again after a resume; ``event["attempt"]`` counts these.
    """

    options: Mapping[str, Any]
    event: Mapping[str, Any]
    rule: Rule
    action: Action
    metrics: Mapping[str, float]
    job: Mapping[str, Any] | None = None
    ensemble: str = ""
    handle: object = None
    run: str = ""
    cwd: str = ""
    folder: str = ""
    call: str = ""


Outcome = Action | Rule | Iterable[Action | Rule] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlugin:
    """The record of an action: exactly one of ``run`` and ``plan``.

    ``run`` may be slow (a file, a mail, a remote call): it is called off the engine's thread with a
    :class:`CallContext` and returns ``None``, an action, a rule, or a list of these, which is what
    is then done. ``plan`` is pure and quick, and returns decisions at once.

    ``options`` is a JSON Schema of an object: what may stand beside ``name`` in the file. A
    property may say ``"x-ensemble": "group"`` (or ``rule``, ``metric``, ``function``): its value is
    then checked to name one. ``needs`` are capabilities that the executor must have.

    With ``"x-ensemble": "action"`` the property holds an action or a list of them, checked like the
    rule's own: a ``plan`` hands on ``firing.act(options[…])``, a ``run`` returns
    ``Action(options[…])``. These may speak of what the outer action found out where
    ``"x-ensemble-fields": [NAME, …]`` stands beside that: ``firing.act(spec, {"outcome": …})``,
    ``Action(spec).knowing({"outcome": …})``.

    With ``"x-ensemble": "expression"`` each text in the value that begins with ``=`` is checked to
    be arithmetic over the event's fields and metrics, which :func:`ensemble_core.expression` works
    out: ``expression(text).value(firing.fields, firing.metric)``.

    ``by_outcome`` says that it finds out how the event's job ended and acts by that: where a rule
    with it waits for the end of jobs, whichever it is (``job-finish``, ``job-clean``), a job that
    failed is this rule's business, as it is that of a rule on ``job-fail``.

    ``simulates`` says that ``run`` may also be called in a simulation, where no job is real: it
    touches nothing outside. Else a simulation does without it, and says so.
    """

    name: str
    summary: str
    run: Callable[[CallContext], Outcome] | None = None
    plan: Plan | None = None
    options: Schema = field(default_factory=lambda: _NOTHING)
    needs: frozenset[str] = frozenset()
    by_outcome: bool = False
    simulates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticPlugin:
    """The record of a statistic, a streaming reducer: ``NAME.GROUP-VARIABLE``.

    ``build`` is given the checked ``options`` (the file's ``statistics:`` part may set them) and
    returns an object with ``update(value)`` and ``get()``; one whose value depends on when values
    came sets ``timed`` and has ``update(value, timestamp)`` and ``get(timestamp)``. Where that
    depends on the options, ``timed_when`` says so of them. ``default`` statistics are kept for
    every group and variable; others where something asks for them. One whose schema has an option
    under ``required`` cannot be ``default``, and a path names it only through an entry of the
    file's ``statistics:`` part. ``within`` promises that the
    value always lies between the smallest and the largest of all values, as a mean or a quantile
    does: a rule whose threshold is out of reach then costs nothing.

    One with a faster way to take many values may have ``update_all(values)``, with one result.
    Only finite numbers are handed on, so a statistic need not fear NaN. The objects are copied
    (:func:`copy.deepcopy`) to answer "what if these values came too", and must not look at a clock.
    A snapshot of the run keeps their attributes where these are plain data, or else what
    ``__getstate__`` gives, for ``__setstate__`` of one that is built anew; of a run with others
    there is none, and a resume takes longer.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Statistic | TimedStatistic]
    options: Schema = field(default_factory=lambda: _NOTHING)
    timed: bool = False
    default: bool = False
    within: bool = False
    timed_when: Callable[[Mapping[str, Any]], bool] | None = None

    def spec(self, options: Mapping[str, Any] = _NOTHING, name: str | None = None) -> StatisticSpec:
        """The statistic with these checked options, known as ``name`` (default: its own)."""
        return StatisticSpec(
            name=name or self.name,
            build=partial(self.build, options),
            timed=self.timed or (self.timed_when is not None and self.timed_when(options)),
            default=self.default and name in (None, self.name),
            within=self.within,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPlugin:
    """The record of an observer, a reader of jobs' output: ``observe: {NAME: {OPTION: …}}``.

    ``build`` is given the job and its checked options. ``variables``, given the options, are the
    names of the values it can yield, so that a misspelt metric path is refused; ``None`` means that
    this cannot be known before. ``unasked``, given the options, are names that it yields with other
    options but never with these, each with what to add: a metric or a condition that speaks of one
    is refused with that hint. (Only ``get`` is asked of it.)
    """

    name: str
    summary: str
    build: Callable[[Job, Mapping[str, Any]], Observer]
    options: Schema = field(default_factory=lambda: _NOTHING)
    variables: Callable[[Mapping[str, Any]], Collection[str] | None] | None = None
    unasked: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizerPlugin:
    """The record of a resizer: what gives members of the ensemble service more or fewer nodes.

    ``options`` is a JSON Schema of an object: what ``ensemble-server start --option KEY=VALUE`` may
    set. ``build`` is given the checked options, and raises :class:`EnsembleError` with a hint where
    it cannot work.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Resizer]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorPlugin:
    """The record of a generator, which chooses points: ``generators: [{use: NAME, with: {…}}]``.

    ``build`` is given the problem (:class:`Vocs`) and the checked options, off the engine's thread,
    and returns a :class:`Generator`. ``check``, given the same, raises :class:`EnsembleError` where
    it cannot work on that problem, with what to install where a library is missing; it is called
    with the file, so it is to be quick. ``finite``, given the options, says that it comes to an
    end by itself; the file must say when any other is to end. ``prunes``: it takes rows of running
    jobs (``prune`` of the file).

    An option by which the file names a class says ``"x-ensemble": "class"`` and, with
    ``"x-ensemble-base": "MODULE.CLASS"``, what it must be derived from. The file has its import
    path, and ``check`` is given that: nothing is imported while a file is checked. ``build`` is
    given the class. Never import what a file names yourself.
    """

    name: str
    summary: str
    build: Callable[[Vocs, Mapping[str, Any]], Generator]
    options: Schema = field(default_factory=lambda: _NOTHING)
    check: Callable[[Vocs, Mapping[str, Any]], None] | None = None
    finite: Callable[[Mapping[str, Any]], bool] | None = None
    prunes: bool = False
