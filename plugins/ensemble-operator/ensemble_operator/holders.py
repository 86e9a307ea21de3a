"""Holders of tokens: who speaks with an Ensemble's service, and in which Secret each has its token.

``wanted`` says, without making anything, whether a Secret is missing or is not as it has to be;
``keys`` makes what is.
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
    "RENEW",
    "VIEWER",
    "Holder",
    "Secrets",
    "awaited",
    "holders",
    "known",
    "lines_of",
    "renew_at",
    "secret_names",
    "value",
    "wanted",
]

Secrets = Mapping[str, "Object | None"]

#: When a certificate is to be renewed, in seconds since the epoch.
RENEW = f"{GROUP}/renew"
FILES = ("ca.crt", "ca.key", "server.crt", "server.key")
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
    about = (holder.role, holder.name)
    return bool(text) and any(
        str(line.get("id")) == text[9:17]
        and about == (line.get("role"), line.get("member") or line.get("namespace"))
        for line in lines
    )


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
    return len(lines) != len(everybody) or not all(
        known(lines, each, value(secrets.get(each.secret), each.key))
        and value(secrets.get(each.secret), "ca.crt") == authority
        for each in everybody
    )


def renew_at(secret: Object | None) -> float:
    """When its certificate is to be renewed; 0 where that is not known."""
    noted = ((secret or {}).get("metadata") or {}).get("annotations") or {}
    try:
        return float(noted.get(RENEW, 0))
    except ValueError:
        return 0.0
