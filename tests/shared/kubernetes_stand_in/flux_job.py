"""Job of a MiniCluster, as the Flux Operator (v1alpha2, June 2026) writes it, and the API server's
errors about it. Both depend on the MiniCluster only.

Quirks that no schema shows: a volume of a ConfigMap is named after the ConfigMap and its mount
after the key; an ``emptyDir`` is mounted at ``/dev/shm`` regardless of its ``path``; of the pod's
security context ``fsGroup`` alone is copied; every container has a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .entrypoint import runs_flux

__all__ = ["job_of", "pod_errors"]

Object = dict[str, Any]

#: Volumes of every container that exist as long as the pod.
_HOME = {"name": "flux-operator-home", "mountPath": "/home/flux-operator"}
_SOFTWARE = {"name": "spack-software", "mountPath": "/opt/software"}
_VIEW = "ghcr.io/converged-computing/flux-view-ubuntu:tag-noble"


def job_of(minicluster: Mapping[str, Any]) -> Object:
    """Return the Job, with its pod template, that the operator creates."""
    metadata, spec = minicluster["metadata"], minicluster["spec"]
    name = metadata["name"]
    pod = spec.get("pod", {})
    view = {"name": "flux-view", "mountPath": "/mnt/flux", "image": _VIEW}
    view |= spec.get("flux", {}).get("container", {})
    own: list[Object] = [
        {**_HOME},
        {"name": view["name"], "mountPath": view["mountPath"]},
        {"name": f"{name}-entrypoint", "mountPath": "/flux_operator/", "readOnly": True},
    ]
    template: Object = {
        "subdomain": spec.get("network", {}).get("headlessName") or name,
        "automountServiceAccountToken": pod.get("automountServiceAccountToken", False),
        "restartPolicy": pod.get("restartPolicy") or "OnFailure",
        "volumes": [
            *({"name": each["name"], "emptyDir": {}} for each in (_SOFTWARE, _HOME, view)),
            {
                "name": f"{name}-entrypoint",
                "configMap": {"name": f"{name}-entrypoint", "items": _scripts(spec, view["name"])},
            },
            *_volumes(spec["containers"]),
        ],
        "initContainers": [
            {
                "name": view["name"],
                "image": view["image"],
                "command": ["/bin/bash", "/flux_operator/flux-init.sh"],
                "stdin": True,
                "tty": True,
                "volumeMounts": own,
                "securityContext": view.get("securityContext", {}),
            }
        ],
        "containers": list(_containers(spec, name, [*own, _SOFTWARE])),
    }
    if pod.get("securityContext"):
        group = pod["securityContext"].get("fsGroup")
        template["securityContext"] = {} if group is None else {"fsGroup": group}
    owner = {"apiVersion": minicluster["apiVersion"], "kind": minicluster["kind"], "name": name}
    owner |= {"uid": metadata.get("uid", ""), "controller": True, "blockOwnerDeletion": True}
    labels = {**pod.get("labels", {}), "app.kubernetes.io/name": name, "hpa-selector": name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": dict(spec.get("jobLabels") or {}),
            "ownerReferences": [owner],
        },
        "spec": {
            "parallelism": spec["size"],
            "completions": spec["size"],
            "completionMode": "Indexed",
            "backoffLimit": spec.get("backoffLimit") or 100,
            "template": {
                "metadata": {"labels": labels, "annotations": pod.get("annotations", {})},
                "spec": template,
            },
        },
    }


def _scripts(spec: Mapping[str, Any], view: str) -> list[Object]:
    """Return the keys of the scripts' ConfigMap with their file names in ``/flux_operator``."""
    found = [("curve.cert", "curve.cert"), (view, "flux-init.sh")]
    for index, container in enumerate(spec["containers"]):
        if runs_flux(spec, index):
            found.append((f"wait-{index}", f"wait-{index}.sh"))
        elif not container.get("noWrapEntrypoint"):
            found.append((f"start-{index}", f"start-{index}.sh"))
    return [{"key": key, "path": path} for key, path in found]


def _containers(spec: Mapping[str, Any], name: str, mounts: list[Object]) -> Iterator[Object]:
    given: Sequence[Mapping[str, Any]] = spec["containers"]
    seen: set[str] = set()
    for index, container in enumerate(given):
        # One list for all containers: each also has the mounts of those before it.
        for key, volume in container.get("volumes", {}).items():
            if key in seen:
                continue
            seen.add(key)
            if volume.get("emptyDir"):
                mounts.append({"name": key, "mountPath": "/dev/shm"})  # as the operator does
            else:
                where = {"name": key, "mountPath": volume.get("path", "")}
                mounts.append({**where, "readOnly": volume.get("readOnly", False)})
        found: Object = {
            "name": container.get("name", ""),
            "image": container.get("image", ""),
            "stdin": True,
            "tty": True,
            "volumeMounts": list(mounts),
            "env": [
                {"name": key, "value": value}
                for key, value in container.get("environment", {}).items()
            ],
            "securityContext": container.get("securityContext", {}),
            "resources": container.get("resources", {}),
        }
        if runs_flux(spec, index):
            found |= {"name": name, "command": ["/bin/bash", f"/flux_operator/wait-{index}.sh"]}
        elif not container.get("noWrapEntrypoint"):
            found["command"] = ["/bin/bash", f"/flux_operator/start-{index}.sh"]
        hooks = container.get("lifeCycle", {})
        lifecycle = {
            hook: {"exec": {"command": ["/bin/sh", "-c", hooks[key]]}}
            for hook, key in (("postStart", "postStartExec"), ("preStop", "preStopExec"))
            if hooks.get(key)
        }
        found |= {"lifecycle": lifecycle} if lifecycle else {}
        yield found


def _volumes(containers: Sequence[Mapping[str, Any]]) -> Iterator[Object]:
    volumes = {key: v for each in containers for key, v in each.get("volumes", {}).items()}
    for key, volume in volumes.items():
        if volume.get("secretName"):
            yield {"name": key, "secret": {"secretName": volume["secretName"]}}
        elif volume.get("emptyDir"):
            yield {"name": key, "emptyDir": {}}
        elif volume.get("hostPath"):
            yield {"name": key, "hostPath": {"path": volume["hostPath"], "type": "Directory"}}
        elif volume.get("configMapName"):
            items = [{"key": a, "path": b} for a, b in volume.get("items", {}).items()]
            name = volume["configMapName"]
            yield {"name": name, "configMap": {"name": name, "items": items}}
        else:
            claim = {"claimName": volume.get("claimName", "")}
            yield {"name": key, "persistentVolumeClaim": claim}


def pod_errors(pod: Mapping[str, Any], path: str = "spec.template.spec") -> list[str]:
    """Return the API server's error messages about the volumes of a pod."""
    found: list[str] = []
    names = [each["name"] for each in pod.get("volumes", ())]
    for index, name in enumerate(names):
        if name in names[:index]:
            found.append(f'{path}.volumes[{index}].name: Duplicate value: "{name}"')
    for part in ("initContainers", "containers"):
        for at, container in enumerate(pod.get(part, ())):
            paths: list[str] = []
            for index, mount in enumerate(container.get("volumeMounts", ())):
                where = f"{path}.{part}[{at}].volumeMounts[{index}]"
                if mount["name"] not in names:
                    found.append(f'{where}.name: Not found: "{mount["name"]}"')
                if not mount["mountPath"]:
                    found.append(f"{where}.mountPath: Required value")
                elif mount["mountPath"] in paths:
                    shown = mount["mountPath"]
                    found.append(f'{where}.mountPath: Invalid value: "{shown}": must be unique')
                paths.append(mount["mountPath"])
    return found
