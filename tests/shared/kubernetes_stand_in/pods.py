"""Status of a pod, derived from its containers' states as the kubelet does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .store import now

__all__ = ["pod_status"]

Object = dict[str, Any]


def pod_status(
    pod: Mapping[str, Any],
    states: Mapping[str, Object],
    ready: Mapping[str, bool] | None = None,
    address: str = "",
    restarts: Mapping[str, int] | None = None,
) -> Object:
    """Return the pod's status.

    ``states`` has the state of each container, ``ready`` whether the probe of a running one
    succeeded, and ``restarts`` how often each was started again. A container that is not running is not
    ready, and neither is its pod.
    """
    spec, old = pod["spec"], pod.get("status") or {}
    found: dict[str, list[Object]] = {"initContainers": [], "containers": []}
    for part, statuses in found.items():
        for each in spec.get(part, ()):
            name = each["name"]
            state = states.get(name) or {"waiting": {"reason": "PodInitializing"}}
            init_ready = part == "initContainers" and "terminated" in state
            statuses.append(
                {
                    "name": name,
                    "image": each.get("image", ""),
                    "imageID": "",
                    "restartCount": (restarts or {}).get(name, 0),
                    "state": state,
                    "started": "running" in state,
                    "ready": init_ready or ("running" in state and (ready or {}).get(name, True)),
                }
            )
    sidecars = [each["name"] for each in spec.get("initContainers", ()) if _native(each)]
    counted = [
        each
        for each in (*found["containers"], *found["initContainers"])
        if each in found["containers"] or each["name"] in sidecars
    ]
    ended = [each["state"].get("terminated") for each in found["containers"]]
    waits = [each["state"].get("waiting") or {} for each in found["containers"]]
    begun = any("running" in each["state"] for each in found["containers"]) or any(ended)
    begun = begun or any(each.get("reason") == "CrashLoopBackOff" for each in waits)
    phase = "Running" if begun else "Pending"
    if all(ended):
        bad = any(each["exitCode"] for each in ended if each)
        phase = "Failed" if bad else "Succeeded"
    all_ready = phase == "Running" and all(each["ready"] for each in counted)
    kinds = {
        "PodScheduled": True,
        "Initialized": begun,
        "ContainersReady": all_ready,
        "Ready": all_ready,
    }
    known = {each["type"]: each for each in old.get("conditions", ())}
    conditions = []
    for kind, holds in kinds.items():
        before, status = known.get(kind, {}), "True" if holds else "False"
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        conditions.append({"type": kind, "status": status, "lastTransitionTime": since or now()})
    result: Object = {
        "phase": phase,
        "startTime": old.get("startTime") or now(),
        "conditions": conditions,
        "containerStatuses": found["containers"],
    }
    if found["initContainers"]:
        result["initContainerStatuses"] = found["initContainers"]
    if address:
        result |= {"podIP": address, "podIPs": [{"ip": address}]}
    return result


def _native(container: Mapping[str, Any]) -> bool:
    """Return whether this is a sidecar: an init container that runs next to the others."""
    return container.get("restartPolicy") == "Always"
