"""OpenPBS and PBS Pro for Ensemble: the executor ``pbs``, and its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Job, Rendered, hookimpl

__all__ = ["ensemble_executors"]

#: As Slurm's: above this machine's own processes, below a Flux instance that one is inside of.
_PRIORITY = 50

_QUEUE = {"type": "string", "description": "Queue that jobs go to."}
_PROJECT = {"type": "string", "description": "Project that jobs belong to (qsub -P)."}
_ACCOUNT = {"type": "string", "description": "Account that jobs are charged to (qsub -A)."}
_RESOURCES = {
    "type": "object",
    "description": "Further resources of a job's chunk, as in qsub -l select=1:NAME=VALUE.",
    "additionalProperties": {"type": ["string", "number"]},
}
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
            "description": "Resource that stands for a GPU.",
        },
        "poll": {
            "type": "number",
            "minimum": 0.2,
            "default": 15,
            "description": "Longest time in seconds until the end of a job that could not "
            "report it is known; values below 6 act as 6.",
        },
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
        return False, "qsub and pbsnodes are not on the PATH: no PBS here"
    if os.environ.get("SGE_ROOT"):
        return False, "SGE_ROOT is set: qsub is Grid Engine's"
    return True, "there are qsub and pbsnodes"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """The executor ``pbs``."""
    return [
        ExecutorPlugin(
            name="pbs",
            summary="Runs jobs on OpenPBS (run on 23.06.06) or PBS Pro (not yet run), as arrays",
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
