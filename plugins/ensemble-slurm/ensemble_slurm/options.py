"""JSON Schemas for the options of the executor and of a job group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_batch.queue_options import LOST_AFTER

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
