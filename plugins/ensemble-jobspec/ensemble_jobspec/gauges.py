"""Gauges of the queue before a run: what it can ever hold, by which alternatives are chosen.

The executor is opened for that and closed again; nothing is submitted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ensemble_core import EnsembleError, Run
from ensemble_core.cli.toolkit import ExecutorChoice, Registry, build_executor, print_warning
from ensemble_jobspec.workload import Group, Task, Workload

__all__ = ["gauges_of", "has_alternatives"]


def has_alternatives(workload: Workload) -> bool:
    """True if a task or group asks for one of several resources."""
    members: list[Task | Group] = [*workload.every_task(), *workload.every_group()]
    return any(each.request is not None and len(each.request.alternatives) > 1 for each in members)


def gauges_of(registry: Registry, choice: ExecutorChoice) -> Mapping[str, float] | None:
    """The executor's gauges; ``None`` where it does not tell, which is warned of."""
    executor = build_executor(registry, choice.record, choice.options)
    try:
        with tempfile.TemporaryDirectory(prefix="ensemble-jobspec-") as folder:
            executor.open(Run("jobspec-gauges", Path(folder), time.time), lambda events: None)
            try:
                found = dict(executor.resources())
            finally:
                executor.close()
        if all(found.get(name, 1) for name in ("nodes.up", "cores.up")):
            return found
        why = f"nothing is up in {choice.name} now"  # which says nothing of later
    except EnsembleError as error:
        why = error.what
    print_warning(f"the first of alternative resources is taken: {why}")
    return None
