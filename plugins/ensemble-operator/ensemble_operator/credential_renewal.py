"""Decides when the tokens and certificates of an Ensemble are renewed."""

from __future__ import annotations

from typing import Any, Literal

from .object_names import Object
from .resource import Ensemble
from .service_objects import tls_secret
from .token_holders import (
    FILES,
    NEXT,
    RENEW,
    Holder,
    Secrets,
    belongs_to,
    holders,
    is_recorded,
    token_line,
    token_lines,
    value,
)

#: Seconds until a changed Secret is visible in all pods that mount it.
_SPREAD = 600.0


def renewal(
    lines: list[dict[str, Any]], holder: Holder, secrets: Secrets, now: float
) -> Literal["", "make", "use"]:
    """Return the step of a token's renewal that is due: ``make`` a new token, or ``use`` it."""
    # A token is renewed at two thirds of its lifetime. The new token is used once the service has
    # its hash.
    secret = secrets.get(holder.secret)
    coming = token_line(lines, holder, value(secret, holder.key + NEXT))
    if coming is not None:
        return "use" if now >= coming.get("created", 0.0) + _SPREAD else ""
    own = token_line(lines, holder, value(secret, holder.key)) or {}
    created, expires = own.get("created", 0.0), own.get("expires", 0.0)
    return "make" if expires and now >= created + (expires - created) * 2 / 3 else ""


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
