"""Issues the certificates of an Ensemble's service, and the tokens of its clients."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ensemble_operator.credential_renewal import (
    DAYS,
    FILES,
    LAST,
    NEXT,
    RENEW,
    Holder,
    Secrets,
    belongs_to,
    holders,
    is_recorded,
    renewal,
    renewal_time,
    renews_at,
    token_lines,
    value,
)
from ensemble_operator.object_names import Object, child
from ensemble_operator.resource import Ensemble
from ensemble_operator.service_objects import address, tls_secret, tokens_secret


def make_secrets(ensemble: Ensemble, secrets: Secrets, now: float) -> list[Object]:
    """Return the new and changed Secrets, the service's first.

    The service must know a token before its client has it. ``now`` is in seconds since the epoch.
    """
    found: list[Object] = []
    tls = secrets.get(tls_secret(ensemble))
    with tempfile.TemporaryDirectory(prefix="ensemble-keys-") as folder:
        if not ensemble.sidecar.tls_secret:
            tls = _certificates(ensemble, tls, Path(folder, "tls"), now)
            found.append(tls)
        authority = value(tls, "ca.crt")
        document, tokens = _tokens(ensemble, secrets, Path(folder, "tokens.json"), now)
    for holder, data in tokens:
        more = {"tokens.json": document} if holder.secret == tokens_secret(ensemble) else {}
        found.append(_secret(ensemble, holder.secret, {**more, **data, "ca.crt": authority}))
    return [
        each for each in found if not _has_same_data(each, secrets.get(each["metadata"]["name"]))
    ]


def _has_same_data(new: Object, old: Object | None) -> bool:
    return old is not None and all(
        (old.get("data") or {}).get(k) == v for k, v in new["data"].items()
    )


def _certificates(ensemble: Ensemble, old: Object | None, folder: Path, now: float) -> Object:
    """Return the certificates: existing ones, renewed ones, or new ones."""
    from ensemble_service import init_certificates

    there = {name: value(old, name) for name in FILES}
    if old is not None and all(there.values()) and now < renewal_time(old):
        return old
    folder.mkdir(mode=0o700)
    renew = bool(there["ca.crt"] and there["ca.key"])
    for name, text in there.items():
        if renew and text:
            path = folder / name
            path.write_text(text)
            path.chmod(0o600)
    short = address(ensemble).rsplit(".", 2)[0]
    hosts = [address(ensemble), short, f"{address(ensemble)}.cluster.local"]
    init_certificates(folder, hosts, days=DAYS, renew=renew)
    data = {name: (folder / name).read_text() for name in FILES}
    found = _secret(ensemble, tls_secret(ensemble), data)
    found["metadata"]["annotations"][RENEW] = str(int(renews_at(now, now + DAYS * 86400)))
    return found


def _tokens(
    ensemble: Ensemble, secrets: Secrets, path: Path, now: float
) -> tuple[str, list[tuple[Holder, dict[str, str]]]]:
    """Return the service's token file, and the data of each holder's Secret."""
    from ensemble_service import TokenFile

    lines = token_lines(secrets, ensemble)
    everybody = holders(ensemble)
    kept = [line for line in lines if any(belongs_to(line, each, secrets) for each in everybody)]
    path.write_text(json.dumps({"version": 1, "tokens": kept}))
    path.chmod(0o600)
    file = TokenFile(path, clock=lambda: now)
    found = []
    for holder in everybody:
        keys = (holder.key, holder.key + NEXT, holder.key + LAST)
        text, coming, last = (value(secrets.get(holder.secret), key) for key in keys)
        # The service gets the hash of a new token before the client gets the token. So the service
        # always knows the client's token, even if the operator is interrupted.
        step = renewal(lines, holder, secrets, now)
        if step == "use":
            text, coming, last = coming, "", text[9:17]
        elif step == "make":
            coming, _ = file.add(holder.role, holder.name, expires=now + DAYS * 86400)
        if not is_recorded(kept, holder, text):
            given = text or None
            until = now + DAYS * 86400
            text, _ = file.add(holder.role, holder.name, text=given, expires=until)
        data = dict(zip(keys, (text, coming, last), strict=True))
        there = (secrets.get(holder.secret) or {}).get("data") or {}
        found.append((holder, {key: each for key, each in data.items() if each or key in there}))
    same = kept == lines == json.loads(path.read_text())["tokens"]
    before = value(secrets.get(tokens_secret(ensemble)), "tokens.json")
    return before if before and same else path.read_text(), found


def _secret(ensemble: Ensemble, name: str, data: Mapping[str, str]) -> Object:
    written = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return child(ensemble, "Secret", name, "keys", {"type": "Opaque", "data": written})
