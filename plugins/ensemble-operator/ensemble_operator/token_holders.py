"""Holders of tokens: who speaks with an Ensemble's service, and in which Secret each has its token.

``wanted`` says, without making anything, whether a Secret is missing or is not as it has to be;
``credentials`` makes what is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .member_objects import RUNNER, token_secret
from .names import Object, is_mine, member_object
from .resource import Ensemble
from .schema import GROUP
from .service_objects import tls_secret, tokens_secret

__all__ = [
    "FILES",
    "LAST",
    "NEXT",
    "RENEW",
    "VIEWER",
    "Holder",
    "Secrets",
    "awaited",
    "holders",
    "known",
    "lines_of",
    "of_holder",
    "renew_at",
    "renewal",
    "secret_names",
    "value",
    "wanted",
]

Secrets = Mapping[str, "Object | None"]

#: When a certificate is to be renewed, in seconds since the epoch.
RENEW = f"{GROUP}/renew"
FILES = ("ca.crt", "ca.key", "server.crt", "server.key")
#: What a Secret has beside a token: the one that is to take its place, once the service knows it
#: for certain, and the id of the one whose place it took, which counts to its end.
NEXT, LAST = ".next", ".last"
#: Seconds in which a Secret that was written is in all pods that have it as files.
_SPREAD = 600.0
#: Whose the operator's own token is.
VIEWER = "viewer"


@dataclass(frozen=True)
class Holder:
    """The holder of a token: its role and name with the service, and the Secret and key that has
    it."""

    role: Literal["member", "controller", "viewer"]
    name: str
    secret: str
    key: str = "token"


def holders(ensemble: Ensemble) -> list[Holder]:
    """Everybody who has a token, the operator first."""
    space = ensemble.namespace
    found = [Holder("viewer", space, tokens_secret(ensemble), VIEWER)]
    for member in ensemble.members:
        name = f"{space}/{member_object(ensemble, member.name)}"
        found.append(Holder("member", name, token_secret(ensemble, member.name)))
    if ensemble.outside:
        found.append(Holder("controller", space, token_secret(ensemble, RUNNER)))
    return found


def secret_names(ensemble: Ensemble) -> list[str]:
    """The Secrets of an Ensemble, as many as it needs."""
    names = [tls_secret(ensemble), *(each.secret for each in holders(ensemble))]
    return list(dict.fromkeys(names))


def awaited(ensemble: Ensemble, name: str, secret: Object | None) -> bool:
    """True if only others can mend a Secret: it is in the way, or it is the user's and is
    missing."""
    if name == ensemble.sidecar.tls_secret:
        return secret is None
    return secret is not None and not is_mine(ensemble, secret)


def value(secret: Object | None, key: str) -> str:
    """A value of a Secret; empty where there is none."""
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(key) or "").decode()
    except ValueError:
        return ""


def lines_of(secrets: Secrets, ensemble: Ensemble) -> list[dict[str, Any]]:
    """The tokens that the service knows."""
    try:
        found = json.loads(value(secrets.get(tokens_secret(ensemble)), "tokens.json"))["tokens"]
        return [dict(each) for each in found]
    except (ValueError, KeyError, TypeError):
        return []


def known(lines: list[dict[str, Any]], holder: Holder, text: str) -> bool:
    """True if a token is on record, as its holder's."""
    return _line(lines, holder, text) is not None


def _line(lines: list[dict[str, Any]], holder: Holder, text: str) -> dict[str, Any] | None:
    found = (line for line in lines if str(line.get("id")) == text[9:17] and _is(line, holder))
    return next(found, None) if text else None


def _is(line: dict[str, Any], holder: Holder) -> bool:
    who = (line.get("role"), line.get("member") or line.get("namespace"))
    return (holder.role, holder.name) == who


def of_holder(line: dict[str, Any], holder: Holder, secrets: Secrets) -> bool:
    """True if a line is that of a token that its holder has, is to have or had last."""
    secret, key = secrets.get(holder.secret), holder.key
    ids = [value(secret, key)[9:17], value(secret, key + NEXT)[9:17], value(secret, key + LAST)]
    return _is(line, holder) and str(line.get("id")) in ids


def renewal(
    lines: list[dict[str, Any]], holder: Holder, secrets: Secrets, now: float
) -> Literal["", "make", "use"]:
    """The step by which a token is renewed now: another is made, and made known to the service, at
    two thirds of its time; it is used once the service has it."""
    secret = secrets.get(holder.secret)
    coming = _line(lines, holder, value(secret, holder.key + NEXT))
    if coming is not None:
        return "use" if now >= coming.get("created", 0.0) + _SPREAD else ""
    own = _line(lines, holder, value(secret, holder.key)) or {}
    created, expires = own.get("created", 0.0), own.get("expires", 0.0)
    return "make" if expires and now >= created + (expires - created) * 2 / 3 else ""


def wanted(ensemble: Ensemble, secrets: Secrets, now: float) -> bool:
    """True if a Secret is missing, is not as it has to be, or is to be renewed."""
    tls = secrets.get(tls_secret(ensemble))
    if not ensemble.sidecar.tls_secret and (
        not all(value(tls, key) for key in FILES) or now >= renew_at(tls)
    ):
        return True
    lines = lines_of(secrets, ensemble)
    everybody = holders(ensemble)
    authority = value(tls, "ca.crt")
    return not all(
        any(of_holder(line, each, secrets) for each in everybody) for line in lines
    ) or not all(
        known(lines, each, value(secrets.get(each.secret), each.key))
        and value(secrets.get(each.secret), "ca.crt") == authority
        and not renewal(lines, each, secrets, now)
        for each in everybody
    )


def renew_at(secret: Object | None) -> float:
    """When its certificate is to be renewed; 0 where that is not known."""
    noted = ((secret or {}).get("metadata") or {}).get("annotations") or {}
    try:
        return float(noted.get(RENEW, 0))
    except ValueError:
        return 0.0
