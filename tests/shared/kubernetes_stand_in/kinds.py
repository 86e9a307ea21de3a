"""Kinds of objects in the stand-in, and label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .refusals import Refusal

FLUX = "flux-framework.org"
RBAC = "rbac.authorization.k8s.io"
EXTENSIONS = "apiextensions.k8s.io"
BATCH = "batch"


@dataclass(frozen=True)
class Kind:
    """Kind of objects, in one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    #: For custom resources only: the schema, and the paths of the scale subresource.
    schema: Mapping[str, Any] | None = None
    subresources: Mapping[str, Any] = field(default_factory=dict)
    #: Short names, as in ``kubectl get po``.
    short_names: tuple[str, ...] = ()
    #: Fields for field selectors, besides the name and the namespace.
    fields: tuple[str, ...] = ()
    #: Names that stand for several kinds, as in ``kubectl get all``.
    categories: tuple[str, ...] = ()
    #: Additional columns of tables, in the format of definitions.
    columns: tuple[Mapping[str, Any], ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def custom(self) -> bool:
        return self.schema is not None


_ALL = ("all",)
BUILT_IN = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind(
        "",
        "v1",
        "events",
        "Event",
        fields=(
            *(f"involvedObject.{each}" for each in ("kind", "name", "namespace", "uid")),
            "reason",
            "type",
        ),
    ),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Kind(
        "",
        "v1",
        "pods",
        "Pod",
        subresources={"status": {}, "binding": {}, "log": {}},
        fields=("status.phase", "spec.nodeName"),
        categories=_ALL,
    ),
    Kind("", "v1", "resourcequotas", "ResourceQuota"),
    Kind("", "v1", "secrets", "Secret", fields=("type",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount"),
    Kind("", "v1", "services", "Service", categories=_ALL),
    Kind("apps", "v1", "deployments", "Deployment", subresources={"status": {}}, categories=_ALL),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Kind(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        subresources={"status": {}},
        categories=_ALL,
    ),
    Kind(BATCH, "v1", "jobs", "Job", subresources={"status": {}}, categories=_ALL),
    Kind(RBAC, "v1", "roles", "Role"),
    Kind(RBAC, "v1", "rolebindings", "RoleBinding"),
    Kind(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind(EXTENSIONS, "v1", "customresourcedefinitions", "CustomResourceDefinition", False),
)


def of_definition(definition: Mapping[str, Any]) -> Kind:
    """Return the kind that a CustomResourceDefinition defines (its storage version)."""
    spec = definition["spec"]
    version = next(each for each in spec["versions"] if each["storage"])
    return Kind(
        group=spec["group"],
        version=version["name"],
        plural=spec["names"]["plural"],
        kind=spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
        schema=version["schema"]["openAPIV3Schema"],
        subresources=version.get("subresources", {}),
        short_names=tuple(spec["names"].get("shortNames", ())),
        categories=tuple(spec["names"].get("categories", ())),
        columns=tuple(version.get("additionalPrinterColumns", ())),
    )


def selected(
    found: Mapping[str, Any], labels: str, fields: str, known_fields: tuple[str, ...] = ()
) -> bool:
    """Return whether a label selector and a field selector both match an object."""
    metadata = found["metadata"]
    known = metadata.get("labels", {})
    if not all(_label(known, term) for term in _terms(labels)):
        return False
    for term in filter(None, fields.split(",")):
        match = re.fullmatch(r"([\w.]+)(!=|==?)(.*)", term)
        if match is None or match[1] not in (*_FIELDS, *known_fields):
            raise Refusal(400, f"field label not supported: {term}")
        value: Any = found
        for key in match[1].split("."):
            value = value.get(key, "") if isinstance(value, Mapping) else ""
        equal = value == match[3]
        if equal == (match[2] == "!="):
            return False
    return True


_FIELDS = ("metadata.name", "metadata.namespace")


def _terms(selector: str) -> list[str]:
    """Split a selector at commas outside parentheses."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label(labels: Mapping[str, str], term: str) -> bool:
    among = re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term)
    if among is not None:
        values = {each.strip() for each in among[3].split(",")}
        return (labels.get(among[1]) in values) == (among[2] == "in")
    equal = re.fullmatch(r"([^=!\s]+)\s*(!=|==?)\s*([\w.-]*)", term)
    if equal is not None:
        return (labels.get(equal[1]) == equal[3]) == (equal[2] != "!=")
    if re.fullmatch(r"![\w./-]+", term):
        return term[1:] not in labels
    if re.fullmatch(r"[\w./-]+", term):
        return term in labels
    raise Refusal(400, f"unable to parse requirement: {term}")
