"""Fields of MiniClusters that an operator with ``--restrict-members`` rejects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .resource import Object, Problem

#: MiniCluster fields that grant more than an Ensemble needs, each with what it grants.
_GRANTS = {
    "hostPath": "a path of the node",
    "hostPID": "processes of the node",
    "hostIPC": "the memory that processes of the node share",
    "privileged": "the privileges of the node",
    "allowPrivilegeEscalation": "further privileges",
    "secretName": "a Secret",
    "secrets": "a Secret",
    "serviceAccountName": "the rights of another service account",
}


def privilege_problems(spec: Object) -> list[Problem]:
    """Return the places where MiniClusters use Secrets, nodes or privileges.

    An operator with restrictions rejects these.
    """
    return [
        Problem(path, f"asks for {what}, which this operator does not allow ('--restrict-members')")
        for index, member in enumerate(spec["members"])
        for path, what in _grants(
            member["minicluster"]["spec"], f"spec.members[{index}].minicluster.spec"
        )
    ]


def _grants(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _grants(each, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in _GRANTS and each:
                yield f"{path}.{key}", _GRANTS[key]
            elif path.endswith(".capabilities") and key == "add" and each:
                yield f"{path}.{key}", "further privileges"
            else:
                yield from _grants(each, f"{path}.{key}")
