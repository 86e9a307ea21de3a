"""Converts a jobspec to another format: an ensemble file, a jobspec 0.1, or a shell script.

Kubernetes' manifests are made by ``kubernetes_writer``, and batch scripts by each executor.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core import Job, Rendered, UsageError, as_text, shell_line, unescape_braces
from ensemble_core.cli.toolkit import Registry, load_text, rendered
from ensemble_jobspec.conversion import Converted
from ensemble_jobspec.jobspec_errors import nearest
from ensemble_jobspec.resource_shapes import compute_shape
from ensemble_jobspec.task_dependencies import Unit, plan
from ensemble_jobspec.workload import Attributes, Group, Request, Script, Task, Vertex, Workload

#: The plugin's own targets, by name.
OWN = ("ensemble", "flux-script", "kubernetes", "nextgen", "script")
_YAML = "application/yaml"


def targets(registry: Registry) -> list[str]:
    """Return the names of all formats."""
    able = [name for name, record in registry.executors.items() if record.render is not None]
    return sorted({*OWN, *able})


def written(
    workload: Workload, converted: Converted, target: str, registry: Registry, image: str | None
) -> dict[str, Rendered]:
    """Return the texts in the format ``target``, by job group.

    If the format has one text for the whole jobspec, its key is the jobspec's name. Raises
    :class:`~ensemble_core.UsageError` for an unknown format.
    """
    name = converted.name
    if target == "ensemble":
        return {name: Rendered(as_yaml(converted.document), _YAML)}
    if target == "nextgen":
        return {name: Rendered(as_yaml(as_nextgen(workload)), _YAML)}
    if target == "kubernetes":
        from ensemble_jobspec.kubernetes_writer import as_documents, manifests

        if image is None:
            raise UsageError(
                "a Kubernetes Job needs an image",
                hint="add --image NAME; the image must contain the programs that the tasks run",
                code="no-image",
            )
        return {name: Rendered(as_documents(manifests(converted, image)), _YAML)}
    if target in ("flux-script", "script"):
        text = flux_script(converted) if target == "flux-script" else script(converted)
        return {name: Rendered(text)}
    known = targets(registry)
    if target not in known:
        raise UsageError(
            f"unknown target {target!r}", hint=nearest(target, known), code="no-such-target"
        )
    return _render(converted, target, registry)


def _render(converted: Converted, target: str, registry: Registry) -> dict[str, Rendered]:
    record = registry.executors[target]
    ensemble = load_text(as_yaml(converted.document), registry, file="", executor=record)
    defaults = {
        key: option["default"]
        for key, option in record.options.get("properties", {}).items()
        if "default" in option
    }
    return {
        name: rendered(record, next(group.jobs(0)), defaults)
        for name, group in ensemble.groups.items()
        if name in converted.shapes
    }


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return an ensemble file with each entry of ``jobs`` and ``rules`` on one line."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list):
            lines.append(f"{key}:")
            lines += [f"- {_flow(each)}" for each in value]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value in JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f").replace("\x85", "\\x85")


def as_nextgen(workload: Workload) -> dict[str, Any]:
    """Return a workload as the data of a jobspec 0.1."""
    return _Writer().written(workload)


class _Writer:
    def __init__(self) -> None:
        self._resources: dict[str, Any] = {}

    def written(self, workload: Workload) -> dict[str, Any]:
        if workload.form == "transform":
            tasks = self._step_tasks(workload)
        else:
            tasks = [self._task(task) for task in workload.tasks]
        groups = [self._group(group) for group in workload.groups]
        found: dict[str, Any] = {"version": 1, "name": workload.name}
        if self._resources:
            found["resources"] = self._resources
        if workload.requires:
            found["requires"] = {
                k: [dict(each) for each in v] for k, v in workload.requires.items()
            }
        if tasks:
            found["tasks"] = tasks
        if groups:
            found["groups"] = groups
        return found

    def _step_tasks(self, workload: Workload) -> list[dict[str, Any]]:
        """Return the tasks that the steps of a transform submit, each with its script."""
        units = {unit.name: unit for unit in plan(workload)}
        tasks = []
        for unit in units.values():
            if unit.kind != "job" or unit.task is None:
                continue
            scripts = {script.name: script for script in unit.task.scripts}
            file = unit.steps[0].options.get("filename") if unit.steps else None
            written = self._task(unit.task, None if file is None else scripts.get(file))
            written["name"] = unit.name
            before = [each for wait in unit.after for each in _preceding_jobs(units, wait)]
            if before:
                written["depends_on"] = list(dict.fromkeys(before))
            tasks.append(written)
        return tasks

    def _task(self, task: Task, script: Script | None = None) -> dict[str, Any]:
        script = script or task.script
        found: dict[str, Any] = {"name": task.name}
        if script is not None:
            first = "" if script.text.startswith("#!") else "#!/bin/sh\n"
            found["command"] = first + script.text
        elif task.command:
            found["command"] = list(task.command)
        if task.group is not None:
            found["group"] = task.group.text
        count = task.request
        if count is not None:
            found["resources"] = self._request(count)
        if task.replicas != 1:
            found["replicas"] = task.replicas
        if task.local:
            found["local"] = True
        stages = [step for step in task.steps if step.name == "stage"]
        if stages and script is None:
            found["steps"] = [{"name": "stage", "path": s.options["filename"]} for s in stages]
        return found | self._common(task)

    def _group(self, group: Group) -> dict[str, Any]:
        found: dict[str, Any] = {"name": group.name}
        if group.request is not None:
            found["resources"] = self._request(group.request)
        if group.tasks:
            found["tasks"] = [self._task(task) for task in group.tasks]
        if group.groups:
            found["groups"] = [self._group(inner) for inner in group.groups]
        return found | self._common(group)

    def _common(self, of: Task | Group) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if of.depends_on:
            found["depends_on"] = [name.text for name in of.depends_on]
        if of.requires:
            found["requires"] = of.requires
        attributes = _attributes(of.attributes)
        if attributes:
            found["attributes"] = attributes
        return found

    def _request(self, request: Request) -> str:
        """Return the name of the requested resources; add the resources if they are missing."""
        names: Sequence[str] = request.names
        if not names:
            names = [
                f"resources-{len(self._resources) + n}"
                for n in range(1, len(request.alternatives) + 1)
            ]
        for name, vertex in zip(names, request.alternatives, strict=True):
            if request.per_slot == 1 and request.total is None:
                written = _vertex(vertex)
            else:
                written = _slots(vertex, request)
            self._resources.setdefault(name, written)
        return "|".join(names)


def _preceding_jobs(units: Mapping[str, Any], name: str) -> list[str]:
    unit = units[name]
    if unit.kind == "job":
        return [name]
    return [each for wait in unit.after for each in _preceding_jobs(units, wait)]


def _slots(vertex: Vertex, request: Request) -> dict[str, Any]:
    """Return resources with one slot for each task, because this form has no tasks per slot."""
    shape = compute_shape(vertex, request.per_slot, request.total)
    inner: list[dict[str, Any]] = [{"type": "core", "count": shape.cores}]
    if shape.gpus:
        inner.append({"type": "gpu", "count": shape.gpus})
    each, rest = divmod(shape.tasks, shape.nodes)
    if shape.anywhere or rest:
        return {"type": "slot", "count": shape.tasks, "with": inner}
    slot = {"type": "slot", "count": each, "with": inner}
    return {"type": "node", "count": shape.nodes, "with": [slot]}


def _vertex(vertex: Vertex) -> dict[str, Any]:
    found: dict[str, Any] = {"type": vertex.type}
    found["replicas" if vertex.anywhere else "count"] = vertex.count
    if vertex.label:
        found["label"] = vertex.label
    if vertex.exclusive:
        found["exclusive"] = True
    if vertex.requires:
        found["requires"] = list(vertex.requires)
    if vertex.within:
        found["with"] = [_vertex(inner) for inner in vertex.within]
    return found


def _attributes(attributes: Attributes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("duration", "cwd", "watch"):
        value = getattr(attributes, name)
        if value is not None:
            found[name] = value
    if attributes.environment:
        found["environment"] = dict(attributes.environment)
    return found | dict(attributes.extra)


_HEAD = "#!/bin/sh\n# {name}: written by ensemble jobspec convert\nset -eu\n"


def _shell_path(text: str) -> str:
    """Quote a path for the shell; ``{cwd}`` and ``{run}`` in it become shell variables."""
    quoted = shlex.quote(text)
    # The shell's process id replaces the run's tag.
    return (
        quoted.replace("{cwd}", "'\"$here\"'").replace("{run}", "'\"$$\"'")
        if "{" in text
        else quoted
    )


def _sorted_units(units: Sequence[Unit]) -> list[Unit]:
    from graphlib import TopologicalSorter

    named = {unit.name: unit for unit in units}
    order = TopologicalSorter({unit.name: unit.after for unit in units}).static_order()
    return [named[name] for name in order]


def _action(converted: Converted, unit: Unit) -> Mapping[str, Any]:
    """Return the action that starts a unit on the controller's machine."""
    for rule in converted.rules:
        given = rule["action"]
        for action in given if isinstance(given, list) else [given]:
            if action.get("task") == unit.name:
                return action  # type: ignore[no-any-return]
            if action["name"] == "jobspec-files" and unit.name in str(action.get("then")):
                return action  # type: ignore[no-any-return]
    return {}


def _local_lines(converted: Converted, unit: Unit) -> list[str]:
    """Return the shell lines of a unit that runs on the controller's machine."""
    action = _action(converted, unit)
    if not action:
        return []
    if action["name"] == "jobspec-local":
        words = shlex.join(action["command"])
        changes = [f"{key}={value}" for key, value in action.get("environment", {}).items()]
        words = f"{shlex.join(['env', *changes])} {words}" if changes else words
        folder = action.get("workdir")
        line = f"( cd {_shell_path(folder)} && {words} )" if folder else words
        return [line] * action.get("count", 1)
    folder = _shell_path(action["folder"])
    lines = [f"mkdir -p {folder}"]
    for file in action["files"]:
        target = f"{folder}/{shlex.quote(file['name'])}"
        if "source" in file:
            lines.append(f"cp -R -- {shlex.quote(file['source'])} {target}")
        else:
            lines.append(f"printf %s {shlex.quote(file['content'])} >{target}")
            if file.get("executable"):
                lines.append(f"chmod 700 {target}")
    return lines


def _job(job: Mapping[str, Any]) -> Job:
    """Return a job of a group as a shell line."""
    return Job(
        id=job["name"],
        group=job["name"],
        index=0,
        command=tuple(unescape_braces(word) for word in job["command"]),
        environment={
            key: unescape_braces(value) for key, value in job.get("environment", {}).items()
        },
        nodes=job.get("nodes", 1),
        tasks=job.get("tasks", job.get("nodes", 1)),
        cores_per_task=job.get("cores_per_task", 1),
        gpus_per_task=job.get("gpus_per_task", 0),
        duration=job.get("duration", 0.0),
    )


def flux_script(converted: Converted) -> str:
    """Return a script that submits all jobs to Flux with their dependencies, and waits for them."""
    jobs = {job["name"]: job for job in converted.jobs}
    ids: dict[str, list[str]] = {}
    lines = [_HEAD.format(name=converted.name), "here=$(pwd)"]
    every: list[str] = []
    for number, unit in enumerate(_sorted_units(converted.units)):
        after = [name for wait in unit.after for name in ids[wait]]
        if unit.name not in jobs:
            beside = _local_lines(converted, unit)
            if beside and after:
                lines.append(f"flux job status {' '.join(after)}")
            lines += beside
            ids[unit.name] = [] if beside else after
            continue
        job = _job(jobs[unit.name])
        command, slot, many = (
            ("batch", "slot", "nslots") if unit.once else ("submit", "task", "ntasks")
        )
        words = ["flux", command, f"--job-name={unit.name}", f"--{many}={job.tasks}"]
        if not jobs[unit.name].get("options", {}).get("flux", {}).get("any_nodes"):
            words.append(f"--nodes={min(job.nodes, job.tasks)}")
        words.append(f"--cores-per-{slot}={job.cores_per_task}")
        if job.gpus_per_task:
            words.append(f"--gpus-per-{slot}={job.gpus_per_task}")
        if job.duration:
            words.append(f"--time-limit={as_text(job.duration)}s")
        words += [f"--env={key}={value}" for key, value in job.environment.items()]
        line = shlex.join([*words, "--wrap"] if unit.once else words)
        workdir = jobs[unit.name].get("workdir")
        if workdir:
            line += f" --cwd={_shell_path(workdir)}"
        # Flux replaces placeholders such as {{tmpdir}}, which cannot be escaped.
        program = shlex.join(job.command)
        depends = "".join(f" --dependency=afterok:{name}" for name in after)
        own = []
        for replica in range(unit.count):
            name = f"id_{number}_{replica}"
            lines.append(f"{name}=$({line}{depends} -- {program})")
            own.append(f"${name}")
        ids[unit.name] = own
        every += own
    lines.append(f"flux job status {' '.join(every)}" if every else ":")
    return "\n".join(lines) + "\n"


def script(converted: Converted) -> str:
    """Return a script that runs all tasks on this machine, in the order of their dependencies."""
    jobs = {job["name"]: job for job in converted.jobs}
    lines = [_HEAD.format(name=converted.name), "here=$(pwd)"]
    for unit in _sorted_units(converted.units):
        if unit.name not in jobs:
            lines += _local_lines(converted, unit)
            continue
        job = _job(jobs[unit.name])
        line = shell_line(job)
        workdir = jobs[unit.name].get("workdir")
        if workdir:
            line = f"mkdir -p {_shell_path(workdir)} && cd {_shell_path(workdir)} && {line}"
        times = unit.count * (1 if unit.once else job.tasks)
        lines += [f"# {unit.name}", *([f"( {line} )"] * times)]
    return "\n".join(lines) + "\n"
