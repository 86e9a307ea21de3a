"""Computes a job's nodes, tasks, cores and GPUs from a jobspec's resource tree.

A slot runs one task. Without slots, each node runs one task. Of several alternatives, the first one
that the queue can hold is chosen, by the queue's numbers of nodes, cores and GPUs.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ensemble_core import EnsembleError, Run, UsageError
from ensemble_core.cli.toolkit import ExecutorChoice, Registry, build_executor, print_warning
from ensemble_jobspec.workload import Group, Request, Task, Vertex, Workload

Copies = Literal["slots", "cores"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The resources of one job."""

    nodes: int = 1
    tasks: int = 1
    cores: int = 1
    gpus: int = 0
    anywhere: bool = False  # the tasks may be spread over any nodes
    whole: bool = False  # the nodes are exclusive
    notes: tuple[str, ...] = ()  # warnings


class _Count:
    """Numbers of nodes, slots, cores and GPUs in one resource tree."""

    def __init__(self) -> None:
        self.nodes: int | None = None
        self.slots: int | None = None
        self.inside: dict[str, dict[str, int]] = {}
        self.anywhere = self.whole = self.bare = False
        self.notes: list[str] = []

    def walk(self, vertex: Vertex, times: int, within: str) -> None:
        times *= vertex.count
        kind = vertex.type
        if kind in ("rack", "socket"):
            self.notes.append(
                f"{vertex.where}: a {kind} has no effect except to group its contents"
            )
        elif kind == "node":
            if within or self.nodes is not None:
                raise _fault(vertex, "a node inside a slot" if within else "two nodes on one level")
            self.nodes, times, within = times, 1, "node"
            self.anywhere |= vertex.anywhere
            self.whole |= vertex.exclusive
            self.bare = not vertex.within
        elif kind == "slot":
            if within == "slot" or self.slots is not None:
                raise _fault(vertex, "two slots")
            self.slots, times, within = times, 1, "slot"
        else:
            if vertex.within:
                raise _fault(vertex, f"contents of a {kind}")
            counts = self.inside.setdefault(within, {})
            counts[kind] = counts.get(kind, 0) + times
        for inner in vertex.within:
            self.walk(inner, times, within)


def _fault(vertex: Vertex, what: str) -> UsageError:
    return UsageError(
        f"unsupported resources: {what}",
        where=vertex.where,
        hint="nest slots in nodes, and cores and GPUs in slots; omit what you don't need",
        code="bad-resources",
    )


def compute_shape(
    vertex: Vertex, per_slot: int = 1, total: int | None = None, copies: Copies = "slots"
) -> Shape:
    """Return the shape of a job with these resources.

    If ``copies`` is ``"cores"``, each core runs a copy of the task, as in jobspec 0.0 and 0.1.
    Raises :class:`UsageError` with the place of unsupported resources.
    """
    count = _Count()
    count.walk(vertex, 1, "")
    beside = [kind for kind in ("", "node") if kind in count.inside]
    if count.slots is not None and beside:
        raise _fault(vertex, "cores or GPUs beside a slot")
    if len(count.inside) > 1 or (count.nodes is not None and "" in count.inside):
        raise _fault(vertex, "cores or GPUs beside a node")
    held = next(iter(count.inside.values()), {})
    cores, gpus = held.get("core", 1), held.get("gpu", 0)
    nodes = count.nodes or 1
    tasks = nodes * (1 if count.slots is None else count.slots)
    anywhere = count.anywhere or (count.slots is not None and count.nodes is None)
    shape = Shape(
        1 if anywhere else nodes, tasks, cores, gpus, anywhere, count.whole or count.bare,
        tuple(count.notes),
    )  # fmt: skip
    if copies == "cores":
        return replace(shape, tasks=tasks * cores, cores=1)
    if count.slots is None and cores > 1:
        note = f"{vertex.where}: one task with {cores} cores" + (" on each node" * (nodes > 1))
        note += f"; upstream would start {cores} copies (use 'copies: cores')"
        shape = replace(shape, notes=(*shape.notes, note))
    return _with_tasks(vertex, shape, per_slot, total)


def _with_tasks(vertex: Vertex, shape: Shape, per_slot: int, total: int | None) -> Shape:
    """Return the shape with ``per_slot`` tasks in each slot, or ``total`` tasks."""
    if total is not None:
        if total <= shape.tasks:
            return replace(shape, tasks=total)
        per_slot, rest = divmod(total, shape.tasks)
        if rest:
            raise _fault(vertex, f"{total} tasks in {shape.tasks} slots")
    if shape.cores % per_slot or shape.gpus % per_slot:
        raise _fault(vertex, f"{per_slot} tasks that share {shape.cores} cores in a slot")
    return replace(
        shape,
        tasks=shape.tasks * per_slot,
        cores=shape.cores // per_slot,
        gpus=shape.gpus // per_slot,
    )


def choose_shape(
    request: Request | None,
    copies: Copies,
    gauges: Mapping[str, float] | None,
    holder: str = "the queue",
    *,
    firm: bool = True,
) -> tuple[Shape, tuple[str, ...]]:
    """Choose the first alternative that the queue can hold. Return its shape and its requirements.

    The mapping ``gauges`` has the executor's gauges (``nodes.up``, ``cores.up``, ``gpus.up``);
    without them, the first alternative is chosen. If no alternative fits:

    - If the gauges are ``firm``, raise :class:`UsageError`; ``holder`` names the queue or
      allocation in its message.
    - Otherwise choose the first alternative, with a warning, because nodes can come back.
    """
    if request is None:
        return Shape(), ()
    lacking = []
    for number, vertex in enumerate(request.alternatives):
        shape = compute_shape(vertex, request.per_slot, request.total, copies)
        wanted = {
            "nodes.up": shape.nodes,
            "cores.up": shape.tasks * shape.cores,
            "gpus.up": shape.tasks * shape.gpus,
        }
        short = [
            f"{name} is {gauges[name]:g}, needs {least}"
            for name, least in wanted.items()
            if gauges is not None and name in gauges and gauges[name] < least
        ]
        if not short:
            return shape, _requirements(vertex)
        name = request.names[number] if request.names else vertex.type
        lacking.append(f"{name}: {', '.join(short)}")
    if not firm:
        first = request.alternatives[0]
        shape = compute_shape(first, request.per_slot, request.total, copies)
        note = (
            f"{request.where}: needs more than is up in {holder} now ({'; '.join(lacking)}): it is "
        )
        note += "submitted anyway and waits for nodes to come back"
        return replace(shape, notes=(*shape.notes, note)), _requirements(first)
    raise UsageError(
        f"{holder} can never hold "
        + ("these resources" if len(lacking) == 1 else "any of these resources"),
        where=request.where,
        cause="; ".join(lacking),
        hint="request fewer resources, or choose another executor",
        code="cannot-hold",
    )


def shape_gauges(shape: Shape) -> Mapping[str, float]:
    """Return the gauges of an allocation of this shape; for exclusive nodes, only ``nodes.up``."""
    nodes = {"nodes.up": float(shape.tasks if shape.anywhere else shape.nodes)}
    if shape.whole:
        return nodes
    cores, gpus = shape.tasks * shape.cores, shape.tasks * shape.gpus
    return {**nodes, "cores.up": float(cores), "gpus.up": float(gpus)}


def _requirements(vertex: Vertex) -> tuple[str, ...]:
    found = list(vertex.requires)
    for inner in vertex.within:
        found += _requirements(inner)
    return tuple(dict.fromkeys(found))


def needs_gauges(workload: Workload) -> bool:
    """Return whether a task or group requests alternatives, a GPU, or more than one core."""
    return any(
        len(each.alternatives) > 1 or _is_demanding(each.alternatives[0])
        for each in _requests(workload)
    )


def _requests(workload: Workload) -> list[Request]:
    members: list[Task | Group] = [*workload.every_task(), *workload.every_group()]
    return [each.request for each in members if each.request is not None]


def _is_demanding(vertex: Vertex) -> bool:
    return vertex.count > 1 or vertex.type == "gpu" or any(map(_is_demanding, vertex.within))


def read_gauges(
    registry: Registry, choice: ExecutorChoice, workload: Workload
) -> Mapping[str, float] | None:
    """Return the executor's gauges, or ``None`` if it reports none.

    Warns if the executor reports none, but one of several alternatives must be chosen.
    """
    alternatives = any(len(each.alternatives) > 1 for each in _requests(workload))
    here = choice.record.name == "local"
    # A resizable queue can grow, so its gauges are read only to choose between alternatives.
    if "resize" in choice.record.capabilities and not (here or alternatives):
        return None
    executor = build_executor(registry, choice.record, choice.options)
    try:
        with tempfile.TemporaryDirectory(prefix="ensemble-jobspec-") as folder:
            executor.open(Run("jobspec-gauges", Path(folder), time.time), lambda events: None)
            try:
                found = dict(executor.resources())
            finally:
                executor.close()
        if here:  # this machine also runs jobs of several nodes
            return {"gpus.up": 0.0, **found, "nodes.up": math.inf}
        if all(found.get(name, 1) for name in ("nodes.up", "cores.up")):
            return found
        why = f"{choice.name} has no nodes up now"  # the queue may have some later
    except EnsembleError as error:
        why = error.what
    if alternatives:
        print_warning(f"the first alternative of the resources is used: {why}")
    return None
