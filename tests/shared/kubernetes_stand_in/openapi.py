"""OpenAPI of the stand-in: only what clients read before they write.

It says that the server validates fields (``fieldValidation``), but does not describe the kinds.
"""

from __future__ import annotations

from typing import Any

from .store import Store

__all__ = ["described"]

_ROOT = "/openapi/v3"


def described(store: Store, path: str) -> dict[str, Any] | None:
    """Return the answer to an OpenAPI v3 path, or ``None`` for other paths."""
    groups: dict[str, list[Any]] = {}
    for kind in store.kinds.values():
        root = f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
        groups.setdefault(root, []).append(kind)
    if path == _ROOT:
        return {"paths": {each: {"serverRelativeURL": f"{_ROOT}/{each}"} for each in groups}}
    root = path.removeprefix(f"{_ROOT}/")
    if not path.startswith(_ROOT) or root not in groups:
        return None
    parameters = [
        {"name": each, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for each in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    paths = {}
    for kind in groups[root]:
        where = "/namespaces/{namespace}" if kind.namespaced else ""
        about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        operation = {"parameters": parameters, "x-kubernetes-group-version-kind": about}
        operation["responses"] = {"200": {"description": "OK"}}
        paths[f"/{root}{where}/{kind.plural}/{{name}}"] = {"patch": operation}
    info = {"title": "Kubernetes", "version": "v1.36.2-standin"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}
