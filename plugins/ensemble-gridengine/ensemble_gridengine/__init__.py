"""The executor plugin ``gridengine`` and its options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_batch.queue_options import LOST_AFTER, POLL, extra

from ensemble_core import Executor, ExecutorPlugin, Job, JobGroup, Rendered, hookimpl

#: The same as Slurm's: above the local executor, below a Flux instance that contains this process.
_PRIORITY = 50

_QUEUE = {"type": "string", "description": "Queue, or several (a.q,b.q), for the jobs."}
_PROJECT = {"type": "string", "description": "Project to charge."}
_RESOURCES = {
    "type": "object",
    "description": "Other resources, as in qsub -l NAME=VALUE, for the whole job.",
    "additionalProperties": {"type": ["string", "number"]},
}
#: Options of ``qsub`` that users may not set, because the run sets them, or would lose track of its
#: jobs.
_OURS = r"^-(N|S|r|wd|cwd|notify|o|e|j|t|h|terse|sync|b|now|pe|q|P|clear|verify|V|v|w|i|shell)( |$)"
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": _QUEUE,
        "project": _PROJECT,
        "environment": {
            "type": "string",
            "description": "Parallel environment for jobs with several cores ($pe_slots).",
        },
        "gpu": {"type": "string", "description": "Resource name of a GPU (gpu, ngpus)."},
        "memory": {
            "type": "string",
            "minLength": 1,
            "default": "h_vmem",
            "description": "Resource of a slot for memory_per_task, or several (h_vmem,mem_free).",
        },
        "lost_after": LOST_AFTER,
        "poll": POLL,
    },
}
JOB_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": _QUEUE,
        "project": _PROJECT,
        "resources": _RESOURCES,
        "extra": extra(_OURS),
    },
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


def never(job: Job, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return why a job of this size can never run: the key, the reason, and what to do."""
    if job.nodes > 1:
        what = f"it asks for {job.nodes} nodes, but jobs of several nodes are not supported"
        return "nodes", what, "use nodes: 1 and 'tasks'"
    if job.cores > 1 and not options.get("environment"):
        what = f"it asks for {job.cores} cores, but no parallel environment is named"
        key = "tasks" if job.cores_per_task == 1 else "cores_per_task"
        return key, what, "give the option environment=NAME ('qconf -spl' lists them)"
    if job.gpus and not options.get("gpu"):
        what = "it asks for GPUs, but their resource name is not set"
        return "gpus_per_task", what, "give the option gpu=NAME ('qconf -sc' lists them)"
    return None


def _never(group: JobGroup, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    found = (never(job, options) for job in group.sizes)
    return next((each for each in found if each is not None), None)


def _available() -> tuple[bool, str]:
    import shutil

    if shutil.which("qsub") is None:
        return False, "qsub is not on the PATH: no Grid Engine"
    root = os.environ.get("SGE_ROOT")
    if not root:
        return False, "qsub is on the PATH, but SGE_ROOT is not set: source the cell's settings.sh"
    return True, f"SGE_ROOT={root}"


def _inside() -> str:
    import os

    job, nodes = os.environ.get("JOB_ID"), os.environ.get("NHOSTS", "1")
    if not job or not os.environ.get("SGE_JOB_SPOOL_DIR"):
        return ""
    text = f"Grid Engine job {job} with {nodes} node{'s' if nodes != '1' else ''}"
    again = os.environ.get("RESTARTED", "0") != "0"
    return f"{text}, started again ('--tag TAG --or-resume' continues a run)" if again else text


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``gridengine``."""
    return [
        ExecutorPlugin(
            name="gridengine",
            summary="Runs jobs on a Grid Engine cluster, as array jobs",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "avoid", "signal", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            priority=_PRIORITY,
            never=_never,
            render=_render,
            inside=_inside,
        )
    ]
