"""Access control of the stand-in: authentication by bearer tokens, authorization by Roles and
RoleBindings (RBAC).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from .kinds import RBAC, Kind
from .refusals import Refusal, named
from .store import Store

#: The cluster administrator, who may do everything.
ADMIN = "system:admin"


class Access:
    """Tokens, and the Roles and RoleBindings of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._users: dict[str, str] = {}
        #: Every request that was allowed: (user, verb, resource/subresource, namespace).
        self.allowed: list[tuple[str, str, str, str]] = []

    def token(self, user: str) -> str:
        """Return a new token for a user, such as ``system:serviceaccount:NAMESPACE:NAME``."""
        token = secrets.token_urlsafe(16)
        with self._lock:
            self._users[token] = user
        return token

    def revoke(self, token: str) -> None:
        with self._lock:
            self._users.pop(token, None)

    def who(self, authorization: str | None) -> str:
        scheme, _, token = (authorization or "").partition(" ")
        with self._lock:
            user = self._users.get(token.strip())
        if scheme.lower() != "bearer" or user is None:
            raise Refusal(401, "Unauthorized")
        return user

    def check(
        self, user: str, verb: str, kind: Kind, namespace: str, name: str, subresource: str
    ) -> None:
        """Raise the API server's 403 unless a role allows it."""
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        if user != ADMIN and not any(
            _allows(rule, verb, kind.group, resource, name) for rule in self._rules(user, namespace)
        ):
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise Refusal(
                403,
                f'{named(resource, kind.group, name)} is forbidden: User "{user}" cannot {verb} '
                f'resource "{resource}" in API group "{kind.group}" {where}',
            )
        with self._lock:
            self.allowed.append((user, verb, resource, namespace))

    def _rules(self, user: str, namespace: str) -> Iterable[Mapping[str, Any]]:
        clusterwide = self._named("clusterroles", "")
        yield from self._bound(user, "", {"ClusterRole": clusterwide}, "clusterrolebindings")
        if namespace:
            known = {"Role": self._named("roles", namespace), "ClusterRole": clusterwide}
            yield from self._bound(user, namespace, known, "rolebindings")

    def _named(self, plural: str, namespace: str) -> dict[str, Mapping[str, Any]]:
        found = self._store.all(self._store.kinds[(RBAC, plural)], namespace)
        return {each["metadata"]["name"]: each for each in found}

    def _bound(
        self,
        user: str,
        namespace: str,
        known: Mapping[str, Mapping[str, Mapping[str, Any]]],
        plural: str,
    ) -> Iterable[Mapping[str, Any]]:
        for binding in self._store.all(self._store.kinds[(RBAC, plural)], namespace):
            for subject in binding.get("subjects", []):
                where = subject.get("namespace", namespace)
                account = f"system:serviceaccount:{where}:{subject['name']}"
                if user == (account if subject["kind"] == "ServiceAccount" else subject["name"]):
                    role = binding["roleRef"]
                    found = known.get(role.get("kind", "Role"), {}).get(role["name"], {})
                    yield from found.get("rules", [])


def _allows(rule: Mapping[str, Any], verb: str, group: str, resource: str, name: str) -> bool:
    def among(values: list[str], value: str) -> bool:
        return "*" in values or value in values

    names = rule.get("resourceNames", [])
    return (
        among(rule.get("verbs", []), verb)
        and among(rule.get("apiGroups", []), group)
        and among(rule.get("resources", []), resource)
        and (not names or name in names)
    )
