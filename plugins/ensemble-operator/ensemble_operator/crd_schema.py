"""Schema of the custom resource ``Ensemble``, with its validation rules. It makes ``crd.yaml``.

Files written for converged-computing's ensemble operator are valid, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GROUP, VERSION, KIND, PLURAL = "ensemble.flux-framework.org", "v1alpha1", "Ensemble", "ensembles"
#: Maximum number of members of an Ensemble, and of characters in its name (pod names have at most
#: 63).
MEMBER_LIMIT, NAME_LIMIT = 32, 40

Value = Any


# Each rule exists in CEL for the API server, and in Python for ``ensemble-operator check`` and for
# the operator, because an API server may have an older definition. A test compares the two.
@dataclass(frozen=True)
class Rule:
    """A validation rule for one field of the schema, in CEL and in Python (``holds``)."""

    place: str
    cel: str
    holds: Callable[..., bool]  #: of the value and, with ``old``, the previous value
    message: str
    old: bool = False  #: whether the rule is about changes


def rules_at(place: str) -> dict[str, Any]:
    """Return the rules of a place, in the form that a schema uses."""
    found = [{"rule": r.cel, "message": r.message} for r in RULES if r.place == place]
    return {"x-kubernetes-validations": found} if found else {}


def _sources(found: Mapping[str, Value]) -> int:
    return ("ensemble" in found) + ("ensembleFrom" in found)


def _one_file(spec: Mapping[str, Value]) -> bool:
    shared = _sources(spec)
    return shared <= 1 and all(_sources(each) + shared == 1 for each in spec["members"])


def _distinct(spec: Mapping[str, Value]) -> bool:
    names = [each["name"] for each in spec["members"] if "name" in each]
    return len(names) == len(set(names))


def _has_same_size(new: Mapping[str, Value], old: Mapping[str, Value]) -> bool:
    if new.get("resize", "Rules") == "None":
        return True
    sizes = [each["minicluster"]["spec"].get("size") for each in (new, old)]
    return bool(sizes[0] == sizes[1])


def _keeps_sizes(spec: Mapping[str, Value], old: Mapping[str, Value]) -> bool:
    pairs: Sequence[tuple[Value, Value]] = [
        (new, was)
        for new, was in zip(spec["members"], old["members"], strict=False)
        if "name" not in new and "name" not in was
    ]
    named = {each["name"]: each for each in old["members"] if "name" in each}
    found = [(new, named[new["name"]]) for new in spec["members"] if new.get("name") in named]
    return all(_has_same_size(new, was) for new, was in (*pairs, *found))


def _port(port: Value) -> bool:
    text = str(port)
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


def _in_order(*names: str) -> Callable[[Mapping[str, Value]], bool]:
    def holds(spec: Mapping[str, Value]) -> bool:
        found = [spec[name] for name in names if name in spec]
        return found == sorted(found)

    return holds


def _order_rule(small: str, large: str) -> Rule:
    return Rule(
        "minicluster.spec",
        f"!has(self.{small}) || !has(self.{large}) || self.{small} <= self.{large}",
        _in_order(small, large),
        f"{small} is greater than {large}",
    )


_SHARED = "(has(self.ensemble) ? 1 : 0) + (has(self.ensembleFrom) ? 1 : 0)"
_SAME = (
    "({new}.resize == 'None' || (has({new}.minicluster.spec.size) == "
    "has({old}.minicluster.spec.size) && (!has({new}.minicluster.spec.size) || "
    "{new}.minicluster.spec.size == {old}.minicluster.spec.size)))"
)
_INDEX = f"[{', '.join(map(str, range(MEMBER_LIMIT)))}]"

RULES: tuple[Rule, ...] = (
    Rule(
        "object",
        f"size(self.metadata.name) <= {NAME_LIMIT} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        lambda found: (
            len(found["metadata"]["name"]) <= NAME_LIMIT
            and found["metadata"]["name"][0].isalpha()
            and found["metadata"]["name"][-1] != "-"
            and all(c.isascii() and (c.isalnum() or c == "-") for c in found["metadata"]["name"])
            and found["metadata"]["name"].islower()
        ),
        f"the name of an Ensemble must have at most {NAME_LIMIT} characters, start with a letter "
        f"and have no dots, because Services and pods are named after it",
    ),
    Rule(
        "spec",
        f"{_SHARED} <= 1 && self.members.all(m, (has(m.ensemble) ? 1 : 0) + "
        f"(has(m.ensembleFrom) ? 1 : 0) + {_SHARED} == 1)",
        _one_file,
        "each member needs exactly one ensemble file: its 'ensemble' or 'ensembleFrom', or one of "
        "these for all, beside 'members'",
    ),
    Rule(
        "spec",
        "self.members.all(m, !has(m.name) || "
        "self.members.exists_one(n, has(n.name) && n.name == m.name))",
        _distinct,
        "two members have the same name",
    ),
    Rule(
        "spec",
        f"{_INDEX}.all(i, i >= size(self.members) || i >= size(oldSelf.members) || "
        "has(self.members[i].name) || has(oldSelf.members[i].name) || "
        f"{_SAME.format(new='self.members[i]', old='oldSelf.members[i]')}) && "
        "self.members.all(m, !has(m.name) || oldSelf.members.all(o, !has(o.name) || "
        f"o.name != m.name || {_SAME.format(new='m', old='o')}))",
        _keeps_sizes,
        "'size' is only the initial size; later, rules or the autoscaler set it: use kubectl "
        "scale on the MiniCluster, or set 'resize: None'",
        old=True,
    ),
    _order_rule("minSize", "size"),
    _order_rule("size", "maxSize"),
    _order_rule("minSize", "maxSize"),
    Rule(
        "minicluster.spec",
        "!has(self.cleanup) || !self.cleanup",
        lambda spec: not spec.get("cleanup", False),
        "'cleanup: true' deletes a finished MiniCluster with its result: use "
        "'ttlSecondsAfterFinished' of the Ensemble instead",
    ),
    Rule(
        "sidecar.port",
        "type(self) == int ? self >= 1 && self <= 65535 : "
        "self.matches('^[0-9]{1,5}$') && int(self) >= 1 && int(self) <= 65535",
        _port,
        "a port must be between 1 and 65535",
    ),
    Rule(
        "state",
        "!has(self.claim) || !has(self.size)",
        lambda state: not ("claim" in state and "size" in state),
        "'claim' (an existing claim) cannot be combined with 'size' (new claims)",
    ),
)


# Group, version, kind and the meaning of fields are those of upstream. Of a MiniCluster, only the
# fields that the rules read are declared; the MiniCluster's own definition checks the others. Every
# list has a maximum length, because the API server limits the estimated cost of rules.

Schema = dict[str, Any]

#: A quantity of bytes, in Kubernetes' notation.
_QUANTITY = r"^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i|e[0-9]+)?$"
_KEEP = {"x-kubernetes-preserve-unknown-fields": True}
#: Longest ensemble file: what fits into a ConfigMap.
_FILE = 1 << 20
#: An RFC 1123 label that cannot be confused with an index, and is short enough for pod names.
_MEMBER_NAME = "^[a-z]([-a-z0-9]{0,13}[a-z0-9])?$"


def _text(about: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, "maxLength": 253, **more}


def _choice(about: str, *values: str, default: str | None = None) -> Schema:
    known = {} if default is None else {"default": default}
    return {"type": "string", "description": about, "enum": list(values), **known}


def _object(about: str, properties: Mapping[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "description": about, "properties": dict(properties), **more}


def _open_object(about: str) -> Schema:
    return {"type": "object", "description": about, **_KEEP}


def _texts(about: str) -> Schema:
    values = {"type": "string", "maxLength": 4096}
    return {"type": "object", "description": about, "additionalProperties": values}


def _list(about: str, items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "description": about, "items": items, "maxItems": most, **more}


def _integer(about: str, least: int = 1, **more: Any) -> Schema:
    return {"type": "integer", "format": "int32", "description": about, "minimum": least, **more}


_FROM = _object(
    "Source of the ensemble file, if it is not inline.",
    {
        "configMapKeyRef": _object(
            "Key of a ConfigMap in the same namespace.",
            {"name": _text("The ConfigMap."), "key": _text("Its key.", default="ensemble.yaml")},
            required=["name"],
        )
    },
    required=["configMapKeyRef"],
)
_ENSEMBLE = {"type": "string", "minLength": 1, "maxLength": _FILE}

_CONTAINER = _object(
    "Container of the MiniCluster; see the Flux Operator for other fields.",
    {
        "name": {"type": "string", "maxLength": 253},
        "image": {"type": "string", "maxLength": 1024},
        "command": {"type": "string", "maxLength": 65536},
        "runFlux": {"type": "boolean"},
    },
    **_KEEP,
)
_MINICLUSTER = _object(
    "The MiniCluster; only 'spec' is used. The Flux Operator's definition describes it.",
    {
        "spec": _object(
            "The MiniCluster's spec.",
            {
                "size": _integer("Initial number of nodes. Default: 1."),
                "minSize": _integer("Fewest nodes. Default: 1."),
                "maxSize": _integer("Most nodes. Default: 'size'."),
                "cleanup": {"type": "boolean"},
                "containers": _list("Containers of each pod.", _CONTAINER, 16, minItems=1),
            },
            required=["containers"],
            **rules_at("minicluster.spec"),
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
            "Name of the member. Default: its index. Objects are named ENSEMBLE-NAME.",
            pattern=_MEMBER_NAME,
            maxLength=15,
        ),
        "ensemble": {**_ENSEMBLE, "description": "Text of the member's ensemble file."},
        "ensembleFrom": _FROM,
        "minicluster": _MINICLUSTER,
        "container": _text(
            "Container that runs the ensemble. Default: the first with 'runFlux', otherwise the "
            "first."
        ),
        "options": _texts("Options of the executor 'minicluster' (-o KEY=VALUE)."),
        "resize": _choice(
            "What sets its size: the ensemble's rules, an autoscaler created from 'autoscaling', "
            "something else (KEDA, kubectl), or nothing.",
            *("Rules", "HPA", "External", "None"),
            default="Rules",
        ),
        "autoscaling": _open_object("Spec of a HorizontalPodAutoscaler (autoscaling/v2), for HPA."),
        "branch": _text("Accepted and ignored: nothing is installed from git."),
    },
    required=["minicluster"],
)
_SIDECAR = _object(
    "The ensemble service, a separate Deployment.",
    {
        "image": _text("Image. Default: that of the operator's release.", maxLength=1024),
        "imagePullPolicy": _choice(
            "When to pull the image.", "Always", "IfNotPresent", "Never", default="IfNotPresent"
        ),
        "pullAlways": {"type": "boolean", "description": "The same as imagePullPolicy: Always."},
        "port": {
            "x-kubernetes-int-or-string": True,
            "description": "The port of the service, as a number or as text.",
            "default": 50051,
            **rules_at("sidecar.port"),
        },
        "metricsPort": _integer("Port of /metrics and /healthz.", maximum=65535, default=9464),
        "workers": {
            "type": "integer",
            "format": "int32",
            "description": "Accepted and ignored: the service has no worker threads.",
        },
        "resources": _open_object("Resources of its container."),
        "nodeSelector": _texts("Labels of the nodes that it may run on."),
        "tolerations": _list("Taints that it tolerates.", _open_object("A toleration."), 32),
        "imagePullSecrets": _list(
            "Secrets to pull its image with.", _object("", {"name": _text("")}), 16
        ),
        "storage": _object(
            "Claim for its state; by default, the state is lost with its pod.",
            {
                "size": _text("Size of the claim.", default="1Gi", pattern=_QUANTITY),
                "storageClassName": _text("Storage class of the claim."),
            },
        ),
        "tls": _object(
            "Its certificates. Default: created and renewed by the operator.",
            {"secretName": _text("A Secret with ca.crt, server.crt and server.key.")},
            required=["secretName"],
        ),
    },
    default={},
)

#: The schema of ``spec``.
SPEC: Schema = _object(
    "What to run.",
    {
        "members": _list("Members of the ensemble.", _MEMBER, MEMBER_LIMIT, minItems=1),
        "sidecar": _SIDECAR,
        "ensemble": {
            **_ENSEMBLE,
            "description": "One ensemble file for all members; it runs in a separate pod.",
        },
        "ensembleFrom": _FROM,
        "suspend": {
            "type": "boolean",
            "default": False,
            "description": "If true, the members are removed; the service stays.",
        },
        "updatePolicy": _choice(
            "What to do if the file or MiniCluster of a running member changes.",
            *("OnFinish", "Recreate"),
            default="OnFinish",
        ),
        "restartPolicy": _choice(
            "What to do if the first pod of a run is lost. Default: Resume if 'state' is in a "
            "claim, otherwise Fail.",
            *("Resume", "Fail"),
        ),
        "ttlSecondsAfterFinished": _integer(
            "Seconds after its end until the Ensemble is deleted.", 0
        ),
        "onDelete": _choice(
            "What to do with created objects when the Ensemble is deleted.",
            *("Cancel", "Orphan"),
            default="Cancel",
        ),
        "install": _object(
            "How to get the program 'ensemble' into the container that runs it.",
            {
                "method": _choice(
                    "View: another container copies it. Image: the image has it. Pip: install "
                    "exact versions with hashes when the pod starts.",
                    *("View", "Image", "Pip"),
                    default="View",
                ),
                "image": _text("Image that contains it, for View.", maxLength=1024),
                "requirements": {
                    "type": "string",
                    "maxLength": 65536,
                    "description": "Lines of a requirements file, each with its hashes, for Pip.",
                },
            },
            default={},
        ),
        "state": _object(
            "Storage of the runs' journals.",
            {
                "emptyDir": _open_object("In the pod, lost with it."),
                "claim": _text("In this PersistentVolumeClaim, a folder for each member."),
                "size": _text("In a claim of this size for each member.", pattern=_QUANTITY),
                "storageClassName": _text("Storage class of these claims."),
            },
            **rules_at("state"),
            default={},
        ),
    },
    required=["members"],
    **rules_at("spec"),
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
_COUNTS = _open_object("Counts, by name.")
_STATUS: Schema = _object(
    "Status, written by the operator.",
    {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "phase": _text("Summary of the conditions, for people."),
        "conditions": _list(
            "",
            _CONDITION,
            16,
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
        "membersReady": _text("Ready members, of all members."),
        "service": _object("", {"address": _text(""), "ready": {"type": "boolean"}}),
        "nodes": _COUNTS,
        "cores": _COUNTS,
        "queue": _COUNTS,
        "exit": _text("Exit codes of the members' finished runs."),
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
                    "groups": _list("", _open_object("Counts of a job group."), 50),
                    "exitCode": {"type": "integer"},
                    "lostPod": {"type": "string"},
                    "restarts": {"type": "integer"},
                    "denied": _text(
                        "Why the last resize request was denied, if it was.", maxLength=1000
                    ),
                    "result": _choice("Result of the finished run.", "Succeeded", "Failed", "Lost"),
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
    """Return the CustomResourceDefinition."""
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
        **rules_at("object"),
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
