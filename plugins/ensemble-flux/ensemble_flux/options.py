"""Options of the executor and of a job group, as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["JOB_OPTIONS", "OPTIONS"]

#: What ``--option KEY=VALUE`` may set.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "uri": {
            "type": "string",
            "description": "The instance to connect to; default: FLUX_URI, or the system's own.",
        },
        "queue": {"type": "string", "description": "Flux queue that jobs go to."},
        "bank": {"type": "string", "description": "Bank that jobs are accounted to."},
        "output": {
            "enum": ["auto", "files", "kvs"],
            "default": "auto",
            "description": "Where output goes that no job names a file for: the run's folder, or "
            "Flux's store ('flux job attach'); auto: the folder if all nodes see it.",
        },
        "events": {
            "enum": ["auto", "journal", "eventlogs"],
            "default": "auto",
            "description": "Where job events come from: the instance's journal (its owner only), "
            "or each job's own eventlog; auto: the journal if we may read it.",
        },
    },
}

#: What a job group may say under ``options: {flux: …}``.
JOB_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": {"type": "string", "description": "Flux queue that the jobs go to."},
        "bank": {"type": "string", "description": "Bank that the jobs are accounted to."},
        "exclusive": {
            "type": "boolean",
            "default": False,
            "description": "Whether the jobs have their nodes to themselves.",
        },
        "instance": {
            "type": "boolean",
            "default": False,
            "description": "Whether the job is a Flux instance of its own on what it is given, and "
            "the command its initial program.",
        },
        "any_nodes": {
            "type": "boolean",
            "default": False,
            "description": "Whether Flux may spread the tasks over any nodes: the group's 'nodes' "
            "are not asked for.",
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
