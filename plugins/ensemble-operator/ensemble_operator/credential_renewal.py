"""Tokens and certificates of an Ensemble: who has one, in which Secret, and when it is renewed."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ensemble_operator.crd_schema import GROUP
from ensemble_operator.member_objects import RUNNER, token_secret
from ensemble_operator.object_names import Object, is_owned, member_object
from ensemble_operator.resource import Ensemble
from ensemble_operator.service_objects import tls_secret, tokens_secret

Secrets = Mapping[str, "Object | None"]

#: Annotation with the time of a certificate's renewal, in seconds since the epoch.
RENEW = f"{GROUP}/renew"
FILES = ("ca.crt", "ca.key", "server.crt", "server.key")
#: Suffixes of further keys in a Secret with a token: the next token, until the service certainly
#: knows it, and the id of the previous token, which stays valid until it expires.
NEXT, LAST = ".next", ".last"
#: Owner of the operator's token.
VIEWER = "viewer"


@dataclass(frozen=True)
class Holder:
    """A client of the service, and the Secret that contains its token."""

    role: Literal["member", "controller", "viewer"]
    name: str  #: at the service
    secret: str  #: Secret that contains the token, under ``key``
    key: str = "token"


def holders(ensemble: Ensemble) -> list[Holder]:
    """Return all holders, the operator first."""
    space = ensemble.namespace
    found = [Holder("viewer", space, tokens_secret(ensemble), VIEWER)]
    for member in ensemble.members:
        name = f"{space}/{member_object(ensemble, member.name)}"
        found.append(Holder("member", name, token_secret(ensemble, member.name)))
    if ensemble.outside:
        found.append(Holder("controller", space, token_secret(ensemble, RUNNER)))
    return found


def secret_names(ensemble: Ensemble) -> list[str]:
    """Return the names of an Ensemble's Secrets."""
    names = [tls_secret(ensemble), *(each.secret for each in holders(ensemble))]
    return list(dict.fromkeys(names))


def needs_user(ensemble: Ensemble, name: str, secret: Object | None) -> bool:
    """Return whether only the user can fix a Secret.

    That is the case if a foreign Secret is in the way, or if the user's own Secret is missing.
    """
    if name == ensemble.sidecar.tls_secret:
        return secret is None
    return secret is not None and not is_owned(ensemble, secret)


def value(secret: Object | None, key: str) -> str:
    """Return a value of a Secret; empty if missing."""
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(key) or "").decode()
    except ValueError:
        return ""


def token_lines(secrets: Secrets, ensemble: Ensemble) -> list[dict[str, Any]]:
    """Return the tokens that the service knows."""
    try:
        found = json.loads(value(secrets.get(tokens_secret(ensemble)), "tokens.json"))["tokens"]
        return [dict(each) for each in found]
    except (ValueError, KeyError, TypeError):
        return []


def is_recorded(lines: list[dict[str, Any]], holder: Holder, text: str) -> bool:
    """Return whether a token is recorded for this holder."""
    return token_line(lines, holder, text) is not None


def token_line(lines: list[dict[str, Any]], holder: Holder, text: str) -> dict[str, Any] | None:
    """Return the line of a holder's token in the file of tokens, or ``None``."""
    found = (line for line in lines if str(line.get("id")) == text[9:17] and _matches(line, holder))
    return next(found, None) if text else None


def _matches(line: dict[str, Any], holder: Holder) -> bool:
    who = (line.get("role"), line.get("member") or line.get("namespace"))
    return (holder.role, holder.name) == who


def belongs_to(line: dict[str, Any], holder: Holder, secrets: Secrets) -> bool:
    """Return whether a line of ``tokens.json`` is the holder's current, next or previous token."""
    secret, key = secrets.get(holder.secret), holder.key
    ids = [value(secret, key)[9:17], value(secret, key + NEXT)[9:17], value(secret, key + LAST)]
    return _matches(line, holder) and str(line.get("id")) in ids


#: Lifetime of tokens and certificates, in days. They are renewed at two thirds of it.
DAYS = 365
#: Seconds until a changed Secret is visible in all pods that mount it.
_SPREAD = 600.0


def renewal(
    lines: list[dict[str, Any]], holder: Holder, secrets: Secrets, now: float
) -> Literal["", "make", "use"]:
    """Return the step of a token's renewal that is due: ``make`` a new token, or ``use`` it."""
    # The new token is used once the service has its hash.
    secret = secrets.get(holder.secret)
    coming = token_line(lines, holder, value(secret, holder.key + NEXT))
    if coming is not None:
        return "use" if now >= coming.get("created", 0.0) + _SPREAD else ""
    own = token_line(lines, holder, value(secret, holder.key)) or {}
    created, expires = own.get("created", 0.0), own.get("expires", 0.0)
    return "make" if expires and now >= renews_at(created, expires) else ""


def renews_at(created: float, expires: float) -> float:
    """Return when a token or certificate of this lifetime is renewed."""
    return created + (expires - created) * 2 / 3


def needs_secrets(ensemble: Ensemble, secrets: Secrets, now: float) -> bool:
    """Return whether a Secret is missing, wrong, or due for renewal."""
    tls = secrets.get(tls_secret(ensemble))
    if not ensemble.sidecar.tls_secret and (
        not all(value(tls, key) for key in FILES) or now >= renewal_time(tls)
    ):
        return True
    lines = token_lines(secrets, ensemble)
    everybody = holders(ensemble)
    authority = value(tls, "ca.crt")
    return not all(
        any(belongs_to(line, each, secrets) for each in everybody) for line in lines
    ) or not all(
        is_recorded(lines, each, value(secrets.get(each.secret), each.key))
        and value(secrets.get(each.secret), "ca.crt") == authority
        and not renewal(lines, each, secrets, now)
        for each in everybody
    )


def renewal_time(secret: Object | None) -> float:
    """Return when a Secret's certificate must be renewed; 0 if unknown."""
    noted = ((secret or {}).get("metadata") or {}).get("annotations") or {}
    try:
        return float(noted.get(RENEW, 0))
    except ValueError:
        return 0.0
