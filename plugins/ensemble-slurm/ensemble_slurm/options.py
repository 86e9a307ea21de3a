"""Options of the executor and of a job group, as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["JOB_OPTIONS", "OPTIONS", "SITE"]

#: What the executor says for groups that say nothing of it.
SITE: dict[str, Any] = {
    "partition": {"type": "string", "description": "Partition (or several, a,b) that jobs go to."},
    "account": {"type": "string", "description": "Account that jobs are charged to."},
    "qos": {"type": "string", "description": "Quality of service."},
    "reservation": {"type": "string", "description": "Reservation that jobs run in."},
    "constraint": {"type": "string", "description": "Features that nodes must have."},
}

#: What ``sbatch`` is told by us: said by others, jobs would be lost to the run.
_OURS = (
    "array|a|job-name|J|comment|output|o|error|e|input|i|parsable|wrap|wait|W|test-only|help|usage"
    "|version|V|hold|H|chdir|D|begin-now|clusters|M|nodes|N|ntasks|n|cpus-per-task|c|time|t"
    "|open-mode|export|export-file|quiet|Q|requeue|no-requeue"
)

#: What ``--option KEY=VALUE`` may set.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **SITE,
        "look": {
            "type": "number",
            "minimum": 0.2,
            "default": 30,
            "description": "Seconds between looks at the queue for jobs that say nothing.",
        },
        "rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 5,
            "description": "Commands of Slurm a second, at most.",
        },
        "listen": {
            "type": "string",
            "default": "auto",
            "description": "Where jobs report to: ADDRESS or ADDRESS:PORT of this machine, none "
            "(through files only), or auto: its address towards slurmctld.",
        },
        "jobcomp": {
            "type": "string",
            "description": "Folder in which the site's completion script tells of ended jobs.",
        },
    },
}

#: What a job group may say under ``options: {slurm: …}``.
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
            "description": "Whether Slurm may spread the tasks over any nodes: the group's 'nodes' "
            "are not asked for.",
        },
        "nice": {"type": "integer", "minimum": 0, "description": "Lowers the priority."},
        "requeue": {
            "type": "boolean",
            "default": False,
            "description": "Whether Slurm may start a job again from its beginning, after a node "
            "failed or it was preempted.",
        },
        "launch": {
            "enum": ["auto", "srun", "none"],
            "default": "auto",
            "description": "How tasks are started: by srun, by the command itself (none: it calls "
            "mpirun or srun), or auto: srun where there are several.",
        },
        "extra": {
            "type": "array",
            "description": "Further options of sbatch, each --NAME=VALUE.",
            "items": {
                "type": "string",
                "pattern": "^--[a-z]",
                "not": {
                    "description": "the run itself says that to sbatch: use the fields of the "
                    "group (nodes, tasks, duration, workdir, stdout …)",
                    "pattern": f"^--?({_OURS})(=|$)",
                },
            },
        },
    },
}
