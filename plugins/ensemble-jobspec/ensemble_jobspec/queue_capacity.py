"""Reads a queue's numbers of nodes, cores and GPUs, to check which resources it can provide."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ensemble_core import EnsembleError, Run
from ensemble_core.cli.toolkit import ExecutorChoice, Registry, build_executor, print_warning
from ensemble_jobspec.workload import Group, Request, Task, Vertex, Workload


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
