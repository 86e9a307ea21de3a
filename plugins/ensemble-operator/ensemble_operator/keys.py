"""Keys of an Ensemble: certificates of its service, and a token for each who speaks with it, made
with the public functions of ``ensemble_service``.

What was begun is taken up where it was left: a token that a member has already is kept, and its
hash is written down again where that was lost.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .holders import FILES, RENEW, VIEWER, Secrets, holders, known, lines_of, renew_at, value
from .names import Object, child
from .resource import Ensemble
from .service_objects import address, tls_secret, tokens_secret

__all__ = ["made"]

_DAYS = 365


def made(ensemble: Ensemble, secrets: Secrets, now: float) -> list[Object]:
    """The Secrets that are to be written, the service's first."""
    found: list[Object] = []
    tls = secrets.get(tls_secret(ensemble))
    with tempfile.TemporaryDirectory(prefix="ensemble-keys-") as folder:
        if not ensemble.sidecar.tls_secret:
            tls = _certificates(ensemble, tls, Path(folder, "tls"), now)
            found.append(tls)
        authority = value(tls, "ca.crt")
        texts, document = _tokens(ensemble, secrets, Path(folder, "tokens.json"))
    about = {"tokens.json": document, VIEWER: texts[0], "ca.crt": authority}
    found.append(_secret(ensemble, tokens_secret(ensemble), about))
    for holder, text in list(zip(holders(ensemble), texts, strict=True))[1:]:
        found.append(_secret(ensemble, holder.secret, {"token": text, "ca.crt": authority}))
    return [each for each in found if not _same(each, secrets.get(each["metadata"]["name"]))]


def _same(new: Object, old: Object | None) -> bool:
    return old is not None and all(
        (old.get("data") or {}).get(k) == v for k, v in new["data"].items()
    )


def _certificates(ensemble: Ensemble, old: Object | None, folder: Path, now: float) -> Object:
    """The certificates: those that there are, renewed from their authority, or new ones."""
    from ensemble_service import init_certificates

    there = {name: value(old, name) for name in FILES}
    if old is not None and all(there.values()) and now < renew_at(old):
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
    init_certificates(folder, hosts, days=_DAYS, renew=renew)
    data = {name: (folder / name).read_text() for name in FILES}
    found = _secret(ensemble, tls_secret(ensemble), data)
    found["metadata"]["annotations"][RENEW] = str(int(now + _DAYS * 86400 * 2 / 3))
    return found


def _tokens(ensemble: Ensemble, secrets: Secrets, path: Path) -> tuple[list[str], str]:
    """The token of each holder, and the file that the service knows them by."""
    from ensemble_service import TokenFile

    lines = lines_of(secrets, ensemble)
    everybody = holders(ensemble)
    texts = [value(secrets.get(each.secret), each.key) for each in everybody]
    kept = [
        line
        for line in lines
        if any(known([line], holder, text) for holder, text in zip(everybody, texts, strict=True))
    ]
    if len(kept) == len(lines) == len(everybody):
        return texts, value(secrets.get(tokens_secret(ensemble)), "tokens.json")
    path.write_text(json.dumps({"version": 1, "tokens": kept}))
    path.chmod(0o600)
    file = TokenFile(path)
    for index, holder in enumerate(everybody):
        if not known(kept, holder, texts[index]):
            texts[index], _ = file.add(holder.role, holder.name, text=texts[index] or None)
    return texts, path.read_text()


def _secret(ensemble: Ensemble, name: str, data: Mapping[str, str]) -> Object:
    written = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return child(ensemble, "Secret", name, "keys", {"type": "Opaque", "data": written})
