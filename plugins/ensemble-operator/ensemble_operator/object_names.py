"""Names, labels, content hashes, times and kinds of the operator's objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ensemble_operator.crd_schema import GROUP, KIND, PLURAL, VERSION
from ensemble_operator.resource import Ensemble

Object = dict[str, Any]

MANAGER = "ensemble-operator"
#: Label that names an object's Ensemble, and annotations of objects.
LABEL = f"{GROUP}/ensemble"
HASH, FILE, RUN, TEMPLATE = (f"{GROUP}/{word}" for word in ("hash", "file", "run", "template"))
#: Annotation of the Job that withdraws a run (``withdrawal``); :data:`RUN` names the run.
WITHDRAWS = f"{GROUP}/withdraws"
#: Finalizer of Ensembles whose children should stay.
ORPHAN = f"{GROUP}/orphan"


@dataclass(frozen=True)
class Kind:
    """A kind of Kubernetes object, with its API path."""

    group: str
    version: str
    plural: str
    watched: bool = True  #: whether its objects are in the cache

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def everywhere(self) -> str:
        """The path of all objects in all namespaces."""
        return f"{self._root}/{self.plural}"

    @property
    def _root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of all objects in a namespace."""
        one = f"/{name}" if name else ""
        return f"{self._root}/namespaces/{namespace}/{self.plural}{one}"


_RBAC = "rbac.authorization.k8s.io"
KINDS: Mapping[str, Kind] = {
    KIND: Kind(GROUP, VERSION, PLURAL),
    "MiniCluster": Kind("flux-framework.org", "v1alpha2", "miniclusters"),
    "Deployment": Kind("apps", "v1", "deployments"),
    "Job": Kind("batch", "v1", "jobs"),
    "Pod": Kind("", "v1", "pods"),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "Role": Kind(_RBAC, "v1", "roles"),
    "RoleBinding": Kind(_RBAC, "v1", "rolebindings"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "HorizontalPodAutoscaler": Kind("autoscaling", "v2", "horizontalpodautoscalers"),
    "Secret": Kind("", "v1", "secrets", watched=False),
    "Event": Kind("", "v1", "events", watched=False),
    "Lease": Kind("coordination.k8s.io", "v1", "leases", watched=False),
}


def child(
    ensemble: Ensemble, kind: str, name: str, component: str, body: Mapping[str, Any]
) -> Object:
    """Return an object of an Ensemble, with labels, owner and content hash."""
    found: Object = {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": ensemble.namespace,
            "labels": labels_of(ensemble, component),
            "ownerReferences": [
                {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": ensemble.name,
                    "uid": ensemble.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **body,
    }
    found["metadata"]["annotations"] = {HASH: content(found)}
    return found


def labels_of(ensemble: Ensemble, component: str) -> dict[str, str]:
    """Return the labels of an Ensemble's objects."""
    return {
        "app.kubernetes.io/name": f"ensemble-{component}",
        "app.kubernetes.io/instance": ensemble.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "ensemble",
        "app.kubernetes.io/managed-by": MANAGER,
        LABEL: ensemble.name,
    }


def is_owned(ensemble: Ensemble, found: Mapping[str, Any]) -> bool:
    """Return whether an object belongs to this Ensemble, not to an earlier one with its name."""
    owners = found["metadata"].get("ownerReferences", ())
    return any(each.get("uid") == ensemble.uid and each.get("controller") for each in owners)


def content(value: object) -> str:
    """Return a short hash of JSON data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def member_object(ensemble: Ensemble, member: str) -> str:
    """Return the name of a member's MiniCluster."""
    return f"{ensemble.name}-{member}"


def run_tag(ensemble: Ensemble, member: str, digest: str) -> str:
    """Return the tag of a run: unique to this Ensemble object and this file."""
    return f"{ensemble.name}-{member}-{content([ensemble.uid, digest])[:10]}"


def without_none(value: Any) -> Any:
    """Return a body for creation, without absent fields (``None``)."""
    if isinstance(value, dict):
        return {key: without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_none(each) for each in value]
    return value


def format_time(when: float) -> str:
    """Convert seconds since the epoch to the API's time format."""
    return datetime.fromtimestamp(int(when), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float:
    """Return the seconds since the epoch of an API time; 0 if it is invalid."""
    try:
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
