"""Records that plugins' hooks return, one class for each kind of plugin.

``hookspecs`` has a complete example for each kind. Sources and algorithms generate a
:class:`Fragment` of an ensemble file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ensemble_core.errors import Location
from ensemble_core.metrics.series import Accepts, Statistic, StatisticSpec, TimedStatistic
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import Action, Plan, Rule, Trigger
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from ensemble_core.model.generators import Generator, Vocs
    from ensemble_core.plugin.executor import Executor, Rendered, VirtualPilots
    from ensemble_core.plugin.observer import Observer
    from ensemble_core.plugin.resizer import Resizer


_NOTHING: Mapping[Any, Any] = MappingProxyType({})

Schema = Mapping[str, Any]
#: What the events of a trigger can be about (see :class:`TriggerPlugin`).
About = Literal["run", "job", "job-begun", "job-ended", "job-failed"]
ABOUT: tuple[About, ...] = get_args(About)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorPlugin:
    """The record of an executor.

    - ``options`` is a JSON Schema of the options that ``--option KEY=VALUE`` and ``--slots`` set.
    - ``build`` is called with the checked options and returns the executor.
    - ``job_options`` is a JSON Schema of a job group's ``options: {NAME: …}``. If it is empty,
      these options are not checked. Those with ``"x-ensemble-compared": true`` say what runs, such
      as a container's image: with ``--reuse``, jobs must have the same values. An option of
      ``options`` with the same name is the default.
    - ``capabilities`` and ``shared`` have the same values as in the executor's class.
    - ``available`` returns whether the executor can work on this machine, and the reason. It has no
      side effects. If the user names no executor, the available one with the highest ``priority``
      is used.
    - ``members`` is true if the executor distributes jobs to several queues (members). A job group
      selects one by its key ``executor``. The executor's option ``members`` lists the selected
      names; the empty name stands for groups without the key.
    - ``render`` is a pure function of a job and the executor's options. It returns what the queue
      would receive, as text with a media type (a jobspec, a batch script).
    - ``grace`` names what decides how long a job may take to end after SIGTERM, if a job's key
      ``grace`` has no effect. Files with this key then cause a warning.
    - ``warn`` says why jobs get no signal before their time limit, if the executor does not
      implement a job's field ``warn``: "pods have no such signal". Files with this key are then
      rejected.
    - ``secrets`` is given if jobs do not inherit the environment of the controller. It says how
      they get secrets: the hint with which ``environment_from`` is rejected.
    - ``inside`` returns the job of this queue in which this process runs ("Slurm job 7 with 2
      nodes"), or an empty text. A run there does not begin unless the user names the executor.
    - ``memory`` says why the key ``memory_per_task`` has no effect: "Flux schedules no memory".
      Files with this key then cause a warning.
    - ``unseen`` says why the run cannot see the files of jobs: "pods have their own file systems".
      Files with the key ``outputs`` are then rejected.
    - ``never`` is called with a job group and the executor's options. If no job of the group can
      ever run, it returns the key that is too large, why, and what to do, as an imperative. Such
      files are rejected.
    - ``never_here`` is the same for what depends on this machine. It is called only when a run
      begins or is resumed.
    - ``kinds`` is a JSON Schema of an entry under ``pilots:``, if the executor runs jobs inside
      allocations that it requests. Its option ``kinds`` has these entries by name. A job group
      selects one by its key ``executor``.
    - ``check_kind`` is called with an entry's name and the executor's options. It returns an error
      in the entry as ``never`` does.
    - ``virtual`` simulates these allocations. It is called with the executor's options, a function
      that returns the seconds for which the allocation with a number waits, and whether rules
      resize the run. It returns :class:`VirtualPilots`.
    - ``status`` only reads the folder ``Run.state``, perhaps of a live run. It returns lines for
      ``ensemble status``, and the same as data for ``--json``.
    - ``remains`` is called with a run's tag, the folder ``Run.state``, and whether to end the run's
      jobs, if its journal is lost. It returns how many jobs may still be alive.
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
    never: Callable[[JobGroup, Mapping[str, Any]], tuple[str, str, str] | None] | None = None
    never_here: Callable[[JobGroup, Mapping[str, Any]], tuple[str, str, str] | None] | None = None
    kinds: Schema = field(default_factory=lambda: _NOTHING)
    check_kind: Callable[[str, Mapping[str, Any]], tuple[str, str, str] | None] | None = None
    virtual: Callable[[Mapping[str, Any], Callable[[int], float], bool], VirtualPilots] | None = (
        None
    )
    status: Callable[[Path], tuple[Sequence[str], Any]] | None = None
    remains: Callable[[str, Path, bool], int] | None = None
    render: Callable[[Job, Mapping[str, Any]], Rendered] | None = None
    grace: str = ""
    warn: str = ""
    secrets: str = ""
    memory: str = ""
    unseen: str = ""
    inside: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerPlugin:
    """The record of a trigger.

    - ``options`` is a JSON Schema of additional keys for rules with this trigger (in addition to
      ``trigger``, ``name``, ``when``, ``action`` and the other keys that every rule has).
    - ``name_means`` says what the rule's ``name`` is: a job ``group``, one or several ``groups``, a
      ``metric`` path, or a ``generator``. ``None`` means that the rule cannot have a ``name``.
    - ``fields`` lists additional names that the rule's ``when`` may use.
    - ``build`` is called with the rule's ``name`` and its checked options, and returns the trigger.
    - ``needs_variables`` returns, for given options, the variables without which the rule could
      never fire. ``needs_observer`` is the name of the observer whose rows the trigger uses. A rule
      is rejected if its group does not have that observer, or if no observer yields these
      variables.
    - ``lacks`` is for names that the events of this trigger never have, although other events of
      the same observer have them. It maps each such name to what to write instead. A ``when`` with
      such a name is rejected.
    - ``about`` says what the trigger's events are about: the ``run`` (they have no job), any
      ``job``, or a job that has not ended (``job-begun``), has ended (``job-ended``) or has failed
      (``job-failed``).
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
    """The argument of an action's function ``run``.

    - ``options`` has the action's checked options.
    - ``event`` is the event that triggered the rule, as plain data.
    - ``job`` is the event's job, as plain data. It has the fields that conditions can use, and also
      ``command`` (a list), ``workdir`` (absolute, where the job really ran; ``None`` if unknown),
      ``stdout`` and ``stderr`` (absolute paths, ``None`` if unknown), ``parameters``, ``nodes``,
      ``tasks``, ``started`` (seconds since the epoch; ``None`` if the job never ran) and, once
      known, ``outcome`` (``success``, ``failed`` or ``cancelled``).
    - ``metrics`` reads metrics by path: ``context.metrics["mean.lammps-duration"]``.
    - ``handle`` is the queue's native handle (for Flux, a ``flux.Flux``), or ``None``.
    - ``run`` is the run's tag, ``cwd`` is the folder where the run was started, and ``folder`` is
      the run's folder (empty if it has none).
    - ``call`` identifies the call. It stays the same if the call is repeated after a resume;
      ``event["attempt"]`` counts the attempts.
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
    """The record of an action. It has either ``run`` or ``plan``.

    ``run`` may be slow (write a file, send a mail, make a remote call). It is called outside the
    engine's thread with a :class:`CallContext`. It returns ``None``, an action, a rule, or a list
    of these, which are carried out next. ``plan`` is pure and fast, and returns decisions
    immediately.

    ``options`` is a JSON Schema of the action's keys in the file (in addition to ``name``). If a
    property has the annotation ``"x-ensemble": "group"`` (or ``rule``, ``metric``, ``function``),
    its value must be the name of an existing group (or rule, …). ``needs`` lists capabilities that
    the executor must have.

    With ``"x-ensemble": "action"``, the property holds an action or a list of actions, which are
    checked like those of a rule. To carry them out, a ``plan`` uses ``yield from
    firing.act(options[…])``, and a ``run`` returns ``Action(options[…])``. ``"x-ensemble-fields":
    [NAME, …]`` declares additional names that these actions may use. Pass their values with
    ``firing.act(spec, {"outcome": …})`` or ``Action(spec).knowing({"outcome": …})``.

    With ``"x-ensemble": "expression"``, each string in the value that begins with ``=`` must be an
    expression over the event's fields and metrics. Evaluate it with
    :func:`ensemble_core.expression`: ``expression(text).value(firing.fields, firing.metric)``.

    Set ``by_outcome`` if the action checks how the event's job ended and acts accordingly. A rule
    with such an action that is triggered by any end of a job (``job-finish``, ``job-clean``) then
    counts as handling failed jobs, like a rule on ``job-fail``.

    Set ``simulates`` if ``run`` has no external effects. A simulation, in which jobs are not real,
    then calls it. Otherwise, a simulation skips the action and says so.
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
    """The record of a statistic, which is computed value by value: ``NAME.GROUP-VARIABLE``.

    - ``build`` is called with the checked ``options`` (which the file sets under ``statistics:``)
      and returns an object with ``update(value)`` and ``get()``.
    - ``timed`` is true if the result depends on the times at which values arrive. The object then
      has ``update(value, timestamp)`` and ``get(timestamp)``. If that depends on the options,
      ``timed_when`` returns whether the statistic is timed.
    - ``default`` is true if the statistic is computed for every group and variable; other
      statistics are computed only if they are used. A statistic with a ``required`` option cannot
      be ``default``, and a path can use it only through an entry under ``statistics:`` in the file.
    - ``within`` promises that the result always lies between the smallest and the largest value, as
      for a mean or a quantile. A rule whose threshold is outside this range then costs nothing.
    - ``accepts`` says which values the statistic receives besides finite numbers: ``all`` means nan
      and infinity, and the result may then be such a value; ``unreadable`` means a nan for each
      value that an observer could not read.

    If there is a faster way to add many values, the object may have a method ``update_all(values)``
    with the same result. It receives only finite numbers. The object must not read a clock. It is
    copied with :func:`copy.deepcopy` to compute hypothetical results.

    A snapshot stores the object's attributes if they are plain data. Otherwise, it stores the
    result of ``__getstate__``, and ``__setstate__`` restores it. If a statistic of a run supports
    neither, the run has no snapshots, and a resume takes longer.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Statistic | TimedStatistic]
    options: Schema = field(default_factory=lambda: _NOTHING)
    timed: bool = False
    default: bool = False
    within: bool = False
    accepts: Accepts = "finite"
    timed_when: Callable[[Mapping[str, Any]], bool] | None = None

    def spec(self, options: Mapping[str, Any] = _NOTHING, name: str | None = None) -> StatisticSpec:
        """Return the statistic with these checked options.

        ``name`` is a different name for it, if any.
        """
        return StatisticSpec(
            name=name or self.name,
            build=partial(self.build, options),
            timed=self.timed or (self.timed_when is not None and self.timed_when(options)),
            default=self.default and name in (None, self.name),
            within=self.within,
            accepts=self.accepts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPlugin:
    """The record of an observer, which reads the output of jobs: ``observe: {NAME: {OPTION: …}}``.

    - ``build`` is called with the job and the checked options, and returns the observer.
    - ``variables`` returns, for given options, the names of the values that the observer can yield,
      so that misspelt metric paths are rejected. ``None`` means that they are not known in advance.
    - ``unasked`` returns, for given options, a mapping for names that the observer would yield only
      with other options. It maps each such name to the option to add. If a metric or condition uses
      the name, the error suggests this option. (Only the method ``get`` of the mapping is called.)
    """

    name: str
    summary: str
    build: Callable[[Job, Mapping[str, Any]], Observer]
    options: Schema = field(default_factory=lambda: _NOTHING)
    variables: Callable[[Mapping[str, Any]], Collection[str] | None] | None = None
    unasked: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizerPlugin:
    """The record of a resizer, which changes the sizes of members of the service.

    ``options`` is a JSON Schema of the options that ``ensemble-server start --option KEY=VALUE``
    sets. ``build`` is called with the checked options. If the resizer cannot work, it raises
    :class:`EnsembleError` with a hint.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Resizer]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorPlugin:
    """The record of a generator, which chooses points: ``generators: [{use: NAME, with: {…}}]``.

    - ``build`` is called outside the engine's thread, with the problem (:class:`Vocs`) and the
      checked options, and returns a :class:`Generator`.
    - ``check`` gets the same arguments. If the generator cannot work on this problem, it raises
      :class:`EnsembleError`, with a hint on what to install if a library is missing. It must be
      fast, because every check of the file calls it.
    - ``finite`` returns, for given options, whether the generator stops suggesting points at some
      time. If it does not, the file must say when to end.
    - ``prunes`` is true if the generator uses rows of running jobs (``prune`` in the file).
    - ``conditional`` is true if it can have variables with ``when``. Where such a variable does not
      apply, its value in a point is ``""``, whatever the generator suggests for it.

    If an option names a class, its schema has ``"x-ensemble": "class"`` and, for the base class,
    ``"x-ensemble-base": "MODULE.CLASS"``. The file contains the import path of the class. ``check``
    receives this path, because nothing is imported while a file is checked; ``build`` receives the
    class itself. A plugin must never import a class that a file names.
    """

    name: str
    summary: str
    build: Callable[[Vocs, Mapping[str, Any]], Generator]
    options: Schema = field(default_factory=lambda: _NOTHING)
    check: Callable[[Vocs, Mapping[str, Any]], None] | None = None
    finite: Callable[[Mapping[str, Any]], bool] | None = None
    prunes: bool = False
    conditional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlugin:
    """The record of an environment, in which a job's command starts: ``within: {NAME: …}``.

    - ``options`` is a JSON Schema of the keys of an entry under ``within:``. One of them has the
      name of the environment and says what to set up, as in ``{module: gromacs/2024}``.
    - ``wrap`` is a pure function. It is called with a job and the checked options, with
      placeholders filled in, and returns the words of a command that sets up the environment and
      then runs ``job.command``. If that fails, the command exits with
      :data:`ENVIRONMENT_FAILED` and says why on standard error. The job's cause is then
      ``environment``. Its folder, files, variables and resources stay those of the job.
    - ``check`` is called when a file is checked, with the options and whether jobs run on this
      machine. If the environment does not exist, it raises :class:`EnsembleError`. It must be fast
      and must not run programs. The key ``check: false`` of an entry switches it off.
    """

    name: str
    summary: str
    wrap: Callable[[Job, Mapping[str, Any]], Sequence[str]]
    options: Schema = field(default_factory=lambda: _NOTHING)
    check: Callable[[Mapping[str, Any], bool], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Job groups, rules and statistics that a plugin has generated, as plain data.

    - ``jobs`` replace the entry from which they were generated. ``rules`` are added after those of
      the file.
    - ``heartbeat`` is the longest heartbeat interval, in seconds, with which the rules work. If
      several fragments have one, or the file sets one, the shortest applies.
    - ``warnings`` are printed with the warnings about the file.
    - ``places`` maps the path of a part (``("jobs", 0, "command")``) to its position in the file
      that the plugin has read. An error in a part with a position is reported there. Any other
      error is reported at the entry, as a defect of the plugin.
    """

    jobs: Sequence[Mapping[str, Any]] = ()
    rules: Sequence[Mapping[str, Any]] = ()
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    heartbeat: float | None = None
    warnings: Sequence[str] = ()
    places: Mapping[tuple[str | int, ...], Location | None] = field(
        default_factory=lambda: _NOTHING
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The parts of an ensemble that a source can read.

    - ``read`` returns the text of a file, given its path relative to the ensemble file. The run
      stores the text. If the file cannot be read, an error is reported at the entry: do not catch
      the exception.
    - ``called`` returns the name of a file for messages and positions.
    - ``capabilities`` are those of the executor, or ``None`` if the executor is not known yet.
    """

    read: Callable[[str], str]
    called: Callable[[str], str]
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlugin:
    """The record of a source, which expands entries under ``jobs:`` that have its name as a key.

    - ``options`` is a JSON Schema of the entry. Its properties are the allowed keys, including the
      source's name (a string, unless the schema says otherwise).
    - ``expand`` is called with the checked entry and a :class:`SourceView`, and returns a
      :class:`Fragment`. It is called when a run begins, and when a command such as ``ensemble
      validate`` checks the file, so it must not have side effects. Resume and replay use the stored
      result. If a file that it reads is invalid, it raises a :class:`UsageError` with the position,
      or a :class:`FileErrors` with several of them.
    """

    name: str
    summary: str
    expand: Callable[[Mapping[str, Any], SourceView], Fragment]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmView:
    """The parts of an ensemble that an algorithm can read.

    - ``instance`` is the name of the instance to build.
    - ``groups`` has the job groups of the file by name.
    - ``statistics`` has the names of all available statistics.
    - ``capabilities`` are those of the executor, or ``None`` if the executor is not known yet.
    """

    instance: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    statistics: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPlugin:
    """The record of an algorithm: a named set of rules with options.

    - ``objective`` states the goal of the algorithm in one line.
    - ``options`` is a JSON Schema of the key ``with``. Its properties may have the same annotations
      as those of actions (``"x-ensemble": "group"``, ``metric``, ``action`` …).
    - ``build`` is called with the checked options and an :class:`AlgorithmView`, and returns a
      :class:`Fragment`. It is called when a run begins, and when a command such as ``ensemble
      validate`` checks the file. Resume and replay use the stored result. It must be pure and
      deterministic: it uses no clock and no files, and randomness only with an option ``seed``.
    - ``needs`` lists capabilities that the executor must have.
    - ``supports`` lists the executors with which the algorithm works (empty: any).
    - ``example`` is a complete ensemble file that uses the algorithm and ends within seconds on the
      executor ``local``.

    Rule ids get the instance's name as a prefix: the rule ``grow`` of the instance ``demand`` has
    the id ``demand-grow``. References to the fragment's rules and statistics are translated.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any], AlgorithmView], Fragment]
    objective: str = ""
    options: Schema = field(default_factory=lambda: _NOTHING)
    needs: frozenset[str] = frozenset()
    supports: frozenset[str] = frozenset()
    example: str = ""
