"""The executor plugin ``flux`` and its options. Flux itself is imported only when a run starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Job, Rendered, hookimpl

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


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_flux.executor import FluxExecutor

    return FluxExecutor(**options)


def _available() -> tuple[bool, str]:
    uri = os.environ.get("FLUX_URI")
    if not uri:
        return False, "FLUX_URI is not set: not inside a Flux instance"
    return True, f"FLUX_URI={uri}"


def _inside() -> str:
    # A program that starts an instance, as 'flux batch' and 'flux alloc' do, has no FLUX_JOB_ID.
    job, nodes = os.environ.get("FLUX_JOB_ID"), os.environ.get("FLUX_JOB_NNODES", "1")
    return f"Flux job {job} with {nodes} node{'s' if nodes != '1' else ''}" if job else ""


def _render(job: Job, options: Mapping[str, Any]) -> Rendered:
    import json

    from ensemble_flux.jobspec import Jobspecs

    # Omit the environment of this process, because it may contain secrets.
    own = Jobspecs("RUN", "ID", {}, ".", queue=options.get("queue"), bank=options.get("bank"))
    return Rendered(json.dumps(json.loads(own.write(job)), indent=2), "application/json")


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``flux``."""

    return [
        ExecutorPlugin(
            name="flux",
            summary="Runs jobs in the surrounding Flux instance",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "avoid", "signal", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            priority=100,
            grace="Flux's kill-timeout",
            memory="Flux's scheduler does not count memory",
            render=_render,
            inside=_inside,
        )
    ]
