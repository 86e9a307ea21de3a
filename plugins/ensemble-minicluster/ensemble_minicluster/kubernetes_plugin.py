"""Plugin record of the resizer ``kubernetes``: its options, and how to build it.

The package's hook hands it out with every run, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core import Resizer, ResizerPlugin

__all__ = ["OPTIONS", "RECORD"]

_TEXT = {"type": "string", "minLength": 1}

#: What ``ensemble-server start --option KEY=VALUE`` may set.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "namespace": {
            "description": "The one namespace whose MiniClusters may be touched; default: any that "
            "the credentials allow.",
            **_TEXT,
        },
        "map": {
            "type": ["object", "string"],
            "additionalProperties": {"type": "string", "minLength": 1},
            "description": "Members whose MiniCluster is not called as they are: "
            '{"NAMESPACE/NAME": "MINICLUSTER"}, as an object or as JSON.',
        },
        "fixed": {
            "type": ["array", "string"],
            "items": {"type": "string", "minLength": 1},
            "description": "Members whose size others set, and that are not resized here: "
            '["NAMESPACE/NAME"], as a list or as JSON.',
        },
        "kubeconfig": {
            "description": "The file that says how to reach the cluster; default: $KUBECONFIG, "
            "else the pod's service account, else ~/.kube/config.",
            **_TEXT,
        },
        "context": {"description": "The context of that file; default: its current one.", **_TEXT},
        "max_size": {
            "type": "integer",
            "minimum": 1,
            "description": "Most nodes of any MiniCluster, also of one without a maxSize; "
            "default: its own maxSize alone.",
        },
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 600,
            "default": 8,
            "description": "Seconds that a resize may take, with all that Kubernetes is asked.",
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
