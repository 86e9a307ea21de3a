"""Cache of the operator's custom resources and of the objects that it created for them.

The cache is filled by watches and by our own writes. An older version of an object never replaces
a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_operator.crd_schema import KIND
from ensemble_operator.object_names import LABEL, Object

#: Namespace and name of an Ensemble.
Key = tuple[str, str]
_Child = tuple[str, str]

#: Number of uids of deleted objects to remember.
_MOST_GONE = 10_000
#: Kinds whose objects are used only for their metadata.
_BARE = (
    "ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy",
    "PersistentVolumeClaim", "HorizontalPodAutoscaler",
)  # fmt: skip


_POD_STATUS = ("phase", "startTime", "message", "reason", "conditions")


class Cache:
    """Known Ensembles and their objects. The key is an Ensemble's namespace and name."""

    def __init__(self) -> None:
        self.ensembles: dict[Key, Object] = {}
        self._children: dict[Key, dict[_Child, Object]] = {}
        #: Objects without our label that have the name of one of our objects, by kind, namespace
        #: and name.
        self._in_the_way: dict[tuple[str, str, str], Key] = {}
        #: Uids of the most recently deleted objects, known from our deletions and from watches.
        self._gone: dict[str, None] = {}

    def children(self, key: Key) -> dict[_Child, Object]:
        """Return the objects of an Ensemble, except its pods."""
        found = self._children.get(key, {})
        return {each: body for each, body in found.items() if each[0] != "Pod"}

    def pods(self, key: Key) -> list[Object]:
        """Return the pods of an Ensemble."""
        return [body for each, body in self._children.get(key, {}).items() if each[0] == "Pod"]

    def told(self, kind: str, found: Mapping[str, Any], *, gone: bool = False) -> Key | None:
        """Process an event of a watch. Return the Ensemble that the object belongs to, if any."""
        metadata = found["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        owner = name if kind == KIND else (metadata.get("labels") or {}).get(LABEL)
        if not owner:
            return self._on_foreign_event(kind, found, gone=gone)
        key = (namespace, owner)
        if gone:
            self._drop(key, kind, name, metadata.get("uid", ""))
        else:
            self._store(key, kind, found)
        return key

    def _on_foreign_event(self, kind: str, found: Mapping[str, Any], *, gone: bool) -> Key | None:
        """Process an event of an object that blocks an Ensemble's name."""
        metadata = found["metadata"]
        where = (kind, metadata.get("namespace", ""), metadata["name"])
        key = self._in_the_way.get(where)
        if key is not None and gone:
            self._drop(key, kind, metadata["name"], metadata.get("uid", ""))
        return key if gone else None

    def blocking_objects(self) -> list[tuple[Key, str, str]]:
        """Return the foreign objects whose names an Ensemble needs, as (Ensemble, kind, name)."""
        return [(key, kind, name) for (kind, _, name), key in self._in_the_way.items()]

    def _store(self, key: Key, kind: str, found: Mapping[str, Any]) -> None:
        """Store an object, unless a newer version is known or the object was deleted."""
        metadata = found["metadata"]
        if metadata.get("uid") in self._gone or _older(found, self._cached(key, kind, metadata)):
            return
        if kind == KIND:
            self.ensembles[key] = _without_managers(found)
        else:
            self._children.setdefault(key, {})[(kind, metadata["name"])] = _reduce(kind, found)
            where = (kind, key[0], metadata["name"])
            if (metadata.get("labels") or {}).get(LABEL) == key[1]:
                self._in_the_way.pop(where, None)
            else:
                self._in_the_way[where] = key

    def _drop(self, key: Key, kind: str, name: str, uid: str) -> None:
        """Remove this object for good."""
        if uid:
            self._gone[uid] = None
            while len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]
        known = self._cached(key, kind, {"name": name})
        if known is None or known["metadata"].get("uid", "") != uid:
            return
        if kind == KIND:
            del self.ensembles[key]
        else:
            self.forget(key, kind, name)

    def listed(
        self, kind: str, items: Iterable[Mapping[str, Any]], version: str, namespace: str = ""
    ) -> set[Key]:
        """Process a complete list of objects of a kind, in one namespace or all, at a resource
        version.

        Return the Ensembles whose cached objects differed from the list.
        """
        changed: set[Key] = set()
        there = set()
        for found in items:
            metadata = found["metadata"]
            there.add((metadata.get("namespace", ""), metadata["name"], metadata.get("uid")))
            owner = (metadata.get("labels") or {}).get(LABEL, "")
            key = (metadata.get("namespace", ""), metadata["name"] if kind == KIND else owner)
            known = self._cached(key, kind, metadata)
            same = (known or {}).get("metadata", {}).get("resourceVersion")
            if same != metadata.get("resourceVersion") and not _older(found, known):
                told = self.told(kind, found)
                changed |= {told} if told is not None else set()
        for found in self._all(kind, namespace):
            metadata = found["metadata"]
            mark = (metadata.get("namespace", ""), metadata["name"], metadata.get("uid"))
            if mark not in there and not _later(metadata, version):
                told = self.told(kind, found, gone=True)
                changed |= {told} if told is not None else set()
        return changed

    def _cached(self, key: Key, kind: str, metadata: Mapping[str, Any]) -> Object | None:
        if kind == KIND:
            return self.ensembles.get(key)
        return self._children.get(key, {}).get((kind, metadata["name"]))

    def _all(self, kind: str, namespace: str) -> list[Object]:
        if kind == KIND:
            found = list(self.ensembles.values())
        else:
            every = list(self._children.values())
            found = [body for each in every for (k, _), body in each.items() if k == kind]
        mine = [each for each in found if _has_label(kind, each)]
        return [each for each in mine if namespace in ("", each["metadata"].get("namespace", ""))]

    def store_reply(self, key: Key, kind: str, found: Object) -> None:
        """Store the reply to one of our writes, or to a read of a foreign object."""
        # Otherwise the next reconcile might repeat a write that the watches have not reported yet.
        if kind != KIND or key in self.ensembles:
            self._store(key, kind, found)

    def deleted(self, key: Key, kind: str, name: str, uid: str) -> None:
        """Record that we have deleted an object."""
        self._drop(key, kind, name, uid)

    def forget(self, key: Key, kind: str, name: str) -> None:
        """Record that an object does not exist."""
        mine = self._children.get(key, {})
        mine.pop((kind, name), None)
        self._in_the_way.pop((kind, key[0], name), None)
        if not mine:
            self._children.pop(key, None)


def _has_label(kind: str, found: Mapping[str, Any]) -> bool:
    """Return whether a list by our label contains the object.

    Other objects are foreign. They are cached only because they block a name.
    """
    return kind == KIND or LABEL in (found["metadata"].get("labels") or {})


def _later(metadata: Mapping[str, Any], version: str) -> bool:
    """Return whether an object is newer than a list."""
    own = str(metadata.get("resourceVersion", ""))
    return own.isdigit() and version.isdigit() and int(own) > int(version)


def _older(new: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    """Return whether a newer object of that name is known.

    The newer one may be a different object: watches keep the order of events of one object, but not
    of two.
    """
    if known is None:
        return False
    versions = [str(each["metadata"].get("resourceVersion", "")) for each in (new, known)]
    return all(each.isdigit() for each in versions) and int(versions[0]) < int(versions[1])


#: Annotation as large as the object itself. We do not use it.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def _without_managers(found: Mapping[str, Any]) -> Object:
    metadata = {key: each for key, each in found["metadata"].items() if key != "managedFields"}
    notes = metadata.get("annotations")
    if notes and _APPLIED in notes:
        metadata["annotations"] = {key: each for key, each in notes.items() if key != _APPLIED}
    return {**found, "metadata": metadata}


def _reduce(kind: str, found: Mapping[str, Any]) -> Object:
    """Return an object with only those fields that plans use; the whole object is several times
    larger.
    """
    body = {**_without_managers(found), "kind": kind}
    if kind in _BARE:
        return {key: body[key] for key in ("apiVersion", "kind", "metadata") if key in body}
    if kind == "Pod":
        status = _pod_status(body.get("status") or {})
        return {"kind": kind, "metadata": body["metadata"], "status": status}
    if kind == "MiniCluster":
        body["spec"] = _minicluster_spec(body.get("spec") or {})
    elif kind == "Job":
        body["spec"] = _job_spec(body.get("spec") or {})
    return body


def _pod_status(status: Mapping[str, Any]) -> Object:
    kept = {key: status[key] for key in _POD_STATUS if key in status}
    for key in ("initContainerStatuses", "containerStatuses"):
        if status.get(key):
            kept[key] = [
                {name: each[name] for name in ("name", "state") if name in each}
                for each in status[key]
            ]
    return kept


def _minicluster_spec(spec: Mapping[str, Any]) -> Object:
    """Return the size of a MiniCluster and the ConfigMaps that it mounts."""
    kept = {key: spec[key] for key in ("size", "minSize", "maxSize") if key in spec}
    files = [
        {"volumes": {key: each}}
        for container in spec.get("containers") or ()
        for key, each in (container.get("volumes") or {}).items()
        if each.get("configMapName")
    ]
    return {**kept, "containers": files}


def _job_spec(spec: Mapping[str, Any]) -> Object:
    """Return the ConfigMaps that a Job's pods mount."""
    volumes = ((spec.get("template") or {}).get("spec") or {}).get("volumes") or ()
    return {"template": {"spec": {"volumes": [each for each in volumes if each.get("configMap")]}}}
