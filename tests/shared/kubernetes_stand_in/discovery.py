"""Discovery of groups, versions and kinds, which clients request first."""

from __future__ import annotations

from typing import Any

from .store import Store

__all__ = ["discovered"]

_SCALE = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovered(store: Store, path: str) -> dict[str, Any] | None:
    """Return the answer to a discovery path, or ``None`` for other paths."""
    parts = [part for part in path.split("/") if part]
    groups: dict[str, set[str]] = {}
    for kind in store.kinds.values():
        groups.setdefault(kind.group, set()).add(kind.version)
    if parts == ["api"]:
        return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
    if parts == ["apis"]:
        named = [(group, versions) for group, versions in sorted(groups.items()) if group]
        found = [_group(group, sorted(versions)) for group, versions in named]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    if parts == ["api", "v1"]:
        return _resources(store, "", "v1")
    if len(parts) == 2 and parts[0] == "apis" and parts[1] in groups:
        return {
            "kind": "APIGroup",
            "apiVersion": "v1",
            **_group(parts[1], sorted(groups[parts[1]])),
        }
    if len(parts) == 3 and parts[0] == "apis" and parts[2] in groups.get(parts[1], ()):
        return _resources(store, parts[1], parts[2])
    return None


def _group(group: str, versions: list[str]) -> dict[str, Any]:
    found = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": found, "preferredVersion": found[0]}


def _resources(store: Store, group: str, version: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for kind in store.kinds.values():
        if (kind.group, kind.version) != (group, version):
            continue
        about = {"kind": kind.kind, "namespaced": kind.namespaced}
        found.append(
            {
                **about,
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "verbs": _VERBS,
                "shortNames": list(kind.short_names),
                "categories": list(kind.categories),
            }
        )
        found += [
            {
                **about,
                **(_SCALE if each == "scale" else {}),
                "name": f"{kind.plural}/{each}",
                "singularName": "",
                "verbs": ["get", "patch"],
            }
            for each in kind.subresources
        ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found,
    }
