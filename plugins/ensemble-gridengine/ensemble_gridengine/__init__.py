"""Grid Engine for Ensemble: the executor ``gridengine``, and its options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Job, Rendered, hookimpl

__all__ = ["ensemble_executors"]

#: As Slurm's: above this machine's own processes, below a Flux instance that one is inside of.
_PRIORITY = 50

_QUEUE = {"type": "string", "description": "Queue (or several, a.q,b.q) that jobs go to."}
_PROJECT = {"type": "string", "description": "Project that jobs are charged to."}
_RESOURCES = {
    "type": "object",
    "description": "Further resources, as qsub -l NAME=VALUE, each for the whole job.",
    "additionalProperties": {"type": ["string", "number"]},
}
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": _QUEUE,
        "project": _PROJECT,
        "environment": {
            "type": "string",
            "description": "Parallel environment of jobs with several cores, with $pe_slots.",
        },
        "gpu": {"type": "string", "description": "Resource that stands for a GPU (gpu, ngpus)."},
        "poll": {
            "type": "number",
            "minimum": 0.2,
            "default": 15,
            "description": "Seconds within which an end is known that the job could not tell; "
            "6 at least.",
        },
    },
}
JOB_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"queue": _QUEUE, "project": _PROJECT, "resources": _RESOURCES},
}


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_gridengine.executor import GridEngineExecutor

    return GridEngineExecutor(**options)


def _render(job: Job, options: Mapping[str, Any]) -> Rendered:
    from ensemble_batch import Batch

    from ensemble_core import shell_line
    from ensemble_gridengine.executor import GridEngineExecutor

    words = GridEngineExecutor(**options).words(Batch("ens_RUN", (job,), "SCRIPT"))
    return Rendered(f"# {' '.join(words)}\n{shell_line(job)}")


def _available() -> tuple[bool, str]:
    import shutil

    if shutil.which("qsub") is None:
        return False, "qsub is not on the PATH: no Grid Engine here"
    root = os.environ.get("SGE_ROOT")
    if not root:
        return False, "qsub is there, but SGE_ROOT is not set: source the cell's settings.sh"
    return True, f"SGE_ROOT={root}"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """The executor ``gridengine``."""
    return [
        ExecutorPlugin(
            name="gridengine",
            summary="Runs jobs on a Grid Engine cluster, in array jobs",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            priority=_PRIORITY,
            render=_render,
        )
    ]
