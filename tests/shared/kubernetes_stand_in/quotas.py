"""Quotas of the stand-in: on the number of objects, and on what pods request.

Like the API server, it charges a quota at each creation. Like the quota controller, it notices only
after a moment that an object was deleted or that a pod has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from .kinds import Kind
from .quantities import amount, canonical
from .refusals import Refusal, named

if TYPE_CHECKING:
    from .store import Object, Store

__all__ = ["Quotas"]

#: Seconds until the quota controller counts.
_LATE = 0.3
#: Kinds with a name without ``count/``.
_SHORT = ("services", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas")
_OVER = ("Succeeded", "Failed")


class Quotas:
    """The quotas of a store. All methods are called with its lock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counting: set[str] = set()
        #: Namespaces that have or had a quota.
        self._limited: set[str] = set()

    def charge(self, kind: Kind, namespace: str, found: Object, *, dry: bool) -> None:
        """Charge the quotas of the namespace for a new object. Raises 403 if one is used up."""
        if namespace not in self._limited:
            return
        what = named(kind.plural, kind.group, found["metadata"].get("name", ""))
        charged: list[tuple[Object, dict[str, str]]] = []
        for quota in self._store.all(self._kind, namespace):
            name, status = quota["metadata"]["name"], quota.get("status", {})
            need = _usage(kind, found, quota["spec"]["hard"])
            lacking = sorted(resource for resource, each in need.items() if each is None)
            if lacking:
                wanted = ",".join(lacking)
                said = f"failed quota: {name}: must specify {wanted} for: job"
                raise Refusal(403, f"{what} is forbidden: {said}")
            if need and "hard" not in status:
                wanted = ", ".join(sorted(need))
                said = f"status unknown for quota: {name}, resources: {wanted}"
                raise Refusal(403, f"{what} is forbidden: {said}")
            requested = {resource: each for resource, each in need.items() if each}
            if not requested:
                continue
            used = {resource: amount(status["used"].get(resource, "0")) for resource in requested}
            total = {resource: used[resource] + each for resource, each in requested.items()}
            over = [
                r for r in sorted(requested) if total[r] > amount(str(status["hard"].get(r, "0")))
            ]
            if over:
                shown = "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(
                    name, *(_shown(over, each) for each in (requested, used, status["hard"]))
                )
                raise Refusal(403, f"{what} is forbidden: {shown}")
            charged.append((quota, {resource: _text(each) for resource, each in total.items()}))
        for quota, used_now in charged if not dry else ():
            self._write(quota, {**quota["status"], "used": {**quota["status"]["used"], **used_now}})

    def changed(self, kind: Kind, namespace: str, what: str) -> None:
        """Note a change of an object, and count after a moment if it may free quota."""
        if kind.plural == "resourcequotas":
            self._limited.add(namespace)
        elif what != "DELETED" and kind.plural != "pods":
            return
        if namespace in self._counting or namespace not in self._limited:
            return
        self._counting.add(namespace)
        counting = threading.Timer(_LATE, self._count, (namespace,))
        counting.daemon = True
        counting.start()

    def _count(self, namespace: str) -> None:
        with self._store.changed:
            self._counting.discard(namespace)
            for quota in self._store.all(self._kind, namespace):
                hard = quota["spec"]["hard"]
                used = dict.fromkeys(hard, Decimal(0))
                for kind in list(self._store.kinds.values()) if used else ():
                    for found in self._store.all(kind, namespace):
                        for resource, each in _usage(kind, found, hard).items():
                            used[resource] += each or 0
                counted = {resource: _text(each) for resource, each in used.items()}
                self._write(quota, {"hard": hard, "used": counted})

    def _write(self, quota: Object, status: Object) -> None:
        if quota.get("status") != status:
            with suppress(Refusal):
                self._store.set_status(self._kind, quota, status)

    @property
    def _kind(self) -> Kind:
        return self._store.kinds[("", "resourcequotas")]


def _usage(kind: Kind, found: Object, hard: Mapping[str, Any]) -> dict[str, Decimal | None]:
    """Return how much of each resource of a quota an object uses.

    The value is ``None`` if a container does not say how much it needs.
    """
    counted = f"count/{kind.plural}.{kind.group}" if kind.group else f"count/{kind.plural}"
    usage: dict[str, Decimal | None] = {}
    live = kind.plural == "pods" and found.get("status", {}).get("phase") not in _OVER
    for resource in hard:
        if resource == counted or (resource == kind.plural and (live or kind.plural in _SHORT)):
            usage[resource] = Decimal(1)
        elif live and resource.rpartition(".")[2] in ("cpu", "memory"):
            part, _, name = resource.rpartition(".")
            needs = [
                (each.get("resources") or {}).get(part or "requests", {}).get(name)
                for each in found["spec"].get("containers", ())
            ]
            missing = None in needs
            usage[resource] = None if missing else sum(map(amount, map(str, needs)), Decimal(0))
    return usage


def _text(value: Decimal) -> str:
    return canonical(str(value))


def _shown(resources: list[str], values: Mapping[str, Any]) -> str:
    texts = {r: _text(v) if isinstance(v, Decimal) else str(v) for r, v in values.items()}
    return ",".join(f"{resource}={texts[resource]}" for resource in resources)
