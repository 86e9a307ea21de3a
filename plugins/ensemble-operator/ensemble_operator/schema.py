"""Schema of the custom resource ``Ensemble``: the one description that ``crd.yaml``, the reader
(``resource``) and ``ensemble-operator check`` are made from.

Group, version, kind and the meaning of fields are those of upstream's operator, so that its files
apply unchanged; of a MiniCluster only what the rules read is declared, and the rest is kept for the
MiniCluster's own definition to check. ``LISTS`` bounds every list, for the budget of the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .rules import MEMBER_LIMIT, of_place

__all__ = ["GROUP", "KIND", "PLURAL", "SPEC", "VERSION", "definition"]

GROUP, VERSION, KIND, PLURAL = "ensemble.flux-framework.org", "v1alpha1", "Ensemble", "ensembles"

Schema = dict[str, Any]

#: A quantity of bytes, as Kubernetes writes it.
_QUANTITY = r"^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i|e[0-9]+)?$"
_KEEP = {"x-kubernetes-preserve-unknown-fields": True}
#: Characters of an ensemble file: those that a ConfigMap holds.
_FILE = 1 << 20
#: A label of RFC 1123 that is not mistaken for an index, and leaves room for the names of pods.
_MEMBER_NAME = "^[a-z]([-a-z0-9]{0,13}[a-z0-9])?$"


def _text(about: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, "maxLength": 253, **more}


def _choice(about: str, *values: str, default: str | None = None) -> Schema:
    known = {} if default is None else {"default": default}
    return {"type": "string", "description": about, "enum": list(values), **known}


def _object(about: str, properties: Mapping[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "description": about, "properties": dict(properties), **more}


def _kept(about: str) -> Schema:
    return {"type": "object", "description": about, **_KEEP}


def _texts(about: str) -> Schema:
    values = {"type": "string", "maxLength": 4096}
    return {"type": "object", "description": about, "additionalProperties": values}


def _list(about: str, items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "description": about, "items": items, "maxItems": most, **more}


def _whole(about: str, least: int = 1, **more: Any) -> Schema:
    return {"type": "integer", "format": "int32", "description": about, "minimum": least, **more}


_FROM = _object(
    "Where the ensemble file is, if not here.",
    {
        "configMapKeyRef": _object(
            "A key of a ConfigMap of the same namespace.",
            {"name": _text("The ConfigMap."), "key": _text("Its key.", default="ensemble.yaml")},
            required=["name"],
        )
    },
    required=["configMapKeyRef"],
)
_ENSEMBLE = {"type": "string", "minLength": 1, "maxLength": _FILE}

_CONTAINER = _object(
    "A container of the MiniCluster; fields that are not here are the Flux Operator's.",
    {
        "name": {"type": "string", "maxLength": 253},
        "image": {"type": "string", "maxLength": 1024},
        "command": {"type": "string", "maxLength": 65536},
        "runFlux": {"type": "boolean"},
    },
    **_KEEP,
)
_MINICLUSTER = _object(
    "The MiniCluster; of it only 'spec' is used, which the Flux Operator's definition describes.",
    {
        "spec": _object(
            "The MiniCluster's spec.",
            {
                "size": _whole("Nodes to begin with; 1 where it is not given."),
                "minSize": _whole("Fewest nodes; 1 where it is not given."),
                "maxSize": _whole("Most nodes; 'size' where it is not given."),
                "cleanup": {"type": "boolean"},
                "containers": _list("Containers of each pod.", _CONTAINER, 16, minItems=1),
            },
            required=["containers"],
            **of_place("minicluster.spec"),
            **_KEEP,
        )
    },
    required=["spec"],
    **_KEEP,
)
_MEMBER = _object(
    "A MiniCluster with its part of the ensemble.",
    {
        "name": _text(
            "Its name; its index where it has none. Objects are called ENSEMBLE-NAME.",
            pattern=_MEMBER_NAME,
            maxLength=15,
        ),
        "ensemble": {**_ENSEMBLE, "description": "The text of its ensemble file."},
        "ensembleFrom": _FROM,
        "minicluster": _MINICLUSTER,
        "container": _text(
            "The container that runs the ensemble; default: the first with 'runFlux', else the "
            "first."
        ),
        "options": _texts("Options of the executor 'minicluster' (-o KEY=VALUE)."),
        "resize": _choice(
            "Who sets its size: rules of the ensemble, an autoscaler that is made from "
            "'autoscaling', somebody else (KEDA, kubectl), or nobody.",
            *("Rules", "HPA", "External", "None"),
            default="Rules",
        ),
        "autoscaling": _kept("The spec of a HorizontalPodAutoscaler (autoscaling/v2), for HPA."),
        "branch": _text("Accepted and ignored: nothing is installed from git."),
    },
    required=["minicluster"],
)
_SIDECAR = _object(
    "The ensemble service: a Deployment of its own.",
    {
        "image": _text("Its image; default: the operator's release.", maxLength=1024),
        "imagePullPolicy": _choice(
            "When it is pulled.", "Always", "IfNotPresent", "Never", default="IfNotPresent"
        ),
        "pullAlways": {"type": "boolean", "description": "The same as imagePullPolicy: Always."},
        "port": {
            "x-kubernetes-int-or-string": True,
            "description": "The port of the service, as a number or as text.",
            "default": 50051,
            **of_place("sidecar.port"),
        },
        "metricsPort": _whole("The port of /metrics and /healthz.", maximum=65535, default=9464),
        "workers": {
            "type": "integer",
            "format": "int32",
            "description": "Accepted and ignored: there are no worker threads to count.",
        },
        "resources": _kept("Resources of its container."),
        "nodeSelector": _texts("Labels of the nodes that it may be on."),
        "tolerations": _list("Taints that it tolerates.", _kept("A toleration."), 32),
        "imagePullSecrets": _list(
            "Secrets to pull its image with.", _object("", {"name": _text("")}), 16
        ),
        "storage": _object(
            "A claim for what it remembers; without one that lives as long as its pod.",
            {
                "size": _text("How large.", default="1Gi", pattern=_QUANTITY),
                "storageClassName": _text("Of which."),
            },
        ),
        "tls": _object(
            "Its certificates; default: made and renewed by the operator.",
            {"secretName": _text("A Secret with ca.crt, server.crt and server.key.")},
            required=["secretName"],
        ),
    },
    default={},
)

#: The schema of ``spec``.
SPEC: Schema = _object(
    "What is to run.",
    {
        "members": _list("Members of the ensemble.", _MEMBER, MEMBER_LIMIT, minItems=1),
        "sidecar": _SIDECAR,
        "ensemble": {
            **_ENSEMBLE,
            "description": "One ensemble file for all members, steered from outside of them.",
        },
        "ensembleFrom": _FROM,
        "suspend": {
            "type": "boolean",
            "default": False,
            "description": "No members, while this is true; the service stays.",
        },
        "updatePolicy": _choice(
            "What becomes of a changed file or MiniCluster of a member that runs.",
            *("OnFinish", "Recreate"),
            default="OnFinish",
        ),
        "restartPolicy": _choice(
            "What becomes of a run whose first pod is lost; default: Resume where 'state' is kept "
            "in a claim, else Fail.",
            *("Resume", "Fail"),
        ),
        "ttlSecondsAfterFinished": _whole("Seconds after its end to delete the Ensemble in.", 0),
        "onDelete": _choice(
            "What becomes of what was made when the Ensemble is deleted.",
            *("Cancel", "Orphan"),
            default="Cancel",
        ),
        "install": _object(
            "How the program 'ensemble' gets into the container that runs it.",
            {
                "method": _choice(
                    "View: a further container copies it there. Image: it is there. Pip: exact "
                    "versions with hashes are installed when the pod starts.",
                    *("View", "Image", "Pip"),
                    default="View",
                ),
                "image": _text("The image that has it, for View.", maxLength=1024),
                "requirements": {
                    "type": "string",
                    "maxLength": 65536,
                    "description": "Lines of a requirements file, each with its hashes, for Pip.",
                },
            },
            default={},
        ),
        "state": _object(
            "Where the journals of runs are kept.",
            {
                "emptyDir": _kept("As long as the pod lives."),
                "claim": _text("In this PersistentVolumeClaim, a folder for each member."),
                "size": _text("In a claim for each member, that large.", pattern=_QUANTITY),
                "storageClassName": _text("The class of these claims."),
            },
            **of_place("state"),
            default={},
        ),
    },
    required=["members"],
    **of_place("spec"),
)

_CONDITION = _object(
    "",
    {
        "type": _text(""),
        "status": _choice("", "True", "False", "Unknown"),
        "reason": _text(""),
        "message": {"type": "string", "maxLength": 32768},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64"},
    },
    required=["type", "status"],
)
_COUNTS = _kept("Counts by name.")
_STATUS: Schema = _object(
    "How it stands; written by the operator.",
    {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "phase": _text("For people; derived from the conditions."),
        "conditions": _list(
            "",
            _CONDITION,
            16,
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
        "membersReady": _text("Members that are ready, of how many."),
        "service": _object("", {"address": _text(""), "ready": {"type": "boolean"}}),
        "nodes": _COUNTS,
        "cores": _COUNTS,
        "queue": _COUNTS,
        "exit": _text("Exit codes of the members' runs, as far as they are over."),
        "waiting": {"type": "integer", "format": "int64"},
        "running": {"type": "integer", "format": "int64"},
        "finishedAt": {"type": "string", "format": "date-time"},
        "members": _list(
            "",
            _object(
                "",
                {
                    "name": _text(""),
                    "minicluster": _text(""),
                    "file": _text("Hash of the file in use."),
                    "run": _text("Tag of its run."),
                    "size": {"type": "integer"},
                    "maxSize": {"type": "integer"},
                    "nodes": _COUNTS,
                    "cores": _COUNTS,
                    "queue": _COUNTS,
                    "groups": _list("", _kept("Counts of a job group."), 50),
                    "exitCode": {"type": "integer"},
                    "lostPod": {"type": "string"},
                    "restarts": {"type": "integer"},
                    "denied": _text("Why another size was denied, if it was.", maxLength=1000),
                    "result": _choice("Once it is over.", "Succeeded", "Failed", "Lost"),
                    "startedAt": {"type": "string", "format": "date-time"},
                    "finishedAt": {"type": "string", "format": "date-time"},
                    "lastHeartbeat": {"type": "string", "format": "date-time"},
                    "message": {"type": "string", "maxLength": 4096},
                },
                required=["name"],
            ),
            MEMBER_LIMIT + 1,
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    },
)


def _column(name: str, path: str, kind: str = "string", wide: bool = False) -> Schema:
    return {"name": name, "jsonPath": path, "type": kind, **({"priority": 1} if wide else {})}


_COLUMNS = [
    _column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
    _column("Phase", ".status.phase"),
    _column("Members", ".status.membersReady"),
    _column("Nodes", ".status.nodes.up", "integer"),
    _column("Running", ".status.running", "integer"),
    _column("Waiting", ".status.waiting", "integer"),
    _column("Exit", ".status.exit"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Reason", '.status.conditions[?(@.type=="Ready")].reason', wide=True),
    _column("File", ".status.members[*].file", wide=True),
]


def definition() -> Schema:
    """The CustomResourceDefinition."""
    whole = _object(
        "An ensemble of jobs, steered by rules, over Flux MiniClusters.",
        {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": SPEC,
            "status": _STATUS,
        },
        required=["spec"],
        **of_place("object"),
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "ensemble",
                "shortNames": ["ens"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": whole},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _COLUMNS,
                }
            ],
        },
    }
