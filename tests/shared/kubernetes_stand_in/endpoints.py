"""Controller of Endpoints: keeps an EndpointSlice for each Service with a selector.

The name service resolves names with these slices. They list a pod that is not ready as not ready,
unless the Service publishes the addresses of such pods too.
"""

from __future__ import annotations

import contextlib
from typing import Any

from .refusals import Refusal
from .store import Object, Store

__all__ = ["EndpointController"]

SERVICE = "kubernetes.io/service-name"


class EndpointController:
    """Controller of Endpoints; :meth:`look` runs one round."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._services = store.kinds[("", "services")]
        self._pods = store.kinds[("", "pods")]
        self._slices = store.kinds[("discovery.k8s.io", "endpointslices")]

    def look(self) -> None:
        for service in self._store.all(self._services):
            if service.get("spec", {}).get("selector"):
                with contextlib.suppress(Refusal):
                    self._bring_on(service)

    def _bring_on(self, service: Object) -> None:
        metadata, spec = service["metadata"], service["spec"]
        always = bool(spec.get("publishNotReadyAddresses"))

        def listed(pod: Object) -> bool:
            labels, status = pod["metadata"].get("labels", {}), pod.get("status", {})
            mine = all(labels.get(key) == value for key, value in spec["selector"].items())
            return bool(
                mine and status.get("podIP") and status["phase"] not in ("Succeeded", "Failed")
            )

        pods = self._store.all(self._pods, metadata["namespace"], listed)
        endpoints = [_endpoint(pod, always=always) for pod in pods]
        body: dict[str, Any] = {
            "metadata": {
                "name": f"{metadata['name']}-slice",
                "labels": {SERVICE: metadata["name"]},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Service", "name": metadata["name"],
                     "uid": metadata["uid"], "controller": True}
                ],
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
        }  # fmt: skip
        namespace = metadata["namespace"]
        try:
            old = self._store.get(self._slices, namespace, body["metadata"]["name"])
        except Refusal:
            self._store.create(self._slices, namespace, body)
            return
        if old["endpoints"] != endpoints:
            self._store.write(self._slices, namespace, {**old, "endpoints": endpoints})


def _endpoint(pod: Object, *, always: bool) -> Object:
    conditions = pod["status"].get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    leaving = "deletionTimestamp" in pod["metadata"]
    found: Object = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {
            "ready": always or (ready and not leaving),
            "serving": ready,
            "terminating": leaving,
        },
        "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"]},
    }
    if pod["spec"].get("hostname") and pod["spec"].get("subdomain"):
        found["hostname"] = pod["spec"]["hostname"]
    return found
