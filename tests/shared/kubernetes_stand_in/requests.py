"""Implementation of API requests: paths, verbs and subresources, without HTTP."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass
from typing import Any

from . import patches, schema
from .access import Access
from .apply import APPLY, applied, owned_by
from .kinds import Kind, selected
from .refusals import Refusal, conflict, invalid
from .store import Object, Store, now

Body = Any

_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True)
class Target:
    """The meaning of a request's path."""

    kind: Kind
    namespace: str
    name: str
    subresource: str


def target(store: Store, path: str) -> Target:
    """Parse a request's path. Raises :class:`LookupError` for an unknown path."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 2 and parts[0] == "api":
        group, (version, *rest) = "", parts[1:]
    elif len(parts) >= 3 and parts[0] == "apis":
        group, version, *rest = parts[1:]
    else:
        raise LookupError(path)
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        raise LookupError(path)
    plural, name, subresource = [*rest, "", ""][:3]
    kind = store.kinds.get((group, plural))
    if kind is None or kind.version != version or (namespace and not kind.namespaced):
        raise LookupError(path)
    known = {*kind.subresources, *(("token",) if plural == "serviceaccounts" else ())}
    if subresource and subresource not in known:
        raise LookupError(path)
    return Target(kind, namespace, name, subresource)


def verb(method: str, at: Target, watch: bool) -> str:
    """Return the RBAC verb of a request."""
    if method == "GET":
        return "get" if at.name else "watch" if watch else "list"
    if method == "DELETE" and not at.name:
        return "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]


class Requests:
    """Executes requests other than watches."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._access = access
        #: Paged lists by continue token: the version, and the remaining objects.
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    def answer(
        self, method: str, at: Target, query: dict[str, str], body: Body, content_type: str
    ) -> tuple[int, Object]:
        """Return the status and the body of the answer to a request other than a watch."""
        if method == "GET" and not at.name:
            return 200, self._list(at, query)
        dry = query.get("dryRun", "")
        if dry not in ("", "All"):
            wrong = f'dryRun: Unsupported value: "{dry}": supported values: "All"'
            raise invalid("PatchOptions", "meta.k8s.io", at.name, [wrong])
        with self._store.dry(dry == "All"):
            return self._changed(method, at, query, body, content_type)

    def _changed(
        self, method: str, at: Target, query: dict[str, str], body: Body, content_type: str
    ) -> tuple[int, Object]:
        strict = query.get("fieldValidation") == "Strict"
        if method == "POST":
            if strict and not at.subresource:
                _check_fields(at.kind, body)
            return 201, self._create(at, body, query.get("fieldManager", ""))
        if not at.name and method == "DELETE":
            return 200, self._delete_all(at, query, body)
        if not at.name:
            raise Refusal(405, "the server does not allow this method on the requested resource")
        if at.subresource == "scale":
            return 200, self._scale(method, at, body, content_type)
        if content_type == APPLY and method == "PATCH" and not at.subresource:
            return self._apply(at, query, body, strict=strict)
        if method == "GET":
            return 200, self._store.get(at.kind, at.namespace, at.name)
        if method == "DELETE":
            return 200, self._delete(at, query, body)
        part = "status" if at.subresource == "status" else "spec"
        with self._store.changed:
            if method == "PATCH":
                body = self._patched(at, body, content_type)
            elif not isinstance(body, dict):
                raise Refusal(400, "the object provided is unrecognized")
            elif body.get("metadata", {}).get("name") != at.name:
                raise Refusal(400, "the name of the object does not match the name on the URL")
            if strict:
                _check_fields(at.kind, body)
            return 200, self._store.write(at.kind, at.namespace, body, part=part)

    def _list(self, at: Target, query: dict[str, str]) -> Object:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        limit = int(query.get("limit") or 0)
        with self._store.changed:
            if query.get("continue"):
                version, found = self._page(query["continue"])
            else:
                version = self._store.version
                found = [
                    each
                    for each in self._store.all(at.kind, at.namespace)
                    if selected(each, labels, fields, at.kind.fields)
                ]
            metadata: Object = {"resourceVersion": str(version)}
            if limit and len(found) > limit:
                metadata["continue"] = token = uuid.uuid4().hex
                self._pages[token] = version, found[limit:]
                if not labels and not fields:
                    metadata["remainingItemCount"] = len(found) - limit
            return {
                "apiVersion": at.kind.api_version,
                "kind": f"{at.kind.kind}List",
                "metadata": metadata,
                "items": found[:limit] if limit else found,
            }

    def _page(self, token: str) -> tuple[int, list[Object]]:
        """Return the rest of a list as of its first page."""
        if token not in self._pages:
            raise Refusal(400, "continue key is not valid: invalid continue token")
        version, found = self._pages[token]
        if version < self._store.forgotten:
            raise Refusal(410, "The provided continue parameter is too old")
        return version, found

    def _create(self, at: Target, body: Body, manager: str = "") -> Object:
        if not isinstance(body, dict):
            raise Refusal(400, "the object provided is unrecognized")
        if at.subresource == "token":
            self._store.get(at.kind, at.namespace, at.name)
            token = self._access.token(f"system:serviceaccount:{at.namespace}:{at.name}")
            return {**body, "status": {"token": token, "expirationTimestamp": now()}}
        if at.subresource == "binding":
            with self._store.changed:
                pod = self._store.get(at.kind, at.namespace, at.name)
                pod["spec"]["nodeName"] = body["target"]["name"]
                self._store.write(at.kind, at.namespace, pod)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if at.name:
            raise Refusal(405, "the server does not allow this method on the requested resource")
        if isinstance(body.get("metadata"), dict):
            body["metadata"].pop("managedFields", None)
            if manager:
                body["metadata"]["managedFields"] = owned_by(manager, body)
        return self._store.create(at.kind, at.namespace, body)

    def _delete_all(self, at: Target, query: dict[str, str], body: Body) -> Object:
        """Delete the objects that a selector matches, one by one."""
        found = self._list(at, {**query, "limit": ""})
        for each in found["items"]:
            one = Target(at.kind, at.namespace, each["metadata"]["name"], "")
            self._delete(one, query, body)
        return found

    def _delete(self, at: Target, query: dict[str, str], body: Body) -> Object:
        wanted = body.get("preconditions") or {} if isinstance(body, dict) else {}
        with self._store.changed:
            metadata = self._store.get(at.kind, at.namespace, at.name)["metadata"]
            for key, value in wanted.items():
                if metadata.get(key) != value:
                    why = f"Precondition failed: {key} in precondition: {value}"
                    raise conflict(at.kind.plural, at.kind.group, at.name, why)
            said = body.get("propagationPolicy") if isinstance(body, dict) else None
            if (said or query.get("propagationPolicy")) == "Orphan":
                self._store.orphan(metadata["uid"])
            seconds = body.get("gracePeriodSeconds") if isinstance(body, dict) else None
            seconds = query.get("gracePeriodSeconds", seconds)
            if at.kind.plural == "pods" and seconds is not None and int(seconds) == 0:
                self._store.delete_now(at.kind, at.namespace, at.name)
                found: Object = {"metadata": {}}
            elif (said or query.get("propagationPolicy")) == "Foreground":
                found = self._store.delete_foreground(at.kind, at.namespace, at.name)
            else:
                found = self._store.delete(at.kind, at.namespace, at.name)
        if "deletionTimestamp" in found["metadata"]:
            return found
        details = {"name": at.name, "kind": at.kind.plural, "uid": metadata["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}

    def _apply(
        self, at: Target, query: dict[str, str], given: Body, *, strict: bool
    ) -> tuple[int, Object]:
        manager, force = query.get("fieldManager", ""), query.get("force") == "true"
        try:
            old: Object | None = self._store.get(at.kind, at.namespace, at.name)
        except Refusal:
            old = None
        start = old or {"metadata": {"name": at.name}}
        found = applied(start, given, manager, force=force)
        if strict:
            _check_fields(at.kind, found)
        if old is None:
            return 201, self._store.create(at.kind, at.namespace, found)
        return 200, self._store.write(at.kind, at.namespace, found)

    def _patched(self, at: Target, patch: Body, content_type: str) -> Object:
        old = self._store.get(at.kind, at.namespace, at.name)
        found = patches.patched(old, patch, content_type, custom=at.kind.custom)
        if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
            raise Refusal(422, "the patched object has no metadata")
        if found["metadata"].get("name") != at.name:
            raise Refusal(422, "metadata.name: Invalid value: field is immutable")
        return found

    # -- the scale subresource ---------------------------------------------------------------------

    def _scale(self, method: str, at: Target, body: Body, content_type: str) -> Object:
        """Read or change the object's size as the replicas of a ``Scale``."""
        paths = at.kind.subresources["scale"]
        with self._store.changed:
            found = self._store.get(at.kind, at.namespace, at.name)
            scale = _as_scale(found, paths)
            if method == "GET":
                return scale
            if method == "DELETE":
                raise Refusal(
                    405, "the server does not allow this method on the requested resource"
                )
            if method == "PATCH":
                body = patches.patched(scale, body, content_type, custom=True)
            if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
                raise Refusal(400, "the object provided is no Scale")
            replicas = (body.get("spec") or {}).get("replicas", 0)
            if isinstance(replicas, bool) or not isinstance(replicas, int):
                raise Refusal(400, "Scale in version v1 cannot be handled: replicas is no number")
            if not -(2**31) <= replicas < 2**31:
                raise Refusal(
                    400, "Scale in version v1 cannot be handled: replicas overflows int32"
                )
            if replicas < 0:
                why = (
                    f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"
                )
                raise invalid("Scale", "autoscaling", at.name, [why])
            wanted = copy.deepcopy(found)
            for key in ("resourceVersion", "uid"):
                if body.get("metadata", {}).get(key):
                    wanted["metadata"][key] = body["metadata"][key]
            _set(wanted, paths["specReplicasPath"], replicas)
            return _as_scale(self._store.write(at.kind, at.namespace, wanted), paths)


def _check_fields(kind: Kind, body: Body) -> None:
    """Raise an error for unknown fields, which would otherwise be dropped (strict validation)."""
    if kind.schema is None or not isinstance(body, dict):
        return
    own = {**kind.schema, "properties": {**kind.schema.get("properties", {}), "metadata": _ANY}}
    wrong = schema.unknown(body, own)
    if wrong:
        said = ", ".join(f'unknown field "{each}"' for each in wrong)
        raise Refusal(
            400,
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {said}",
        )


def _as_scale(found: Object, paths: dict[str, str]) -> Object:
    keys = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status = {"replicas": _at(found, paths["statusReplicasPath"]) or 0}
    selector = _at(found, paths.get("labelSelectorPath", ""))
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: found["metadata"][key] for key in keys if key in found["metadata"]},
        "spec": {"replicas": _at(found, paths["specReplicasPath"])},
        "status": status,
    }


def _at(found: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _set(found: Object, path: str, value: object) -> None:
    *way, last = filter(None, path.split("."))
    for key in way:
        found = found.setdefault(key, {})
    found[last] = value
