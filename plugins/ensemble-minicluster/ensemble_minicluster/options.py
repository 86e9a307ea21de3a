"""Options of the executor ``minicluster`` and of the resizer ``kubernetes``, as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT = {"type": "string", "minLength": 1}
_NODES = {"type": "integer", "minimum": 1}

#: Options of the composed executor.
PASSED_ON = ("uri", "queue", "bank", "output", "events", "instance_ended")

#: Marks connection options, which may differ after a resume.
_REACH: Mapping[str, Any] = {"commands": ["run", "resume", "cancel"]}

#: Options of the executor, for ``--option KEY=VALUE``.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {
            "x-ensemble-flag": {"metavar": "NAME", "help": "Name of the MiniCluster."},
            "description": "Member to resize: NAMESPACE/NAME, or NAME for a member "
            "in 'default'. Needed without mock.",
            **_TEXT,
        },
        "host": {
            "x-ensemble-flag": {"metavar": "HOST", **_REACH},
            "description": "Host of the ensemble service.",
            "default": "localhost",
            **_TEXT,
        },
        "port": {
            "x-ensemble-flag": {"metavar": "PORT", **_REACH},
            "description": "Port of the ensemble service.",
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "default": 50051,
        },
        "token_file": {
            "x-ensemble-flag": {"metavar": "FILE", "path": True, **_REACH},
            "description": "File with this member's token; default: ENSEMBLE_TOKEN, or the file "
            "ENSEMBLE_TOKEN_FILE.",
            **_TEXT,
        },
        "ca": {
            "x-ensemble-flag": {
                "metavar": "FILE",
                "path": True,
                "instead_of": ["insecure"],
                **_REACH,
            },
            "description": "Certificate of the service's certificate authority; default: "
            "ENSEMBLE_CA, or that of a service on this machine.",
            **_TEXT,
        },
        "insecure": {
            "x-ensemble-flag": {"instead_of": ["ca"], **_REACH},
            "description": "Use plaintext to a service on another machine.",
            "type": "boolean",
            "default": False,
        },
        "arrival_timeout": {
            "description": "Longest time in seconds until granted nodes are up in Flux, or removed "
            "nodes are gone.",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 600,
        },
        "drain_timeout": {
            "description": "Seconds that a shrink waits for jobs on the nodes to remove.",
            "type": "number",
            "minimum": 0,
            "default": 3600,
        },
        "settle_time": {
            "description": "Seconds after which a node that was up before the request counts as "
            "new, not as leaving.",
            "type": "number",
            "minimum": 0,
            "default": 35,
        },
        "report": {
            "description": "Report the queue's status to the service; false if a member agent does "
            "(ensemble member start).",
            "type": "boolean",
            "default": True,
        },
        "mock": {
            "x-ensemble-flag": {"help": "Rehearse without the ensemble service."},
            "description": "Simulate sizes between min_size and max_size, without a service. Jobs "
            "go to Flux, or without Flux to this machine, one core for each node.",
            "type": "boolean",
            "default": False,
        },
        "kubernetes": {
            "x-ensemble-flag": {"help": "No effect; upstream's operator passes it."},
            "description": "Accepted and ignored, with a warning: upstream's operator passes it.",
            "type": "boolean",
            "default": False,
        },
        "size": {"description": "Initial number of nodes (mock); default: min_size.", **_NODES},
        "min_size": {"description": "Fewest nodes (mock).", "default": 1, **_NODES},
        "max_size": {"description": "Most nodes (mock).", "default": 4, **_NODES},
        "compose": {
            "description": "Executor for the jobs; default: flux, or local with mock and without "
            "Flux.",
            **_TEXT,
        },
        "uri": {"description": "Option of executor flux: the instance.", **_TEXT},
        "queue": {"description": "Option of executor flux: the queue for jobs.", **_TEXT},
        "bank": {"description": "Option of executor flux: the bank for jobs.", **_TEXT},
        "output": {"description": "Option of executor flux: where output goes.", **_TEXT},
        "events": {"description": "Option of executor flux: where events come from.", **_TEXT},
        "instance_ended": {
            "x-ensemble-flag": {"commands": ["resume"]},
            "description": "Option of executor flux: whether the instance with the run's jobs has "
            "certainly ended.",
            "type": "boolean",
        },
    },
}

#: Options of the resizer, for ``ensemble-server start --option KEY=VALUE``.
RESIZER_OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "namespace": {
            "description": "Only resize MiniClusters in this namespace; default: all that the "
            "credentials allow.",
            **_TEXT,
        },
        "map": {
            "type": ["object", "string"],
            "additionalProperties": {"type": "string", "minLength": 1},
            "description": "Members whose MiniCluster has another name: "
            '{"NAMESPACE/NAME": "MINICLUSTER"}, as an object or as JSON.',
        },
        "fixed": {
            "type": ["array", "string"],
            "items": {"type": "string", "minLength": 1},
            "description": "Members that are not resized, because something else sets their size: "
            '["NAMESPACE/NAME"], as a list or as JSON.',
        },
        "kubeconfig": {
            "description": "Kubeconfig file; default: $KUBECONFIG, "
            "the pod's service account, or ~/.kube/config.",
            **_TEXT,
        },
        "context": {"description": "Context in that file; default: the current one.", **_TEXT},
        "max_size": {
            "type": "integer",
            "minimum": 1,
            "description": "Upper limit of nodes for every MiniCluster, even one without a "
            "maxSize; default: its maxSize.",
        },
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 600,
            "default": 8,
            "description": "Time limit of a resize in seconds, for all its requests to Kubernetes.",
        },
    },
}
