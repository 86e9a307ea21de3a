"""Converts a workload into job groups and rules of an ensemble file, with :class:`Options`.

Each task, group or step becomes a job group or an action. Rules start it when all its dependencies
have succeeded.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ensemble_core import UsageError, escape_braces
from ensemble_jobspec.options_by_executor import (
    broker_words,
    literal,
    queue_options,
    run_script_once,
)
from ensemble_jobspec.resource_shapes import Copies, Shape, choose_shape, shape_gauges
from ensemble_jobspec.site_requirements import site_options
from ensemble_jobspec.staging import script_words, stage_files
from ensemble_jobspec.task_dependencies import Mode, Unit, plan
from ensemble_jobspec.workload import Attributes, Group, Request, Task, Workload

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


#: Executors whose jobs run on the controller's machine.
_HERE = ("local",)
#: Maximum length of a chain of waiting rules. More dependencies are split into parts.
_IN_A_ROW = 16


def convert(workload: Workload, options: Options | None = None) -> Converted:
    """Return the job groups and rules of a workload.

    Raises :class:`~ensemble_core.UsageError` for features that the executor does not support.
    """
    return _Conversion(workload, options or Options()).converted()


class _Conversion:
    def __init__(self, workload: Workload, options: Options) -> None:
        self._workload = workload
        self._options = options
        self._jobs: list[dict[str, Any]] = []
        self._rules: list[dict[str, Any]] = []
        self._shapes: dict[str, Shape] = {}
        self._selectors: dict[str, Mapping[str, Any]] = {}
        self._warnings = list(workload.warnings)
        self._told: set[str] = set()
        self._watched: list[str] = []
        self._ids: set[str] = set()
        self._first = ""
        self._done_ids: dict[str, str] = {}

    def converted(self) -> Converted:
        workload, options = self._workload, self._options
        units = plan(
            workload, options.mode, only=options.only, prefix=options.prefix, skip=options.skip
        )
        self._ids.update(unit.name for unit in units)
        self._first = self._id(f"{options.prefix}begin")
        begins = {unit.name: self._begin(unit) for unit in units}
        counts = {unit.name: self._done(unit) for unit in units}
        if options.submit:
            first = [begins[unit.name] for unit in units if not unit.after]
            begin = {"id": self._first, "trigger": "start", "action": first}
            self._rules.insert(0, begin)
        for unit in units:
            self._wait(unit.name, unit.after, begins[unit.name], counts)
        if not self._jobs:  # everything runs on the controller's machine
            self._jobs.append({"name": self._id(f"{options.prefix}no-jobs"), "command": ["true"]})
        return Converted(
            name=options.prefix.rstrip("-") or workload.name,
            jobs=self._jobs,
            rules=self._rules,
            shapes=self._shapes,
            selectors=self._selectors,
            units=units,
            watched=self._watched,
            warnings=self._warnings,
        )

    # -- rules ---------------------------------------------------------------------------------

    def _id(self, text: str) -> str:
        name, number = text[:95], 1
        while name in self._ids:
            number += 1
            name = f"{text[:95]}-{number}"
        self._ids.add(name)
        return name

    def _done(self, unit: Unit) -> tuple[str, int]:
        """Return the metric that counts a unit's finished jobs, and its value when all are done."""
        if unit.kind in ("job", "batch") or (unit.kind == "local" and self._is_job(unit)):
            return f"count.{unit.name}.success", unit.count
        if unit.kind == "end":
            return f"count.rule.{unit.name}", 1
        return f"count.rule.{self._done_ids[unit.name]}", 1

    def _wait(
        self,
        name: str,
        waits: Sequence[str],
        begin: dict[str, Any],
        counts: Mapping[str, tuple[str, int]],
    ) -> None:
        """Add the rules that start a unit once all its dependencies are done.

        Each rule enables the next, so dependencies that finish together cause a chain of firings.
        To keep the chain short, dependencies are grouped into parts, and parts of parts.
        """
        if len(waits) > _IN_A_ROW:
            parts = [waits[at : at + _IN_A_ROW] for at in range(0, len(waits), _IN_A_ROW)]
            done = {**counts}
            for number, part in enumerate(parts):
                own = self._id(f"{name}-part-{number}")
                said = {
                    "name": "log",
                    "message": f"{name}: part {number} of its dependencies is done",
                }
                self._wait(own, part, said, counts)
                done[own] = (f"count.rule.{own}", 1)
            self._wait(name, [*done][len(counts) :], begin, done)
            return
        names = [*(self._id(f"{name}-after-{wait}") for wait in waits[:-1]), name]
        for number, wait in enumerate(waits):
            path, least = counts[wait]
            last = number + 1 == len(waits)
            # If a dependency fails, the run's summary lists the rules that did not fire.
            action = begin if last else {"name": "enable", "rules": names[number + 1]}
            rule: dict[str, Any] = {
                "id": names[number],
                "trigger": "metric",
                "name": path,
                "when": f">= {least}",
                "action": action,
            }
            if number:
                rule["enabled"] = False
            self._rules.append(rule)

    def _done_rule(self, unit: Unit) -> dict[str, Any]:
        """Return the rule that counts a finished unit of the controller's machine.

        An action enables the rule.
        """
        rule_id = self._done_ids[unit.name] = self._id(f"{unit.name}-done")
        self._rules.append(
            {
                "id": rule_id,
                "trigger": "metric",
                "name": f"count.rule.{rule_id}",  # always true: fires once it is enabled
                "when": ">= 0",
                "enabled": False,
                "action": {"name": "log", "message": f"{unit.name} is done"},
            }
        )
        return {"name": "enable", "rules": rule_id}

    # -- starting units ------------------------------------------------------------------------

    def _is_job(self, unit: Unit) -> bool:
        return self._options.executor in _HERE and not any(s.name == "auth" for s in unit.steps)

    def _begin(self, unit: Unit) -> dict[str, Any]:
        """Return the action that starts a unit; for a job, also add its group."""
        if unit.kind == "files":
            return self._files(unit)
        if unit.kind == "local" and not self._is_job(unit):
            return self._local(unit)
        if unit.kind == "end":
            return {"name": "log", "message": f"{unit.name}: all done"}
        if unit.kind == "batch":
            self._batch(unit)
        else:
            self._job(unit)
        return {"name": "submit", "label": unit.name}

    def _text(self, text: str) -> str:
        return escape_braces(text, self._options.parameters)

    def _files(self, unit: Unit) -> dict[str, Any]:
        assert unit.task is not None
        contents = {script.name: script.text for script in unit.task.scripts}
        files: list[dict[str, Any]] = []
        for step in unit.steps:
            name = step.options["filename"]
            if step.name == "copy":
                files.append({"name": name, "source": step.options["source"]})
            else:
                file: dict[str, Any] = {"name": name, "content": contents[name]}
                if step.options.get("executable"):
                    file["executable"] = True
                files.append(file)
        return {
            "name": "jobspec-files",
            "task": unit.name,
            "folder": self._stage(unit),
            "files": files,
            "then": self._done_rule(unit),
        }

    def _stage(self, unit: Unit) -> str:
        return unit.stage or self._options.stage

    def _local(self, unit: Unit) -> dict[str, Any]:
        task = unit.task
        assert task is not None
        action: dict[str, Any] = {"name": "jobspec-local", "task": unit.name}
        if unit.steps:  # auth
            command = unit.steps[0].options["command"]
            action["command"] = _split(command)
            action["secret"] = True
        else:
            action["command"] = list(task.command or script_words(task.script))  # type: ignore[arg-type]
            own = task.attributes
            if own.cwd:
                action["workdir"] = own.cwd
            if own.environment:
                action["environment"] = dict(own.environment)
            if own.duration:
                action["duration"] = own.duration
            if unit.count > 1:
                action["count"] = unit.count
        return {**action, "then": self._done_rule(unit)}

    def _job(self, unit: Unit) -> None:
        task = unit.task
        assert task is not None
        shape, required = self._choose_shape(task.request)
        command = task.command or (script_words(task.script) if task.script else ())
        workdir = task.attributes.cwd
        if unit.steps:
            file = unit.steps[0].options.get("filename")
            workdir = self._stage(unit)
            if file is not None:
                command = ("/bin/bash", file)
        job = self._group(unit, shape, required, task.attributes)
        job["command"] = [self._text(word) for word in command]
        shared = self._options.shared if unit.shared is None else unit.shared
        if unit.staged and not shared:
            stage_files(job, unit, shape, self._options.executor, self._options.contents)
        if workdir:
            # Our staging folder has placeholders; a folder that the user gives is taken literally.
            own = bool(unit.steps) and unit.stage is None
            job["workdir"] = workdir if own else self._text(workdir)
        if unit.once:
            run_script_once(job, shape, self._options.executor, self._options.executors)
        if unit.count > 1:
            job["count"] = unit.count
        self._parameters(job)
        for step in unit.steps:
            if step.options.get("watch"):
                self._watched.append(unit.name)

    def _parameters(self, job: dict[str, Any]) -> None:
        """Add the parameters that a job group's texts mention."""
        texts = [*job["command"], job.get("workdir", ""), *job.get("environment", {}).values()]
        given = self._options.parameters
        used = {
            name: value
            for name, value in given.items()
            if any(f"{{{name}}}" in text or f"{{{name}:" in text for text in texts)
        }
        if used:
            job["parameters"] = used

    def _batch(self, unit: Unit) -> None:
        group = unit.group
        assert group is not None
        shape, required = self._choose_shape(group.request)
        executor = self._options.executor
        wide = executor == "slurm" and shape.nodes > 1
        if wide and not self._options.flux:
            raise UsageError(
                f"the group {group.name!r} has {shape.nodes} nodes, but without Flux a Slurm "
                f"batch runs all tasks on its first node",
                where=group.where,
                cause="'flux' is not on the PATH, or ensemble-flux is not installed",
                hint="use --groups flat, or run the jobspec on a machine with Flux",
                code="cannot-nest",
            )
        self._check_inside(group, shape)
        file = self._options.file or self._workload.file
        inner = [*self._options.program, "jobspec", "run", file, "--only", "/".join(unit.path)]
        inner += ["--tag", "{run}-{id}", "--or-resume", "--no-progress"]
        inner += ["--state", self._options.state] if self._options.state else []
        job = self._group(unit, shape, required, group.attributes)
        if executor == "flux":
            inner += ["--executor", "flux"]
            job.setdefault("options", {}).setdefault("flux", {})["instance"] = True
        elif wide:  # one Flux broker on each node, with all of the job's resources there
            own = shape.tasks // shape.nodes
            inner = [*broker_words(shape.nodes, self._options.flux), *inner, "--executor", "flux"]
            job["environment"] = {"SLURM_MPI_TYPE": "pmi2", **job.get("environment", {})}
            job["cores_per_task"] = own * shape.cores
            job["gpus_per_task"] = own * shape.gpus
            job.pop("tasks", None)
            job.setdefault("options", {}).setdefault("slurm", {})["launch"] = "none"
        else:
            inner += ["--executor", "local", "-o", f"slots={shape.tasks * shape.cores}"]
            job["cores_per_task"] = shape.tasks * shape.cores
            job.pop("tasks", None)
        job["command"] = inner
        if group.attributes.cwd:
            job["workdir"] = self._text(group.attributes.cwd)
        if unit.count > 1:
            job["count"] = unit.count

    def _choose_shape(self, request: Request | None) -> tuple[Shape, tuple[str, ...]]:
        options = self._options
        return choose_shape(request, options.copies, options.gauges, firm=options.firm)

    def _check_inside(self, group: Group, shape: Shape) -> None:
        """Reject a group's tasks that cannot fit into its allocation."""
        gauges = shape_gauges(shape)
        holder = f"the group {group.name!r}"
        members: list[Task | Group] = [*group.tasks, *group.groups]
        for each in members:
            inner, _ = choose_shape(each.request, self._options.copies, gauges, holder)
            if isinstance(each, Group):  # without resources, it uses those of the enclosing group
                self._check_inside(each, inner if each.request is not None else shape)

    def _group(
        self, unit: Unit, shape: Shape, required: Sequence[str], attributes: Attributes
    ) -> dict[str, Any]:
        """Return a job group's fields, except its command."""
        self._warn(shape.notes)
        executor = self._options.executor
        if shape.whole and executor not in (None, "flux", "slurm"):
            what = f"{unit.name!r} requests whole nodes, but {executor!r} reserves only its cores"
            self._warn([f"{what}: other jobs may run beside it"])
        job: dict[str, Any] = {"name": unit.name, "command": []}
        self._jobs.append(job)
        self._shapes[unit.name] = shape
        fields = (
            ("nodes", shape.nodes, 1),
            ("tasks", shape.tasks, shape.nodes),
            ("cores_per_task", shape.cores, 1),
            ("gpus_per_task", shape.gpus, 0),
            ("duration", attributes.duration or 0, 0),
        )
        job.update({name: value for name, value, usual in fields if value != usual})
        if attributes.environment:
            job["environment"] = {k: self._text(v) for k, v in attributes.environment.items()}
        if attributes.watch:
            self._watched.append(unit.name)
        asks, strict = unit.task or unit.group, self._options.strict
        where = asks.where if asks else None
        met, notes = site_options(self._options.site, required, unit.name, where, strict=strict)
        self._warn(notes)
        options = queue_options(shape, attributes.extra, met)
        self._selectors[unit.name] = options.pop("kubernetes", {})
        known = {k: literal(v) for k, v in options.items() if v and k in self._options.executors}
        if known:
            job["options"] = known
        return job

    def _warn(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                self._warnings.append(note)


def _split(command: str | Sequence[Any]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
