"""Tables for ``kubectl get``: lists and objects with the columns of their definition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from .kinds import Kind
from .store import Object

__all__ = ["as_table", "wants_table"]

#: Columns of kinds that define none.
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_STEP = re.compile(
    r'\.(?P<key>\w+)|\[(?P<every>\*)\]|\[\?\(@\.(?P<of>\w+)=="(?P<is>[^"]*)"\)\]|\[(?P<at>\d+)\]'
)


def wants_table(accept: str) -> bool:
    """Return whether a client prefers a table."""
    first = accept.partition(",")[0].replace(" ", "")
    return "as=Table" in first.split(";") and "g=meta.k8s.io" in first.split(";")


def as_table(kind: Kind, answer: Object) -> Object:
    """Return an object or a list as a table."""
    found = answer["items"] if answer.get("kind") == f"{kind.kind}List" else [answer]
    columns = list(kind.columns) or [_AGE]
    shown = [{"name": "Name", "type": "string", "format": "name", "priority": 0}]
    shown += [
        {"name": each["name"], "type": each["type"], "priority": each.get("priority", 0)}
        for each in columns
    ]
    metadata = answer["metadata"]
    kept = ("resourceVersion", "continue", "remainingItemCount")
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "columnDefinitions": [{**each, "description": "", "format": ""} | each for each in shown],
        "rows": [_row(each, columns) for each in found],
    }


def _row(found: Object, columns: Iterable[Mapping[str, Any]]) -> Object:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    cells = [found["metadata"]["name"], *(_cell(found, each) for each in columns)]
    return {"cells": cells, "object": {**partial, "metadata": found["metadata"]}}


def _cell(found: Object, column: Mapping[str, Any]) -> Any:
    values = list(_at(found, column["jsonPath"]))
    if not values:
        return None
    if column["type"] == "date":
        return _age(str(values[0]))
    return values[0] if column["type"] != "string" else ",".join(map(str, values))


def _at(found: Any, path: str) -> Iterable[Any]:
    """Return the values at a path, in the part of JSONPath that definitions use."""
    values, end = [found], 0
    for step in _STEP.finditer(path):
        if step.start() != end:
            break
        end = step.end()
        values = [each for value in values for each in _next(value, step)]
    if end != len(path):
        raise ValueError(f"{path!r} is no path that is known here")
    return values


def _next(value: Any, step: re.Match[str]) -> list[Any]:
    if step["key"]:
        return [value[step["key"]]] if isinstance(value, dict) and step["key"] in value else []
    if not isinstance(value, list):
        return []
    if step["at"]:
        return value[int(step["at"]) : int(step["at"]) + 1]
    if step["every"]:
        return value
    return [each for each in value if isinstance(each, dict) and each.get(step["of"]) == step["is"]]


def _age(when: str) -> str:
    began = datetime.fromisoformat(when.replace("Z", "+00:00"))
    return f"{int((datetime.now(timezone.utc) - began).total_seconds())}s"
