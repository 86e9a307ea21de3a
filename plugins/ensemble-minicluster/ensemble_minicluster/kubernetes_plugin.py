"""Plugin record of the resizer ``kubernetes``, which sets the size of Flux MiniClusters.

Every run loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core import Resizer, ResizerPlugin

_TEXT = {"type": "string", "minLength": 1}

#: Options for ``ensemble-server start --option KEY=VALUE``.
OPTIONS: Mapping[str, Any] = {
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


def _build(options: Mapping[str, Any]) -> Resizer:
    from ensemble_minicluster.resizer import build

    return build(options)


RECORD = ResizerPlugin(
    name="kubernetes",
    summary="Grows and shrinks the MiniClusters of a Kubernetes cluster",
    build=_build,
    options=OPTIONS,
)
