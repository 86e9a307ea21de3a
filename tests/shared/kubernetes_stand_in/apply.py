"""Server-side apply: merges the object that a manager applies with the fields of other managers.

Fields belong to the managers that applied them, or that created the object with a manager's name,
like kubectl. Unlike in clusters, fields written by others have no owner, lists are replaced as a
whole, and applying a new object needs no permission to create it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from .patches import merged
from .refusals import Refusal, invalid

__all__ = ["APPLY", "applied", "owned_by"]

APPLY = "application/apply-patch+yaml"

Object = dict[str, Any]
Path = tuple[str, ...]


def applied(old: Object, given: Any, manager: str, *, force: bool) -> Object:
    """Return the object with this manager's fields, without those that it no longer applies.

    ``old`` is the stored object, or at least its ``metadata``. Raises :class:`Refusal` (409) if
    another manager applied another value to one of the fields, unless ``force`` is true.
    """
    if not manager:
        wrong = "fieldManager: Required value: is required for apply patch"
        raise invalid("PatchOptions", "meta.k8s.io", "", [wrong])
    if not isinstance(given, dict) or not given.get("apiVersion") or not given.get("kind"):
        raise Refusal(400, "an applied configuration must have apiVersion and kind")
    config = {key: each for key, each in given.items() if key not in ("apiVersion", "kind")}
    kept = ("labels", "annotations", "finalizers", "ownerReferences")
    metadata = given.get("metadata", {})
    config["metadata"] = {key: metadata[key] for key in kept if key in metadata}
    wanted = dict(_leaves(config))
    entries = copy.deepcopy(old["metadata"].get("managedFields", []))
    owned = {each["manager"]: set(_paths(each["fieldsV1"])) for each in entries}
    before = owned.pop(manager, set())
    conflicts = [
        (other, path)
        for other, paths in owned.items()
        for path in sorted(paths & set(wanted))
        if _at(old, path) != wanted[path]
    ]
    if conflicts and not force:
        said = ", ".join(f'conflict with "{who}": .{".".join(path)}' for who, path in conflicts)
        raise Refusal(409, f"Apply failed with {len(conflicts)} conflicts: {said}", "Conflict")
    for other, path in conflicts:
        owned[other].discard(path)
    result: Object = copy.deepcopy(old)
    for path in before - set(wanted) - set().union(*owned.values()):
        _drop(result, path)
    result = merged(result, config)
    result["apiVersion"], result["kind"] = given["apiVersion"], given["kind"]
    version = metadata.get("resourceVersion")
    if version:
        result["metadata"]["resourceVersion"] = version
    result["metadata"]["managedFields"] = [
        {
            "manager": who,
            "operation": "Apply",
            "apiVersion": given["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields(paths),
        }
        for who, paths in sorted({**owned, manager: set(wanted)}.items())
        if paths
    ]
    return result


def owned_by(manager: str, given: Object) -> list[Object]:
    """Return the managed fields of an object that a manager created without server-side apply."""
    config = {key: given[key] for key in given if key in ("spec", "data")}
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": given.get("apiVersion", ""),
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields({path for path, _ in _leaves(config)}),
        }
    ]


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and (value or not path):
        for key, each in value.items():
            yield from _leaves(each, (*path, key))
    elif value != {} or len(path) > 1:
        yield path, value


def _at(found: Any, path: Path) -> Any:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _drop(found: Object, path: Path) -> None:
    parent = _at(found, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


def _fields(paths: set[Path]) -> Object:
    found: Object = {}
    for path in sorted(paths):
        here = found
        for key in path:
            here = here.setdefault(f"f:{key}", {})
    return found


def _paths(fields: Object, path: Path = ()) -> Iterator[Path]:
    for key, each in fields.items():
        here = (*path, key.removeprefix("f:"))
        if each:
            yield from _paths(each, here)
        else:
            yield here
