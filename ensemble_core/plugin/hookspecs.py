"""Every hook of Ensemble, typed: this file is the manual for plugin authors.

``docs/plugin-tutorial.md`` writes a whole plugin, step by step.

A plugin is a module (or any object) with functions of the names below, each marked
``@hookimpl``. It is found through the entry-point group ``ensemble`` of an installed package::

    [project.entry-points.ensemble]
    notify = "ensemble_notify"

or given as a single file: ``ensemble run --plugin ./notify.py study.yaml``. Each hook's example
below is complete: saved as a file, it works as it stands. A command of ``ensemble`` is no hook, but
an entry point of the group ``ensemble.commands``: see :mod:`ensemble_core.cli.toolkit`.

Hooks are called once, when plugins are loaded, and return records: a name, one line of summary, a
JSON Schema of the options, and how to build the thing. The objects that records build do the work.
What else each kind of record may say stands with its class, in ``records``.
Heavy imports belong into the functions that need them, not at the top of a plugin: every run loads
every installed plugin.

``options`` is the JSON Schema of an object, and closed: an option it does not name is refused, with
the place in the file and the nearest right spelling. Its ``default`` values are filled in.

A plugin that is broken (it cannot be imported, a hook is misspelt or not marked, a record is wrong)
is left out as a whole. ``ensemble plugins list`` says why, and a run is stopped only if its file
uses what is missing. Where two packages claim one name, ``PACKAGE:NAME`` says which is meant; a
built-in keeps its bare name in any case.

For the tests of a plugin there is a contract suite for each kind: see docs/plugin-tutorial.md.
Arguments may be added to hooks in later versions, never changed or removed without notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pluggy

from ensemble_core.plugin.fragments import (
    AlgorithmPlugin,
    AlgorithmView,
    Fragment,
    SourcePlugin,
    SourceView,
)
from ensemble_core.plugin.records import (
    ActionPlugin,
    CallContext,
    ExecutorPlugin,
    GeneratorPlugin,
    ObserverPlugin,
    ResizerPlugin,
    StatisticPlugin,
    TriggerPlugin,
)

__all__ = [
    "PROJECT",
    "ActionPlugin",
    "AlgorithmPlugin",
    "AlgorithmView",
    "CallContext",
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
#: Marks a function as a hook of a plugin.
hookimpl: Callable[[_F], _F] = pluggy.HookimplMarker(PROJECT)


@hookspec
def ensemble_executors() -> Iterable[ExecutorPlugin]:  # type: ignore[empty-body]
    """Executors: adapters to a queue.

    The docstring of :class:`~ensemble_core.plugin.executor.Executor` is the contract. This one is a
    rehearsal: it runs nothing, and every job ends at once. ``ensemble run --plugin rehearse.py
    --executor rehearse study.yaml`` shows which rules would fire, and with ``--status 1`` which
    would if every job failed.

    An option is a flag of the command line where its schema is marked with ``x-ensemble-flag``:
    ``true``, or a mapping with any of ``help`` and ``metavar`` (for ``--help``; else the option's
    description), ``commands`` (of ``run``, ``resume`` and ``cancel``; else only ``run``), ``path``
    (it names a file, which is made absolute) and ``instead_of`` (options that a resume is to forget
    where this flag is given). A flag that several executors have goes to the one that is chosen,
    and a flag of the command itself keeps its name; ``-o KEY=VALUE`` gives any option. One that is
    marked with ``"x-ensemble-member": "file"`` names a file that runs share; a member gives all of
    its runs the same.

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
            pass  # they are all over

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
    """Triggers: what wakes a rule.

    A trigger narrows an occasion that there is already (an event of a job, a metric, a time), or
    names one of its own, which an executor then reports with
    :class:`~ensemble_core.model.events.PluginEvent`. This one wakes when a job of the rule's group
    ran short, so ``{trigger: job-quick, name: sim, below: 5, action: …}`` notices jobs that end
    suspiciously soon.

    ```python
    from ensemble_core import Trigger, TriggerPlugin, hookimpl


    def build(name, options):
        def ran_short(event, fields):
            duration = fields.get("duration")
            return duration is not None and duration < options["below"]

        return Trigger(wakes=("job-finish",), group=name, match=ran_short)


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
    """Actions: what a rule does.

    An action with ``run`` may take its time: it is called in a thread of its own and gets a
    :class:`CallContext`. What it returns (``None``, an action, a rule, or a list of these) is done
    next. One that raises is reported and does not end the run. This one writes a line to a file
    and, if asked, submits a group: ``action: {name: note, text: half done, submit: analysis}``.

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

    An action with ``plan`` is pure and quick, decides on the spot, and sees the run through a
    :class:`~ensemble_core.model.rules.Firing`. It must hand on what it decides:

    ```python
    from ensemble_core import ActionPlugin, hookimpl


    def plan(firing, options):
        waiting = firing.metric("queue.sched") or 0
        if waiting < 10:
            yield firing.submit(options["label"])
        else:
            yield firing.log(f"{waiting:g} jobs wait already, {options['label']} can wait too")


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

    An action may leave to others what is done, and a number to the rule's circumstances:
    ``{name: by-length, limit: '= 2 * metric("mean.sim-duration")', longer: {name: log, message:
    "{job} took more than {limit} s"}}``. What stands under ``longer`` is checked with the file.

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
                summary="do one thing or another by how long the job ran",
                plan=plan,
                options={
                    "type": "object",
                    "required": ["limit"],
                    "properties": {
                        "limit": {
                            "description": "Seconds: a number, or '= …' to be worked out.",
                            "type": ["number", "string"],
                            "pattern": "^=",
                            "x-ensemble": "expression",
                        },
                        "longer": {"description": "What then.", **THEN},
                        "shorter": {"description": "What otherwise.", **THEN},
                    },
                },
            )
        ]
    ```
    """


@hookspec
def ensemble_statistics() -> Iterable[StatisticPlugin]:  # type: ignore[empty-body]
    """Statistics: streaming reducers over a variable of a job group.

    A statistic takes one value after another in constant memory. With this one installed, rules may
    speak of ``geomean.sim-duration``.

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
                summary="Geometric mean of what is above zero",
                build=lambda options: GeometricMean(),
            )
        ]
    ```
    """


@hookspec
def ensemble_observers() -> Iterable[ObserverPlugin]:  # type: ignore[empty-body]
    """Observers: readers of jobs' output.

    The run follows the file and hands its bytes on as they come, cut anywhere; the observer gives
    back rows of values. With ``observe: {energies: {log: md.log}}`` on the group ``sim``, this one
    turns lines like ``energy -1.5`` into ``last.sim-energy``, ``mean.sim-energy`` … Where the file
    says ``nan``, so does the row: a rule can ask for ``isnan(energy)``, and metrics pass over it.

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
            self.rest = self.rest[:4096]  # a line without end must not fill the memory
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
                summary="Lines of the form 'energy NUMBER'",
                build=lambda job, options: Energies(options.get("log")),
                options={"type": "object", "properties": {"log": log}},
                variables=lambda options: frozenset({"energy"}),
            )
        ]
    ```
    """


@hookspec
def ensemble_resizers() -> Iterable[ResizerPlugin]:  # type: ignore[empty-body]
    """Resizers: what ``ensemble-server start --resizer NAME`` changes the sizes of members with.

    The docstring of :class:`~ensemble_core.plugin.resizer.Resizer` is the contract. This one keeps
    the sizes in memory, for a rehearsal:

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
        most = {"description": "Most nodes.", "type": "integer", "minimum": 1, "default": 8}
        return [
            ResizerPlugin(
                name="paper",
                summary="sizes in memory, for a rehearsal",
                build=lambda options: Paper(options["most"]),
                options={"type": "object", "properties": {"most": most}},
            )
        ]
    ```
    """


@hookspec
def ensemble_sources() -> Iterable[SourcePlugin]:  # type: ignore[empty-body]
    """Sources: files of another kind that bring job groups and rules.

    An entry under ``jobs:`` that has a source's name as a key, and no ``command``, stands for what
    the source makes of it, before anything is checked. The run keeps what that was, so that neither
    a resume nor a replay reads the file again; ``ensemble validate --expanded`` prints it.
    With this one, ``jobs: [{task-list: tasks.yaml, prefix: night-}]`` brings the tasks of a file
    like ``{prepare: ./prepare, solve: {run: ./solve, after: prepare}}``. Whatever is wrong in that
    file, also a command that is no command, is told with its line and column there:
    :func:`ensemble_core.read_yaml` knows the places of what it reads.

    ```python
    from ensemble_core import Fragment, SourcePlugin, UsageError, hookimpl, read_yaml


    def expand(options, view):
        name, prefix = options["task-list"], options["prefix"]
        document = read_yaml(view.read(name), view.called(name))
        if not isinstance(document.data, dict):
            raise UsageError("a task list is a mapping", where=document.at(()), code="wrong-type")
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
            woken = {"trigger": "start"}
            if after is not None:
                woken = {"trigger": "job-success", "name": prefix + after}
            rules.append({**woken, "action": {"name": "submit", "label": prefix + task}})
        return Fragment(jobs=jobs, rules=rules, places=places)


    @hookimpl
    def ensemble_sources():
        text = {"type": "string", "minLength": 1}
        return [
            SourcePlugin(
                name="task-list",
                summary="tasks that follow one another",
                expand=expand,
                options={
                    "type": "object",
                    "properties": {
                        "task-list": {"description": "The file with the tasks.", **text},
                        "prefix": {
                            "description": "Put before the tasks' names.",
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
    """Algorithms: rules under a name, with options.

    An entry under ``use:`` names one. It becomes rules that are checked and behave like those of
    the file, and come after them; ``ensemble algorithms show NAME`` prints which. ``trigger:
    start`` means the start of the instance: when the run begins, or when it is switched to. With
    this one, ``use: [{algorithm: until-enough, with: {group: sim, enough: 20}}]`` keeps four jobs
    of ``sim`` under way until 20 have succeeded.

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
                summary="submit a group again until enough of its jobs have succeeded",
                objective="so many successes, in the shortest time",
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
                        "enough": {"description": "So many successes end the run.", **number},
                        "at_once": {"description": "Jobs at a time.", "default": 4, **number},
                    },
                },
            )
        ]
    ```
    """


@hookspec
def ensemble_generators() -> Iterable[GeneratorPlugin]:  # type: ignore[empty-body]
    """Generators: what ``use`` under ``generators:`` names, which chooses the next point.

    The docstring of :class:`~ensemble_core.model.generators.Generator` is the contract. This one
    looks to both sides of the best point, each time half as far:

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
                summary="both sides of the best point so far, each time half as far",
                build=lambda vocs, options: Halving(vocs),
            )
        ]
    ```
    """
