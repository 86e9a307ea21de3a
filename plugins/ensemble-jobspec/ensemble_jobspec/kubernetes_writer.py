"""Writes Kubernetes manifests: Jobs (batch/v1), and MiniClusters for jobs of several nodes.

The user applies the manifests. The annotation ``ensemble/jobspec-after`` of a Job lists the Jobs
that must succeed first.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import unescape_braces
from ensemble_jobspec.conversion import Converted
from ensemble_jobspec.task_dependencies import Unit

_AFTER = "ensemble/jobspec-after"
_OTHER = re.compile(r"[^a-z0-9]+")
_STAGE = "/stage"


def _dns_name(text: str) -> str:
    """Return a valid and unique Kubernetes name for a text."""
    name = _OTHER.sub("-", text.lower()).strip("-")
    if name == text and len(name) <= 52:
        return name
    return f"{name[:44].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:7]}".lstrip("-")


def manifests(converted: Converted, image: str) -> list[dict[str, Any]]:
    """Return the manifests: a Job for each job group, and a ConfigMap for a transform's files."""
    units = {unit.name: unit for unit in converted.units}
    found: list[dict[str, Any]] = []
    staged: set[str] = set()
    for unit in converted.units:
        if unit.kind == "files" and unit.task is not None:
            staged.add(unit.task.name)
            found.append(_config_map(unit))
    for job in converted.jobs:
        if job["name"] not in units:
            continue
        unit = units[job["name"]]
        files = unit.task is not None and unit.task.name in staged and bool(unit.steps)
        found.append(_job(unit, job, converted, image, files))
    return found


def _config_map(unit: Unit) -> dict[str, Any]:
    assert unit.task is not None
    contents = {script.name: script.text for script in unit.task.scripts}
    names = [step.options["filename"] for step in unit.steps if step.name == "write"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _dns_name(f"{unit.task.name}-files")},
        "data": {name.replace("/", "."): contents[name] for name in names},
    }


def _job(
    unit: Unit, job: Mapping[str, Any], converted: Converted, image: str, files: bool
) -> dict[str, Any]:
    shape = converted.shapes[unit.name]
    metadata: dict[str, Any] = {
        "name": _dns_name(unit.name),
        "labels": {"app": _dns_name(converted.name)},
    }
    if unit.after:
        metadata["annotations"] = {_AFTER: ",".join(map(_dns_name, unit.after))}
    container: dict[str, Any] = {
        "name": "task",
        "image": image,
        "command": [_escape_variables(unescape_braces(word)) for word in job["command"]],
    }
    if job.get("environment"):
        container["env"] = [
            {"name": key, "value": _escape_variables(unescape_braces(value))}
            for key, value in job["environment"].items()
        ]
    if files:
        container["workingDir"] = _STAGE
        container["volumeMounts"] = [{"name": "stage", "mountPath": _STAGE}]
    elif job.get("workdir"):
        container["workingDir"] = unescape_braces(job["workdir"])
    site = converted.selectors.get(unit.name, {})
    limits = {"cpu": str(shape.cores)}
    if shape.gpus:
        limits["nvidia.com/gpu"] = str(shape.gpus)
    nested = unit.kind == "batch" or unit.once
    if shape.nodes > 1 or nested:
        return _mini_cluster(metadata, container, job, converted, site, nested)
    container["resources"] = {"limits": limits, "requests": dict(limits)}
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container], **site}
    if files and unit.task is not None:
        config = {"name": _dns_name(f"{unit.task.name}-files"), "defaultMode": 0o755}
        pod["volumes"] = [{"name": "stage", "configMap": config}]
    spec: dict[str, Any] = {"backoffLimit": 0, "template": {"spec": pod}}
    many = unit.count * shape.tasks
    if many > 1:
        spec |= {"completions": many, "parallelism": many, "completionMode": "Indexed"}
    if job.get("duration"):
        spec["activeDeadlineSeconds"] = math.ceil(job["duration"])
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _mini_cluster(
    metadata: Mapping[str, Any], container: Mapping[str, Any], job: Mapping[str, Any],
    converted: Converted, site: Mapping[str, Any], nested: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return a MiniCluster for a job of several nodes or with a nested ensemble."""
    import shlex

    shape = converted.shapes[job["name"]]
    own: dict[str, Any] = {
        "image": container["image"],
        "command": shlex.join(container["command"]),
        "launcher": nested,
    }
    if "workingDir" in container:
        own["workingDir"] = container["workingDir"]
    if "env" in container:
        own["environment"] = {each["name"]: each["value"] for each in container["env"]}
    spec: dict[str, Any] = {"size": shape.nodes, "tasks": shape.tasks, "containers": [own]}
    if job.get("duration"):
        spec["deadlineSeconds"] = math.ceil(job["duration"])
    if site:
        spec["pod"] = dict(site)
    return {
        "apiVersion": "flux-framework.org/v1alpha2",
        "kind": "MiniCluster",
        "metadata": dict(metadata),
        "spec": spec,
    }


def _escape_variables(text: str) -> str:
    """Escape a text so that Kubernetes does not expand ``$(NAME)`` in it."""
    return text.replace("$(", "$$(")


def as_documents(manifests: Iterable[Mapping[str, Any]]) -> str:
    """Return the manifests as documents of one YAML file."""
    import yaml

    return yaml.safe_dump_all(list(manifests), sort_keys=False, allow_unicode=True)
