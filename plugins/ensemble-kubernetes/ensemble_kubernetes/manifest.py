"""Manifest of the Kubernetes Job for a job, and a check that Kubernetes can run the job."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ensemble_batch.job_script import job_variables

from ensemble_core import Job, wrong_command

Object = dict[str, Any]
#: Label of a run's Jobs and pods, and their annotation with the job's id.
RUN, JOB = "ensemble.flux-framework.org/run", "ensemble.flux-framework.org/job"
#: Kubernetes' label with a pod's index in an Indexed Job.
INDEX = "batch.kubernetes.io/job-completion-index"
_HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


#: Why no job gets a signal before its time limit.
NO_WARNING = "Kubernetes sends no signal before a time limit"


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the executor that affect each Job."""

    image: str = ""
    gpu: str = "nvidia.com/gpu"
    ttl: int = 604_800

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Return the settings among an executor's options."""
        return cls(**{name: options[name] for name in cls.__slots__ if name in options})


def job_name(run_id: str, job: str) -> str:
    """Return the name of the Kubernetes Job for a job of the run with this identity.

    A job always gets the same name, so that its Kubernetes Job cannot be created twice.

    >>> job_name("e9d91d20bd94cc00", "Melt_2.3")
    'ens-melt-2-3-e9d91d20bd94cc00-febb0f22d6'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[:24].rstrip("-") or "job"
    digest = hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"ens-{readable}-{run_id}-{digest}"


def wrong(job: Job, settings: Settings) -> str | None:
    """Return why this job can never run in Kubernetes; ``None`` if it can."""
    own = job.options.get("kubernetes", {})
    if not own.get("image", settings.image):
        return (
            "it has no image: set one with -o image=IMAGE or in the job's options (kubernetes: "
            "{image: …})"
        )
    if job.workdir is not None and not os.path.isabs(job.workdir):
        return f"its workdir {job.workdir!r} is in the container: give an absolute path"
    if job.warn:
        return f"{NO_WARNING}: remove 'warn', or write 'timeout --signal=USR1 50m' in the command"
    if job.stderr is not None and job.stderr != job.stdout:
        return "a pod has only one log: use the same file for 'stdout' and 'stderr'"
    if job.nodes not in (1, job.tasks):
        return (
            f"{job.tasks} tasks on {job.nodes} nodes: use one node, or as many tasks as nodes; "
            "the executor minicluster has no such limit"
        )
    try:
        texts = (*job.command, *job.environment, *job.environment.values(), job.workdir or "")
        "".join(texts).encode()
    except UnicodeEncodeError:
        return "its command, environment or workdir is not valid UTF-8, which Kubernetes needs"
    return wrong_command(job)


def manifest(job: Job, tag: str, run_id: str, settings: Settings) -> Object:
    """Return the Kubernetes Job for a job, for which :func:`wrong` must have returned ``None``.

    The run's tag is for people. Its identity is in the names and labels.
    """
    own = job.options.get("kubernetes", {})
    labels = {"app.kubernetes.io/managed-by": "ensemble", RUN: run_id}
    metadata = {"labels": labels, "annotations": {JOB: job.id}}
    resources: Object = {"requests": {"cpu": str(job.cores_per_task)}}
    limits = {settings.gpu: str(job.gpus_per_task)} if job.gpus_per_task else {}
    if job.memory_per_task:
        resources["requests"]["memory"] = limits["memory"] = str(job.memory_per_task)
    if limits:
        resources["limits"] = limits
    container: Object = {
        "name": "job",
        "image": own.get("image", settings.image),
        "command": [_literal(word) for word in job.command],
        "env": _environment(job, tag),
        "resources": resources,
    }
    if job.workdir is not None:
        container["workingDir"] = job.workdir
    pod: Object = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    if job.tasks > 1:
        pod["affinity"] = _affinity(job, run_id, job_name(run_id, job.id))
    pod = _merge(pod, own.get("pod", {}))
    if job.avoid:
        pod["affinity"] = _elsewhere(pod.get("affinity") or {}, job.avoid)
    pod |= {"restartPolicy": "Never", "containers": [_merge(container, own.get("container", {}))]}
    if job.duration:
        pod["activeDeadlineSeconds"] = max(1, math.ceil(job.duration))
    if job.grace is not None:
        pod["terminationGracePeriodSeconds"] = math.ceil(job.grace)
    spec: Object = {
        "backoffLimit": 0,
        "completions": job.tasks,
        "parallelism": job.tasks,
        "ttlSecondsAfterFinished": settings.ttl,
        "template": {"metadata": metadata, "spec": pod},
    }
    if job.tasks > 1:
        spec["completionMode"] = "Indexed"
    if job.urgency == 0:
        spec["suspend"] = True
    name = job_name(run_id, job.id)
    notes = {**metadata["annotations"], f"{RUN}-tag": tag}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, JOB: name[-10:]}, "annotations": notes},
        "spec": spec,
    }


def _environment(job: Job, tag: str) -> list[Object]:
    values = {**job.environment, **job_variables(job, tag), "ENSEMBLE_TASK_RANK": "0"}
    found: list[Object] = [{"name": k, "value": _literal(v)} for k, v in values.items()]
    if job.tasks > 1:
        place = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        found[-1] = {"name": "ENSEMBLE_TASK_RANK", "valueFrom": place}
    return found


def _literal(text: str) -> str:
    """Escape a text so that Kubernetes does not expand ``$(NAME)`` or ``$$``."""
    return text.replace("$", "$$")


def _affinity(job: Job, run: str, name: str) -> Object:
    """Return the affinity that puts each task on a separate node, or all tasks on the same node."""
    same = {"matchLabels": {RUN: run, "batch.kubernetes.io/job-name": name}}
    kind = "podAntiAffinity" if job.nodes > 1 else "podAffinity"
    rules = [{"labelSelector": same, "topologyKey": _HOST}]
    return {kind: {_REQUIRED: rules}}


def _elsewhere(affinity: Object, nodes: Sequence[str]) -> Object:
    """Return this affinity with the condition that the pod is on none of these nodes."""
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    preferred = affinity.get("nodeAffinity") or {}
    required = preferred.get(_REQUIRED) or {}
    # A node must satisfy one of the terms, so each of them gets the condition.
    terms = [
        {**term, "matchFields": [*term.get("matchFields", ()), *away]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    whole = {**preferred, _REQUIRED: {**required, "nodeSelectorTerms": terms}}
    return {**affinity, "nodeAffinity": whole}


def _merge(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Object:
    """Merge two mappings; values of ``theirs`` take precedence, and lists are concatenated."""
    found = dict(ours)
    for key, value in theirs.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            found[key] = _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            found[key] = [*old, *value]
        else:
            found[key] = value
    return found
