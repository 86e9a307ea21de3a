"""Kubernetes support for Ensemble: the executor ``kubernetes`` and its options."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Job, Rendered, hookimpl

_IMAGE = {"type": "string", "minLength": 1, "description": "Container image that jobs run in."}
_TEXT = {"type": "string", "minLength": 1}


def _fragment(of: str, ours: list[str]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "propertyNames": {"not": {"enum": ours}},
        "x-ensemble-compared": True,
        "description": f"Further Kubernetes fields of the job's {of}, except {', '.join(ours)}.",
    }


OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "image": _IMAGE,
        "namespace": {
            **_TEXT,
            "description": "Namespace of the jobs; default: that of the context, or of the pod.",
        },
        "context": {**_TEXT, "description": "Context of the kubeconfig; default: its current one."},
        "kubeconfig": {
            **_TEXT,
            "description": "Kubeconfig file of the cluster; default: $KUBECONFIG, the pod's "
            "service account, or ~/.kube/config.",
        },
        "gpu": {
            **_TEXT,
            "default": "nvidia.com/gpu",
            "description": "Kubernetes resource that is requested for a GPU.",
        },
        "ttl": {
            "type": "integer",
            "minimum": 60,
            "default": 604_800,
            "description": "Seconds after which Kubernetes removes a finished Job that no "
            "controller removed.",
        },
    },
}
JOB_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "image": {**_IMAGE, "x-ensemble-compared": True},
        "container": _fragment(
            "container", ["name", "image", "command", "args", "workingDir", "tty", "stdin"]
        ),
        "pod": _fragment("pod", ["containers", "restartPolicy", "activeDeadlineSeconds"]),
    },
}


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_kubernetes.executor import KubernetesExecutor

    return KubernetesExecutor(**options)


def _render(job: Job, options: Mapping[str, Any]) -> Rendered:
    from ensemble_kubernetes.manifest import Settings, manifest, wrong

    settings = Settings.of(options)
    why = wrong(job, settings)
    text = f"refused: {why}" if why else json.dumps(manifest(job, "RUN", "ID", settings), indent=2)
    return Rendered(text, "text/plain" if why else "application/json")


def _available() -> tuple[bool, str]:
    return False, "select it with --executor kubernetes"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``kubernetes``."""
    return [
        ExecutorPlugin(
            name="kubernetes",
            summary="Runs each job as a Job of a Kubernetes namespace",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "avoid", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            render=_render,
            secrets="name a Secret: options: {kubernetes: {container: {envFrom: [{secretRef: "
            "{name: SECRET}}]}}}",
            warn="Kubernetes sends no signal before a time limit",
            unseen="pods have their own file systems",
        )
    ]
