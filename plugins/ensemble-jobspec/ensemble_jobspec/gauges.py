"""Gauges of the queue before a run: what is up in it. By them alternatives are chosen. What this
machine can never hold is refused before anything is submitted; of another queue, whose nodes may be
down or drained now, it is warned, and what becomes of it is left to the queue.

The executor is opened for that and closed again; nothing is submitted.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ensemble_core import EnsembleError, Run
from ensemble_core.cli.toolkit import ExecutorChoice, Registry, build_executor, print_warning
from ensemble_jobspec.workload import Group, Request, Task, Vertex, Workload

__all__ = ["needs_gauges", "read_gauges"]


def needs_gauges(workload: Workload) -> bool:
    """True if a task or group asks for one of several resources, or for more than a core."""
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
    """The executor's gauges; ``None`` where it does not tell, which is warned of where one of
    several resources is to be chosen. A queue that can be resized may get more than it has: it is
    asked for such a choice only."""
    alternatives = any(len(each.alternatives) > 1 for each in _requests(workload))
    here = choice.record.name == "local"
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
        if here:  # this machine runs what is for several nodes, too
            return {"gpus.up": 0.0, **found, "nodes.up": math.inf}
        if all(found.get(name, 1) for name in ("nodes.up", "cores.up")):
            return found
        why = f"nothing is up in {choice.name} now"  # which says nothing of later
    except EnsembleError as error:
        why = error.what
    if alternatives:
        print_warning(f"the first of alternative resources is taken: {why}")
    return None
