"""Slurm support for Ensemble: the executor ``slurm``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Job, JobGroup, Rendered, hookimpl

#: Higher than for local processes, lower than for a surrounding Flux instance.
_PRIORITY = 50
#: Configuration files of the distributions' packages, and of slurmd, which fetches the last one.
_CONFIGURED = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_slurm.executor import SlurmExecutor

    return SlurmExecutor(**options)


def _available() -> tuple[bool, str]:
    import shutil  # slow: it loads archive formats, which most commands never need

    found = shutil.which("sbatch")
    if found is None:
        return False, "sbatch is not on the PATH"
    for name in ("SLURM_CONF", "SLURM_CONF_SERVER"):
        if os.environ.get(name):
            return True, f"{name}={os.environ[name]}"
    if os.path.dirname(found) != "/usr/bin":
        return True, f"{found} is on the PATH"
    # The package may be installed on a machine outside of any cluster.
    for path in _CONFIGURED:
        if os.path.exists(path):
            return True, f"{path} exists"
    return False, f"{found} exists, but not {_CONFIGURED[0]}: this machine has no Slurm cluster"


def _render(job: Job, options: Mapping[str, Any]) -> Rendered:
    from ensemble_slurm.options import SITE
    from ensemble_slurm.sbatch import render

    site = {name: str(options[name]) for name in SITE if options.get(name) is not None}
    return Rendered(render(job, site), "text/x-shellscript")


def _inside() -> str:
    job, nodes = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NUM_NODES", "1")
    if not job:
        return ""
    text = f"Slurm job {job} with {nodes} node{'s' if nodes != '1' else ''}"
    again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    return f"{text}, started again ('--tag TAG --or-resume' continues a run)" if again else text


def _never(group: JobGroup, _: Mapping[str, Any]) -> tuple[str, str, str] | None:
    from ensemble_slurm.sbatch import wrong_memory

    why = next(filter(None, map(wrong_memory, group.sizes)), None)
    if why is None:
        return None
    profile = "; 'memory_per_task: null' removes that of a profile" * ("_task" in why)
    return "memory_per_task", why, f"remove one of them{profile}"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``slurm``."""
    from ensemble_slurm.options import JOB_OPTIONS, OPTIONS

    return [
        ExecutorPlugin(
            name="slurm",
            summary="Runs jobs on a Slurm cluster, in job arrays",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "avoid", "signal", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            priority=_PRIORITY,
            render=_render,
            inside=_inside,
            never=_never,
        )
    ]
