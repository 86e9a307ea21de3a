"""Options of the executor and of a job group, as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Options for ``--option KEY=VALUE``.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "uri": {
            "type": "string",
            "description": "Flux instance to connect to; default: FLUX_URI, or the system's own.",
        },
        "queue": {"type": "string", "description": "Flux queue for the jobs."},
        "bank": {"type": "string", "description": "Bank to charge."},
        "output": {
            "enum": ["auto", "files", "kvs"],
            "default": "auto",
            "description": "Where to keep output of jobs without an output file: the run's "
            "folder, or Flux's store ('flux job attach'); auto: the folder if all nodes see it.",
        },
        "events": {
            "enum": ["auto", "journal", "eventlogs"],
            "default": "auto",
            "description": "Source of job events: the instance's journal (owner only) or each "
            "job's eventlog; auto: the journal if it is readable.",
        },
        "instance_ended": {
            "x-ensemble-flag": {"commands": ["resume"]},
            "type": "boolean",
            "default": False,
            "description": "For a resume: whether the instance with the run's jobs has certainly "
            "ended, although that cannot be checked from here.",
        },
    },
}

#: Options of a job group, under ``options: {flux: …}``.
JOB_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": {"type": "string", "description": "Flux queue for the jobs."},
        "bank": {"type": "string", "description": "Bank to charge."},
        "exclusive": {
            "type": "boolean",
            "default": False,
            "description": "Whether each job has exclusive nodes.",
        },
        "instance": {
            "type": "boolean",
            "x-ensemble-compared": True,
            "default": False,
            "description": "Whether to start a nested Flux instance on the job's resources, with "
            "the command as its initial program.",
        },
        "any_nodes": {
            "type": "boolean",
            "default": False,
            "description": "Whether Flux may spread the tasks over any nodes; then the group's "
            "'nodes' are ignored.",
        },
        "shell": {
            "type": "object",
            "description": "Options of the job shell, as 'flux submit -o' takes them.",
        },
        "attributes": {
            "type": "object",
            "description": "Attributes of the jobspec by dotted path, as 'flux submit --setattr'.",
        },
    },
}
