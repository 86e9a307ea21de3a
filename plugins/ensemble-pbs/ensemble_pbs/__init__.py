"""The executor plugin ``pbs`` (OpenPBS and PBS Pro) and its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_batch.queue_options import LOST_AFTER, POLL, extra

from ensemble_core import Executor, ExecutorPlugin, Job, Rendered, hookimpl

#: The same as Slurm's: above the local executor, below a Flux instance that contains this process.
_PRIORITY = 50

_QUEUE = {"type": "string", "description": "Queue for the jobs."}
_PROJECT = {"type": "string", "description": "Project of the jobs (qsub -P)."}
_ACCOUNT = {"type": "string", "description": "Account to charge (qsub -A)."}
_RESOURCES = {
    "type": "object",
    "description": "Other resources of a job's chunk, as in qsub -l select=1:NAME=VALUE.",
    "additionalProperties": {"type": ["string", "number"]},
}
#: Options of ``qsub`` that users may not set, because the run sets them, or would lose track of its
#: jobs.
_OURS = r"^-([NoejJrfhSCIXzVvkqPA]|l (select|nodes|walltime|ncpus|mem)|W (block|umask))\b"
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": _QUEUE,
        "project": _PROJECT,
        "account": _ACCOUNT,
        "gpu": {
            "type": "string",
            "default": "ngpus",
            "description": "Resource name of a GPU.",
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
        "account": _ACCOUNT,
        "resources": _RESOURCES,
        "extra": extra(_OURS),
    },
}


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_pbs.executor import PBSExecutor

    return PBSExecutor(**options)


def _render(job: Job, options: Mapping[str, Any]) -> Rendered:
    from ensemble_batch import Batch

    from ensemble_core import shell_line
    from ensemble_pbs.executor import PBSExecutor

    words = PBSExecutor(**options).words(Batch("ens_RUN", (job,), "SCRIPT"))
    return Rendered(f"# {' '.join(words)}\n{shell_line(job)}")


def _available() -> tuple[bool, str]:
    import os
    import shutil

    if shutil.which("qsub") is None or shutil.which("pbsnodes") is None:
        return False, "qsub and pbsnodes are not on the PATH: no PBS"
    if os.environ.get("SGE_ROOT"):
        return False, "SGE_ROOT is set: qsub is Grid Engine's"
    return True, "qsub and pbsnodes are on the PATH"


def _inside() -> str:
    import os

    job = os.environ.get("PBS_JOBID")
    try:
        with open(os.environ.get("PBS_NODEFILE", ""), encoding="utf-8") as file:
            nodes = len({*file.read().split()})
    except OSError:
        nodes = 1
    return f"PBS job {job} with {nodes} node{'s' if nodes != 1 else ''}" if job else ""


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``pbs``."""
    return [
        ExecutorPlugin(
            name="pbs",
            summary="Runs jobs as arrays on OpenPBS (tested with 23.06.06) or PBS Pro (not tested)",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "signal", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            priority=_PRIORITY,
            render=_render,
            inside=_inside,
        )
    ]
