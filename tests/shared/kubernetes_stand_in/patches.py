"""Patches for custom resources: merge patches (RFC 7386) and JSON patches (RFC 6902)."""

from __future__ import annotations

import copy
from typing import Any

from .refusals import Refusal

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"


def patched(document: Any, patch: Any, content_type: str, *, custom: bool) -> Any:
    """Return a patched copy. As in Kubernetes, custom resources reject strategic merges."""
    if content_type == JSON:
        if not isinstance(patch, list):
            raise Refusal(400, "cannot unmarshal the patch into a list of operations")
        return _operations(copy.deepcopy(document), patch)
    if content_type == MERGE or (content_type == STRATEGIC and not custom):
        if not isinstance(patch, dict):
            raise Refusal(400, "cannot unmarshal the patch into an object")
        return merged(document, patch)
    raise Refusal(
        415,
        "the body of the request was in an unknown format - accepted media types include: "
        f"{JSON}, {MERGE}, application/apply-patch+yaml",
    )


def merged(document: Any, patch: Any) -> Any:
    """Apply a merge patch: null removes a key, lists are replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _operations(document: Any, patch: list[Any]) -> Any:
    holder = {"": document}
    for operation in patch:
        try:
            _apply(holder, operation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise Refusal(
                422, "the server rejected our request due to an error in our request"
            ) from None
    return holder[""]


def _apply(holder: dict[str, Any], operation: Any) -> None:
    kind, path = operation["op"], operation["path"]
    if kind == "add":
        _put(holder, path, copy.deepcopy(operation["value"]), insert=True)
    elif kind == "replace":
        _get(holder, path)
        _put(holder, path, copy.deepcopy(operation["value"]), insert=False)
    elif kind == "remove":
        _take(holder, path)
    elif kind == "test":
        if _get(holder, path) != operation["value"]:
            raise ValueError(path)
    elif kind == "move":
        _put(holder, path, _take(holder, operation["from"]), insert=True)
    elif kind == "copy":
        _put(holder, path, copy.deepcopy(_get(holder, operation["from"])), insert=True)
    else:
        raise ValueError(kind)


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]


def _parent(holder: Any, path: str) -> tuple[Any, Any]:
    *way, last = _steps(path)
    for step in way:
        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
    return holder, last


def _get(holder: Any, path: str) -> Any:
    parent, last = _parent(holder, path)
    return parent[int(last)] if isinstance(parent, list) else parent[last]


def _take(holder: Any, path: str) -> Any:
    parent, last = _parent(holder, path)
    return parent.pop(int(last)) if isinstance(parent, list) else parent.pop(last)


def _put(holder: Any, path: str, value: Any, *, insert: bool) -> None:
    parent, last = _parent(holder, path)
    if not isinstance(parent, list):
        parent[last] = value
    elif not insert:
        parent[int(last)] = value
    else:
        index = len(parent) if last == "-" else int(last)
        if not 0 <= index <= len(parent):
            raise IndexError(path)
        parent.insert(index, value)
