"""All hooks of Ensemble with their types: the manual for plugin authors.

``docs/plugin-tutorial.md`` develops and tests a complete plugin step by step.

A plugin is a module with functions that have the names below, each with the decorator
``@hookimpl``. Ensemble finds the plugin through the entry-point group ``ensemble`` of an installed
package::

    [project.entry-points.ensemble]
    notify = "ensemble_notify"

or loads it from a file: ``ensemble run --plugin ./notify.py study.yaml``. Each example below is
complete: save it as a file and it works. To add a subcommand of ``ensemble``, see
:mod:`ensemble_core.cli.toolkit`.

Hooks are called once, when plugins are loaded, and return records: a name, a one-line summary, a
JSON Schema of the options, and a function that builds the object that does the work. The classes in
``records`` document the other fields. Import heavy libraries inside the functions that need them:
every run loads every installed plugin.

In a record, ``options`` is the JSON Schema of an object. An option that it does not list is
rejected, with its position in the file and the most similar name. ``default`` values are filled in.

A plugin is broken if it cannot be imported, if a hook is misspelt or lacks ``@hookimpl``, or if a
record is invalid. A broken plugin is left out as a whole, and ``ensemble plugins list`` says why. A
run fails only if its file uses something from that plugin.

If two packages claim the same name, write ``PACKAGE:NAME``; a built-in always keeps its bare name.

Later versions may add arguments to hooks. No argument is changed or removed without notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pluggy

from ensemble_core.plugin.records import (
    ActionPlugin,
    AlgorithmPlugin,
    AlgorithmView,
    CallContext,
    EnvironmentPlugin,
    ExecutorPlugin,
    Fragment,
    GeneratorPlugin,
    ObserverPlugin,
    ResizerPlugin,
    SourcePlugin,
    SourceView,
    StatisticPlugin,
    TriggerPlugin,
)

__all__ = [
    "PROJECT",
    "ActionPlugin",
    "AlgorithmPlugin",
    "AlgorithmView",
    "CallContext",
    "EnvironmentPlugin",
    "ExecutorPlugin",
    "Fragment",
    "GeneratorPlugin",
    "ObserverPlugin",
    "ResizerPlugin",
    "SourcePlugin",
    "SourceView",
    "StatisticPlugin",
    "TriggerPlugin",
    "hookimpl",
    "hookspec",
]

PROJECT = "ensemble"

_F = TypeVar("_F", bound=Callable[..., Any])

hookspec: Callable[[_F], _F] = pluggy.HookspecMarker(PROJECT)
#: Decorator that marks a function of a plugin as a hook.
hookimpl: Callable[[_F], _F] = pluggy.HookimplMarker(PROJECT)


@hookspec
def ensemble_executors() -> Iterable[ExecutorPlugin]:  # type: ignore[empty-body]
    """Return executors: adapters to a queue.

    The docstring of :class:`~ensemble_core.plugin.executor.Executor` is the contract. The
    executor in this example runs nothing, and every job ends at once. ``ensemble run --plugin
    rehearse.py --executor rehearse study.yaml`` shows which rules would fire; with ``--status 1``,
    it shows which rules would fire if every job failed.

    To turn an option into a flag of the command line, add ``x-ensemble-flag`` to its schema. The
    value is ``true``, or a mapping with any of these keys:

    - ``help`` and ``metavar``: for ``--help``; by default the option's description
    - ``commands``: any of ``run``, ``resume`` and ``cancel``; by default only ``run``
    - ``path``: true if the value is a file, whose path is made absolute
    - ``instead_of``: options that contradict this flag. If ``ensemble resume`` gets the flag, the
      stored values of these options are dropped.

    A command's own flag takes precedence over an option's flag with the same name. If several
    executors have the same flag, its value goes to the chosen executor. ``-o KEY=VALUE`` sets any
    option.

    If an option names a file that several runs share, add ``"x-ensemble-member": "file"``.
    ``ensemble member start`` then passes the same file to all runs.

    ```python
    from ensemble_core import Executor, ExecutorPlugin, JobEvent, hookimpl

    LIFE = ("submit", "depend", "priority", "alloc", "start", "finish", "clean")


    class Rehearsal(Executor):
        def __init__(self, status):
            self.status = status

        def open(self, run, emit):
            self.run, self.emit = run, emit

        def submit(self, jobs):
            for job in jobs:
                for name in LIFE:
                    context = {"status": self.status << 8} if name == "finish" else {}
                    self.emit([JobEvent(self.run.clock(), job.id, name, context)])

        def cancel(self, jobs):
            pass  # all jobs are over

        def close(self):
            pass


    @hookimpl
    def ensemble_executors():
        status = {
            "description": "The exit status of every job.",
            "type": "integer",
            "minimum": 0,
            "maximum": 255,
            "x-ensemble-flag": {"metavar": "N"},
        }
        return [
            ExecutorPlugin(
                name="rehearse",
                summary="Runs nothing; every job ends at once",
                build=lambda options: Rehearsal(options.get("status", 0)),
                options={"type": "object", "properties": {"status": status}},
            )
        ]
    ```
    """


@hookspec
def ensemble_triggers() -> Iterable[TriggerPlugin]:  # type: ignore[empty-body]
    """Return triggers: event types that make a rule check its condition.

    A trigger filters existing events (of jobs, metrics, or time), or defines a new event type,
    which an executor then emits as a :class:`~ensemble_core.model.events.PluginEvent`. This example
    matches jobs of the rule's group that ran only briefly: ``{trigger: job-quick, name: sim, below:
    5, action: …}`` detects jobs that end suspiciously soon.

    ```python
    from ensemble_core import Trigger, TriggerPlugin, hookimpl


    def build(name, options):
        def ran_short(event, fields):
            duration = fields.get("duration")
            return duration is not None and duration < options["below"]

        return Trigger(events=("job-finish",), group=name, match=ran_short)


    @hookimpl
    def ensemble_triggers():
        return [
            TriggerPlugin(
                name="job-quick",
                summary="a job ended sooner than it should",
                build=build,
                name_means="group",
                options={
                    "type": "object",
                    "required": ["below"],
                    "properties": {
                        "below": {
                            "description": "Seconds below which a job is too quick.",
                            "type": "number",
                            "exclusiveMinimum": 0,
                        }
                    },
                },
            )
        ]
    ```
    """


@hookspec
def ensemble_actions() -> Iterable[ActionPlugin]:  # type: ignore[empty-body]
    """Return actions: what a rule does.

    An action with ``run`` may be slow: ``run`` is called in a separate thread with a
    :class:`CallContext`. The result (``None``, an action, a rule, or a list of these) is carried
    out next. An exception is reported and does not end the run. This example writes a line to a
    file and optionally submits a group: ``action: {name: note, text: half done, submit:
    analysis}``.

    ```python
    from ensemble_core import Action, ActionPlugin, hookimpl


    def run(context):
        with open(context.options["file"], "a", encoding="utf-8") as notes:
            notes.write(f"{context.rule.name}: {context.options['text']}\\n")
        group = context.options.get("submit")
        return Action(name="submit", label=group) if group else None


    @hookimpl
    def ensemble_actions():
        text = {"type": "string", "minLength": 1}
        return [
            ActionPlugin(
                name="note",
                summary="write a line to a file",
                run=run,
                options={
                    "type": "object",
                    "required": ["text", "file"],
                    "properties": {
                        "text": {"description": "What to write.", **text},
                        "file": {"description": "Where to write it.", **text},
                        "submit": {
                            "description": "A job group to submit then.",
                            "x-ensemble": "group",
                            **text,
                        },
                    },
                },
            )
        ]
    ```

    An action with ``plan`` is pure and fast, and sees the run through a
    :class:`~ensemble_core.model.rules.Firing`. The plan must yield the decisions that it makes:

    ```python
    from ensemble_core import ActionPlugin, hookimpl


    def plan(firing, options):
        waiting = firing.metric("queue.sched") or 0
        if waiting < 10:
            yield firing.submit(options["label"])
        else:
            yield firing.log(f"{waiting:g} jobs are waiting, so {options['label']} waits too")


    @hookimpl
    def ensemble_actions():
        label = {"description": "The job group.", "type": "string", "x-ensemble": "group"}
        return [
            ActionPlugin(
                name="submit-politely",
                summary="submit a group unless many jobs wait",
                plan=plan,
                options={
                    "type": "object",
                    "required": ["label"],
                    "properties": {"label": label},
                },
            )
        ]
    ```

    An action may run other actions, and may have a number that is calculated when the rule fires:
    ``{name: by-length, limit: '= 2 * metric("mean.sim-duration")', longer: {name: log, message:
    "{job} took more than {limit} s"}}``. The actions under ``longer`` are checked with the file.

    ```python
    from ensemble_core import ActionPlugin, expression, hookimpl

    THEN = {"x-ensemble": "action", "x-ensemble-fields": ["limit"]}


    def plan(firing, options):
        limit = options["limit"]
        if isinstance(limit, str):
            limit = expression(limit).value(firing.fields, firing.metric)
        duration = firing.fields.get("duration")
        if limit is None or duration is None:
            return
        chosen = options.get("longer" if duration > limit else "shorter", [])
        yield from firing.act(chosen, {"limit": limit})


    @hookimpl
    def ensemble_actions():
        return [
            ActionPlugin(
                name="by-length",
                summary="run different actions for long and short jobs",
                plan=plan,
                options={
                    "type": "object",
                    "required": ["limit"],
                    "properties": {
                        "limit": {
                            "description": "Seconds: a number, or an expression '= …'.",
                            "type": ["number", "string"],
                            "pattern": "^=",
                            "x-ensemble": "expression",
                        },
                        "longer": {"description": "Actions for a longer job.", **THEN},
                        "shorter": {"description": "Actions for any other job.", **THEN},
                    },
                },
            )
        ]
    ```
    """


@hookspec
def ensemble_statistics() -> Iterable[StatisticPlugin]:  # type: ignore[empty-body]
    """Return statistics over a variable of a job group, which are computed value by value.

    A statistic takes one value after another and needs constant memory. With this example, rules
    can use ``geomean.sim-duration``.

    ```python
    import math

    from ensemble_core import StatisticPlugin, hookimpl


    class GeometricMean:
        def __init__(self):
            self.count, self.logs = 0, 0.0

        def update(self, value):
            if value > 0:
                self.count += 1
                self.logs += math.log(value)

        def get(self):
            return math.exp(self.logs / self.count) if self.count else None


    @hookimpl
    def ensemble_statistics():
        return [
            StatisticPlugin(
                name="geomean",
                summary="geometric mean of the positive values",
                build=lambda options: GeometricMean(),
            )
        ]
    ```
    """


@hookspec
def ensemble_observers() -> Iterable[ObserverPlugin]:  # type: ignore[empty-body]
    """Return observers: readers of jobs' output.

    The run reads the growing file and passes its bytes on in arbitrary chunks; the observer returns
    rows of values. With ``observe: {energies: {log: md.log}}`` on the group ``sim``, this example
    turns lines like ``energy -1.5`` into ``last.sim-energy``, ``mean.sim-energy`` … If the file
    contains ``nan``, so does the row: a rule can test ``isnan(energy)`` or
    ``isnan(last.energy)``. Statistics such as the mean skip the value.

    ```python
    from ensemble_core import Observer, ObserverPlugin, Row, hookimpl


    class Energies(Observer):
        def __init__(self, path):
            self.log, self.rest = path, b""

        @property
        def path(self):
            return self.log

        def feed(self, data):
            *lines, self.rest = (self.rest + data).split(b"\\n")
            self.rest = self.rest[:4096]  # an endless line must not fill the memory
            return [row for line in lines if (row := self.row(line))]

        def truncated(self):
            self.rest = b""

        def row(self, line):
            word, _, number = line[:4096].partition(b" ")
            try:
                value = float(number)
            except ValueError:
                return None
            return Row({"energy": value}) if word == b"energy" else None


    @hookimpl
    def ensemble_observers():
        log = {"description": "The file to read.", "type": "string"}
        return [
            ObserverPlugin(
                name="energies",
                summary="lines of the form 'energy NUMBER'",
                build=lambda job, options: Energies(options.get("log")),
                options={"type": "object", "properties": {"log": log}},
                variables=lambda options: frozenset({"energy"}),
            )
        ]
    ```
    """


@hookspec
def ensemble_resizers() -> Iterable[ResizerPlugin]:  # type: ignore[empty-body]
    """Return resizers, with which ``ensemble-server start --resizer NAME`` changes members' sizes.

    The docstring of :class:`~ensemble_core.plugin.resizer.Resizer` is the contract. This example
    only keeps the sizes in memory:

    ```python
    from ensemble_core import Resized, Resizer, ResizerPlugin, hookimpl


    class Paper(Resizer):
        def __init__(self, most):
            self.most, self.sizes = most, {}

        def resize(self, member, delta):
            before = self.sizes.get(member, 1)
            granted = min(max(before + delta, 1), self.most)
            if granted == before:
                return Resized(
                    outcome="denied",
                    before=before,
                    asked=before + delta,
                    granted=before,
                    reason=f"between 1 and {self.most} nodes",
                    code="out-of-bounds",
                )
            self.sizes[member] = granted
            outcome = "granted" if granted == before + delta else "partial"
            return Resized(outcome=outcome, before=before, asked=before + delta, granted=granted)

        def size(self, member):
            return self.sizes.get(member, 1)


    @hookimpl
    def ensemble_resizers():
        most = {"description": "Maximum size.", "type": "integer", "minimum": 1, "default": 8}
        return [
            ResizerPlugin(
                name="paper",
                summary="sizes in memory only, for tests",
                build=lambda options: Paper(options["most"]),
                options={"type": "object", "properties": {"most": most}},
            )
        ]
    ```
    """


@hookspec
def ensemble_sources() -> Iterable[SourcePlugin]:  # type: ignore[empty-body]
    """Return sources: importers of job groups and rules from other kinds of files.

    An entry under ``jobs:`` that has a source's name as a key, and no ``command``, is replaced by
    the source's result before anything is checked. The run records the result, so resume and replay
    do not read the file again; ``ensemble validate --expanded`` prints it. With this example,
    ``jobs: [{task-list: tasks.yaml, prefix: night-}]`` imports the tasks of a file like
    ``{prepare: ./prepare, solve: {run: ./solve, after: prepare}}``. Errors in that file, including
    invalid commands, are reported with its line and column: :func:`ensemble_core.read_yaml` records
    the position of everything that it reads.

    ```python
    from ensemble_core import Fragment, SourcePlugin, UsageError, hookimpl, read_yaml


    def expand(options, view):
        name, prefix = options["task-list"], options["prefix"]
        document = read_yaml(view.read(name), view.called(name))
        if not isinstance(document.data, dict):
            raise UsageError("expected a mapping", where=document.at(()), code="wrong-type")
        jobs, rules, places = [], [], {}
        for task, given in document.data.items():
            given = given if isinstance(given, dict) else {"run": given}
            path = (task, "run") if isinstance(document.data[task], dict) else (task,)
            after = given.get("after")
            if after is not None and after not in document.data:
                where = document.at((task, "after"))
                raise UsageError(f"there is no task {after!r}", where=where, code="no-such-task")
            places["jobs", len(jobs)] = document.at_key((task,))
            places["jobs", len(jobs), "command"] = document.at(path)
            jobs.append({"name": prefix + task, "command": given.get("run")})
            trigger = {"trigger": "start"}
            if after is not None:
                trigger = {"trigger": "job-success", "name": prefix + after}
            rules.append({**trigger, "action": {"name": "submit", "label": prefix + task}})
        return Fragment(jobs=jobs, rules=rules, places=places)


    @hookimpl
    def ensemble_sources():
        text = {"type": "string", "minLength": 1}
        return [
            SourcePlugin(
                name="task-list",
                summary="tasks that run after one another",
                expand=expand,
                options={
                    "type": "object",
                    "properties": {
                        "task-list": {"description": "The file with the tasks.", **text},
                        "prefix": {
                            "description": "Prefix of the job groups' names.",
                            "type": "string",
                            "default": "",
                        },
                    },
                },
            )
        ]
    ```
    """


@hookspec
def ensemble_algorithms() -> Iterable[AlgorithmPlugin]:  # type: ignore[empty-body]
    """Return algorithms: named sets of rules, with options.

    An entry under ``use:`` names an algorithm. The entry is replaced by rules, which are checked
    and behave like those of the file, and come after them. ``ensemble algorithms show NAME`` prints
    these rules. ``trigger: start`` means the start of the instance: when the run begins, or when
    the run switches to the instance. With this example, ``use: [{algorithm: until-enough, with:
    {group: sim, enough: 20}}]`` keeps four jobs of ``sim`` active until 20 have succeeded.

    ```python
    from ensemble_core import AlgorithmPlugin, Fragment, hookimpl


    def build(options, view):
        group, at_once = options["group"], options["at_once"]
        another = {"name": "submit", "label": group}
        return Fragment(
            rules=[
                {"id": "begin", "trigger": "start", "action": [another] * at_once},
                {
                    "id": "next",
                    "trigger": "job-finish",
                    "name": group,
                    "repetitions": "unlimited",
                    "action": another,
                },
                {
                    "id": "enough",
                    "trigger": "metric",
                    "name": f"count.{group}.success",
                    "when": options["enough"],
                    "action": {"name": "terminate"},
                },
            ]
        )


    @hookimpl
    def ensemble_algorithms():
        number = {"type": "integer", "minimum": 1}
        return [
            AlgorithmPlugin(
                name="until-enough",
                summary="submit a group repeatedly until enough of its jobs have succeeded",
                objective="a number of successes in the shortest time",
                build=build,
                options={
                    "type": "object",
                    "required": ["group", "enough"],
                    "properties": {
                        "group": {
                            "description": "The job group.",
                            "type": "string",
                            "x-ensemble": "group",
                        },
                        "enough": {"description": "Successes that end the run.", **number},
                        "at_once": {"description": "Concurrent jobs.", "default": 4, **number},
                    },
                },
            )
        ]
    ```
    """


@hookspec
def ensemble_generators() -> Iterable[GeneratorPlugin]:  # type: ignore[empty-body]
    """Return generators, which suggest the next points. ``use`` under ``generators:`` names one.

    The docstring of :class:`~ensemble_core.model.generators.Generator` is the contract. This
    example tries both sides of the best point, each time at half the distance:

    ```python
    from ensemble_core import Generator, GeneratorPlugin, hookimpl


    class Halving(Generator):
        def __init__(self, vocs):
            (self.variable,) = vocs.variables
            (self.objective,) = vocs.objectives
            self.best, self.value = None, float("inf")
            self.asked = 0

        def suggest(self, count):
            low, high = self.variable.low, self.variable.high
            if self.best is None:
                return [{self.variable.name: (low + high) / 2}]
            step = (high - low) / 4 / 2 ** (self.asked // 2)
            side = 1 if self.asked % 2 else -1
            self.asked += 1
            return [{self.variable.name: min(max(self.best + side * step, low), high)}]

        def ingest(self, points):
            for point in points:
                if point.state == "done" and point.values[self.objective] < self.value:
                    self.best = point.parameters[self.variable.name]
                    self.value = point.values[self.objective]


    @hookimpl
    def ensemble_generators():
        return [
            GeneratorPlugin(
                name="halving",
                summary="both sides of the best point, each time at half the distance",
                build=lambda vocs, options: Halving(vocs),
            )
        ]
    ```
    """


@hookspec
def ensemble_environments() -> Iterable[EnvironmentPlugin]:  # type: ignore[empty-body]
    """Return environments, in which commands start. ``within`` in a job group names them.

    Only the job's command changes, so an environment works on every queue: the queue or its MPI
    launcher starts the changed command, once for each task. With this example, ``within: {spack:
    gromacs}`` loads a package of Spack. The words after ``sh -c SCRIPT`` are its arguments, so that
    no character of the command needs quotes:

    ```python
    from ensemble_core import ENVIRONMENT_FAILED, EnvironmentPlugin, hookimpl

    SCRIPT = f'''
    package=$1; shift
    found=$(spack load --sh "$package") || exit {ENVIRONMENT_FAILED}
    eval "$found"
    exec "$@"
    '''


    def wrap(job, options):
        return ["sh", "-c", SCRIPT, "spack", options["spack"], *job.command]


    @hookimpl
    def ensemble_environments():
        package = {"description": "The package.", "type": "string", "minLength": 1}
        return [
            EnvironmentPlugin(
                name="spack",
                summary="a package of Spack",
                wrap=wrap,
                options={
                    "type": "object",
                    "required": ["spack"],
                    "properties": {"spack": package},
                },
            )
        ]
    ```
    """
