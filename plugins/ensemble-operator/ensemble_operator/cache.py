"""Cache of what watches told of Ensembles and their children, and of what we wrote since.

An answer to a write is newer than what watches have told: it counts until they have told of it,
else a look that follows would do the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .names import LABEL, Object
from .schema import KIND

__all__ = ["Cache", "Key"]

#: The namespace and the name of an Ensemble.
Key = tuple[str, str]
_Child = tuple[str, str]

#: Kinds of which only the metadata is looked at.
_BARE = (
    "ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy",
    "PersistentVolumeClaim", "HorizontalPodAutoscaler",
)  # fmt: skip


class Cache:
    """Everything that is known of Ensembles, by their keys."""

    def __init__(self) -> None:
        self.ensembles: dict[Key, Object] = {}
        self._children: dict[Key, dict[_Child, Object]] = {}
        #: What was deleted by us, by its uid, until watches have told.
        self._deleted: dict[str, Key] = {}

    def children(self, key: Key) -> dict[_Child, Object]:
        """What there is of an Ensemble, but its pods."""
        found = self._children.get(key, {})
        return {each: body for each, body in found.items() if each[0] != "Pod"}

    def pods(self, key: Key) -> list[Object]:
        """The pods of an Ensemble."""
        return [body for each, body in self._children.get(key, {}).items() if each[0] == "Pod"]

    def told(self, kind: str, found: Mapping[str, Any], *, gone: bool = False) -> Key | None:
        """Take what a watch told of an object; the Ensemble that it belongs to, if to any."""
        metadata = found["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if kind == KIND:
            key = (namespace, name)
            if gone:
                self.ensembles.pop(key, None)
            elif not _older(found, self.ensembles.get(key)):
                self.ensembles[key] = _without_managers(found)
            return key
        owner = (metadata.get("labels") or {}).get(LABEL)
        if not owner:
            return None
        key = (namespace, owner)
        mine = self._children.setdefault(key, {})
        if gone:
            old = mine.get((kind, name))
            if old is not None and old["metadata"].get("uid") == metadata.get("uid"):
                del mine[(kind, name)]
            self._deleted.pop(metadata.get("uid", ""), None)
            if not mine:
                del self._children[key]
        elif metadata.get("uid") not in self._deleted and not _older(found, mine.get((kind, name))):
            mine[(kind, name)] = _kept(kind, found)
        return key

    def listed(
        self, kind: str, items: Iterable[Mapping[str, Any]], version: str, namespace: str = ""
    ) -> set[Key]:
        """Take a list of all objects of a kind, of one namespace or of all, as of a version; the
        Ensembles of which watches had told something else."""
        changed: set[Key] = set()
        there = set()
        for found in items:
            metadata = found["metadata"]
            there.add((metadata.get("namespace", ""), metadata["name"], metadata.get("uid")))
            known = self._of(kind, metadata)
            same = (known or {}).get("metadata", {}).get("resourceVersion")
            if same != metadata.get("resourceVersion") and not _older(found, known):
                key = self.told(kind, found)
                changed |= {key} if key is not None else set()
        for found in self._all(kind, namespace):
            metadata = found["metadata"]
            mark = (metadata.get("namespace", ""), metadata["name"], metadata.get("uid"))
            if mark not in there and not _later(metadata, version):
                key = self.told(kind, found, gone=True)
                changed |= {key} if key is not None else set()
        return changed

    def _of(self, kind: str, metadata: Mapping[str, Any]) -> Object | None:
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if kind == KIND:
            return self.ensembles.get((namespace, name))
        owner = (metadata.get("labels") or {}).get(LABEL, "")
        return self._children.get((namespace, owner), {}).get((kind, name))

    def _all(self, kind: str, namespace: str) -> list[Object]:
        if kind == KIND:
            found = list(self.ensembles.values())
        else:
            every = list(self._children.values())
            found = [body for each in every for (k, _), body in each.items() if k == kind]
        mine = [each for each in found if _labelled(kind, each)]
        return [each for each in mine if namespace in ("", each["metadata"].get("namespace", ""))]

    def wrote(self, key: Key, kind: str, found: Object) -> None:
        """Take the answer to a write of ours, or to a look at somebody's object."""
        if kind == KIND:
            if key in self.ensembles:
                self.ensembles[key] = _without_managers(found)
            return
        name = found["metadata"]["name"]
        self._children.setdefault(key, {})[(kind, name)] = _kept(kind, found)

    def deleted(self, key: Key, kind: str, name: str, uid: str) -> None:
        """Take that an object is gone, by our doing."""
        mine = self._children.get(key, {})
        if (kind, name) in mine and mine[(kind, name)]["metadata"].get("uid") == uid:
            del mine[(kind, name)]
            self._deleted[uid] = key

    def forget(self, key: Key, kind: str, name: str) -> None:
        """Take that an object is not there."""
        self._children.get(key, {}).pop((kind, name), None)


def _labelled(kind: str, found: Mapping[str, Any]) -> bool:
    """Whether a list of ours would have it: somebody else's may be here for its name alone."""
    return kind == KIND or LABEL in (found["metadata"].get("labels") or {})


def _later(metadata: Mapping[str, Any], version: str) -> bool:
    """Whether an object is newer than a list."""
    own = str(metadata.get("resourceVersion", ""))
    return own.isdigit() and version.isdigit() and int(own) > int(version)


def _older(new: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    """Whether this very object is known newer already."""
    if known is None or known["metadata"].get("uid") != new["metadata"].get("uid"):
        return False
    versions = [str(each["metadata"].get("resourceVersion", "")) for each in (new, known)]
    return all(each.isdigit() for each in versions) and int(versions[0]) < int(versions[1])


def _without_managers(found: Mapping[str, Any]) -> Object:
    metadata = {key: each for key, each in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": metadata}


def _kept(kind: str, found: Mapping[str, Any]) -> Object:
    """As much of an object as plans look at."""
    body = {**_without_managers(found), "kind": kind}
    if kind in _BARE:
        return {key: body[key] for key in ("apiVersion", "kind", "metadata") if key in body}
    if kind == "Pod":
        return {key: body[key] for key in ("kind", "metadata", "status") if key in body}
    return body
