"""The executor plugin ``slurm`` and its options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_batch.queue_options import LOST_AFTER

from ensemble_core import Executor, ExecutorPlugin, Job, JobGroup, Rendered, hookimpl

#: Options of the executor that groups can override.
SITE: dict[str, Any] = {
    "partition": {"type": "string", "description": "Partition for jobs; several: a,b."},
    "account": {"type": "string", "description": "Account that jobs are charged to."},
    "qos": {"type": "string", "description": "Quality of service."},
    "reservation": {"type": "string", "description": "Reservation that jobs run in."},
    "constraint": {"type": "string", "description": "Features that nodes must have."},
}

#: Options of ``sbatch`` that users may not set, because the run would lose track of its jobs.
_OURS = (
    "array|a|job-name|J|comment|output|o|error|e|input|i|parsable|wrap|wait|W|test-only|help|usage"
    "|version|V|hold|H|chdir|D|begin-now|clusters|M|nodes|N|ntasks|n|cpus-per-task|c|time|t"
    "|open-mode|export|export-file|quiet|Q|requeue|no-requeue"
)

#: Options for ``--option KEY=VALUE``.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **SITE,
        "look": {
            "type": "number",
            "minimum": 0.2,
            "default": 30,
            "description": "Seconds between queries of the queue for jobs that do not report.",
        },
        "lost_after": LOST_AFTER,
        "rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 5,
            "description": "Maximum number of Slurm commands per second.",
        },
        "listen": {
            "type": "string",
            "default": "auto",
            "description": "Where jobs report: ADDRESS or ADDRESS:PORT of this machine, none "
            "(through files only), or auto: its address towards slurmctld.",
        },
        "jobcomp": {
            "type": "string",
            "description": "Folder where the site's completion script reports ended jobs.",
        },
    },
}

#: Options of a job group, under ``options: {slurm: …}``.
JOB_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **SITE,
        "mem": {"type": ["string", "integer"], "description": "Memory of each node (4G)."},
        "mem_per_cpu": {"type": ["string", "integer"], "description": "Memory of each core (2G)."},
        "gres": {"type": "string", "description": "Generic resources of each node (gpu:a100:2)."},
        "licenses": {"type": "string", "description": "Licenses (matlab:2)."},
        "exclusive": {
            "type": "boolean",
            "default": False,
            "description": "Whether the jobs have their nodes to themselves.",
        },
        "any_nodes": {
            "type": "boolean",
            "default": False,
            "description": "Whether Slurm may choose the number of nodes; the group's 'nodes' "
            "is then ignored.",
        },
        "nice": {"type": "integer", "minimum": 0, "description": "Lowers the priority."},
        "requeue": {
            "type": "boolean",
            "default": False,
            "description": "Whether Slurm may restart a job from its beginning after a node "
            "failure or preemption.",
        },
        "launch": {
            "x-ensemble-compared": True,
            "enum": ["auto", "srun", "none"],
            "default": "auto",
            "description": "How tasks are started: by srun, by the command itself (none: it calls "
            "mpirun or srun), or auto: by srun if there are several.",
        },
        "extra": {
            "type": "array",
            "x-ensemble-compared": True,  # it may name a container
            "description": "Further options of sbatch, each --NAME=VALUE.",
            "items": {
                "type": "string",
                "description": "an option of sbatch in its long form: --NAME or --NAME=VALUE",
                "pattern": "^--[a-z][a-z-]*(=.*)?$",
                "not": {
                    "description": "the run sets this option of sbatch: use the fields of the "
                    "group (nodes, tasks, duration, workdir, stdout …)",
                    "pattern": f"^--?({_OURS})(=|$)",
                },
            },
        },
    },
}


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
