"""Carries out planned changes through the Kubernetes API."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from ensemble_operator.api import JSON_PATCH, MERGE, Api, ApiError
from ensemble_operator.cache import Cache, Key
from ensemble_operator.changes import (
    Change,
    Create,
    Delete,
    Disown,
    DryRun,
    Finalizer,
    Forget,
    Keys,
    Patch,
)
from ensemble_operator.crd_schema import KIND
from ensemble_operator.object_names import KINDS, ORPHAN, Object, without_none

#: Mappings that a patch replaces as a whole.
_WHOLE = ("nodeSelector", "limits", "requests")


def object_of(change: Change) -> tuple[str, str]:
    """Return the kind and name of a change's object."""
    if isinstance(change, (Create, Patch)):
        return change.body["kind"], change.body["metadata"]["name"]
    if isinstance(change, Delete):
        return change.kind, change.name
    if isinstance(change, Disown):
        return change.found["kind"], change.found["metadata"]["name"]
    if isinstance(change, DryRun):
        return object_of(Create(change.bodies[-1]))
    return ("Secret", "") if isinstance(change, Keys) else (KIND, "")


def merge_patch(found: Object, body: Object) -> Object:
    """Return the JSON merge patch that makes an object equal to ``body``."""
    patch: Object = copy.deepcopy(body)
    metadata = {key: patch["metadata"][key] for key in ("labels", "annotations")}
    # The API server rejects the patch if the object has changed.
    metadata["resourceVersion"] = found["metadata"].get("resourceVersion")
    patch["metadata"] = metadata
    _remove(found, patch)
    return patch


def _remove(found: Any, patch: Any) -> None:
    if not isinstance(found, dict) or not isinstance(patch, dict):
        return
    for key, each in patch.items():
        old = found.get(key)
        if key in _WHOLE and isinstance(old, dict) and isinstance(each, dict):
            each.update({gone: None for gone in old if gone not in each})
        _remove(old, each)


async def write(api: Api, cache: Cache, key: Key, change: Change) -> None:
    """Carry out one change. Raises :class:`ApiError`."""
    namespace, name = key
    if isinstance(change, Create):
        kind = change.body["kind"]
        await _create(api, cache, key, kind, change.body)
    elif isinstance(change, Patch):
        kind, own = object_of(change)
        path = KINDS[kind].path(namespace, own)
        body = merge_patch(change.found, change.body)
        cache.store_reply(key, kind, await api("PATCH", path, body, content_type=MERGE))
    elif isinstance(change, Delete):
        await _delete(api, cache, key, change)
    elif isinstance(change, Disown):
        kind, own = object_of(change)
        metadata = {
            "ownerReferences": None,
            "resourceVersion": change.found["metadata"].get("resourceVersion"),
        }
        path = KINDS[kind].path(namespace, own)
        found = await api("PATCH", path, {"metadata": metadata}, content_type=MERGE)
        if KINDS[kind].watched:
            cache.store_reply(key, kind, found)
    elif isinstance(change, Finalizer):
        await _set_finalizer(api, cache, key, change.wanted)
    elif isinstance(change, Forget):
        found = cache.ensembles[key]
        options = {"preconditions": {"uid": found["metadata"]["uid"]}}
        await api("DELETE", KINDS[KIND].path(namespace, name), options)


_UNKNOWN = re.compile(r'unknown field "([^"]+)"')


async def try_out(api: Api, key: Key, body: Object, given: Mapping[str, Any]) -> None:
    """Let the API server validate an object with a dry run. Raises :class:`ApiError`.

    Unknown fields are rejected only if the user wrote them. Other fields are the operator's, and
    an older Flux Operator may not know them.
    """
    path = KINDS[body["kind"]].path(key[0])
    bare = without_none(body)
    try:
        await api("POST", path, bare, query={"dryRun": "All", "fieldValidation": "Strict"})
    except ApiError as error:
        unknown = _UNKNOWN.findall(error.message)
        if error.status == 409:
            return
        if not unknown or any(_has(given, each) for each in unknown):
            raise
        await api("POST", path, bare, query={"dryRun": "All"})


def _has(given: Any, place: str) -> bool:
    """Return whether a place such as ``spec.containers[0].name`` exists."""
    for word in re.findall(r"[^.\[\]]+", place):
        if isinstance(given, (list, tuple)):
            given = dict(enumerate(given))
            word = int(word) if word.isdigit() else word
        if not isinstance(given, Mapping) or word not in given:
            return False
        given = given[word]
    return True


async def _create(api: Api, cache: Cache, key: Key, kind: str, body: Object) -> None:
    name = body["metadata"]["name"]
    try:
        found = await api("POST", KINDS[kind].path(key[0]), without_none(body))
    except ApiError as error:
        if error.status != 409:
            raise
        # The object exists. Either it is ours and watches have not reported it yet, or it is
        # foreign.
        found = await api("GET", KINDS[kind].path(key[0], name))
    cache.store_reply(key, kind, found)


async def _delete(api: Api, cache: Cache, key: Key, change: Delete) -> None:
    path = KINDS[change.kind].path(key[0], change.name)
    options = {"preconditions": {"uid": change.uid}, "propagationPolicy": "Background"}
    try:
        found = await api("DELETE", path, options)
    except ApiError as error:
        if error.status != 404:
            raise
        found = {}
    if (found.get("metadata") or {}).get("deletionTimestamp"):
        cache.store_reply(key, change.kind, found)
    else:
        cache.deleted(key, change.kind, change.name, change.uid)


async def _set_finalizer(api: Api, cache: Cache, key: Key, wanted: bool) -> None:
    """Add or remove our finalizer.

    The JSON patch requires that the finalizers are as observed, because others may change theirs.
    """
    metadata = cache.ensembles[key]["metadata"]
    there = list(metadata.get("finalizers") or ())
    others = [each for each in there if each != ORPHAN]
    body = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {
            "op": "add",
            "path": "/metadata/finalizers",
            "value": [*others, ORPHAN] if wanted else others,
        },
    ]
    path = KINDS[KIND].path(*key)
    try:
        cache.store_reply(key, KIND, await api("PATCH", path, body, content_type=JSON_PATCH))
    except ApiError as error:
        if error.status != 404:
            raise
