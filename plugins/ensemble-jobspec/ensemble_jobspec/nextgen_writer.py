"""Writes a workload as a jobspec 0.1 (the form ``nextgen``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_jobspec.resource_shapes import compute_shape
from ensemble_jobspec.unit_order import plan
from ensemble_jobspec.workload import Attributes, Group, Request, Script, Task, Vertex, Workload


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
