"""TLS of the service: loads its certificate, and reloads a renewed one."""

from __future__ import annotations

import datetime as dt
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

from ensemble_core import EnsembleError, UsageError
from ensemble_service.channel import load_grpc
from ensemble_service.service_log import tell

#: Files of the TLS folder: certificates, and keys that only their owner may read.
CA, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "server.crt", "server.key"
#: Seconds between checks for a renewed certificate.
_GLANCE = 1.0


def has_certificates(folder: Path) -> bool:
    """Return whether the folder has a certificate or its key."""
    # If one of the two is missing, the service must fail rather than use plaintext.
    return (folder / CERTIFICATE).exists() or (folder / KEY).exists()


def days_left(folder: Path) -> float:
    """Return for how many days the certificate is still valid.

    Raises :class:`UsageError` if the files are unusable.
    """
    return _pair(folder, dt.datetime.now(dt.timezone.utc))[2]


def server_credentials(folder: Path, now: dt.datetime | None = None) -> tuple[Any, float]:
    """Return the service's gRPC credentials, and for how many days the certificate is valid.

    New connections use a renewed certificate. Raises :class:`UsageError` if the files are unusable.
    """
    grpc = load_grpc()
    mark = _mark(folder)
    key, chain, left = _pair(folder, now or dt.datetime.now(dt.timezone.utc))
    configuration = grpc.ssl_server_certificate_configuration([(key, chain)])
    renewed = _Renewed(folder, mark)
    return grpc.dynamic_ssl_server_credentials(configuration, renewed.fetch), left


class _Renewed:
    """The certificate in a folder, which gRPC fetches for each connection, on gRPC's threads.

    A new certificate that is unusable is ignored.
    """

    def __init__(self, folder: Path, mark: object) -> None:
        self._folder = folder
        self._used = mark
        self._next = 0.0
        #: Fingerprints of the newest unusable certificate, and of the last one that was reported.
        self._refused: object = None
        self._reported: object = None
        self._lock = threading.Lock()

    def fetch(self) -> Any:
        """Return the new credentials, or ``None`` to keep the current ones."""
        try:
            with self._lock:
                return self._fetch()
        except Exception as error:  # an exception would make gRPC refuse the connection
            tell("fault", "error", why=f"{type(error).__name__}: {error}")
            return None

    def _fetch(self) -> Any:
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _GLANCE
        mark = _mark(self._folder)
        if mark == self._used:
            return None
        try:
            key, chain, left = _pair(self._folder, dt.datetime.now(dt.timezone.utc))
        except EnsembleError as error:
            # Report the problem only at the next check, because a key is written before its
            # certificate.
            if mark == self._refused and mark != self._reported:
                self._reported = mark
                why = f"{error.what}: {error.cause}" if error.cause else error.what
                tell("cannot use the new certificate; keeping the previous one", "error", why=why)
            self._refused = mark
            return None
        self._used = mark
        tell("certificate renewed", days=round(left, 1))
        return load_grpc().ssl_server_certificate_configuration([(key, chain)])


def _mark(folder: Path) -> tuple[tuple[int, ...], ...]:
    """Return a fingerprint that changes with the certificate or key, even behind symbolic links.

    Kubernetes mounts Secrets with symbolic links.
    """
    found: list[tuple[int, ...]] = []
    for name in (KEY, CERTIFICATE):
        try:
            status = os.stat(folder / name)
        except OSError:
            found.append(())
        else:
            found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _pair(folder: Path, now: dt.datetime) -> tuple[bytes, bytes, float]:
    """Return the checked key, certificate chain, and days of validity."""
    x509, _, serialization, _ = cryptography()
    hint = f"ensemble-server init-tls --tls-dir {folder} --renew"
    key_data, data = (
        read_certificate_file(folder / KEY, private=True),
        read_certificate_file(folder / CERTIFICATE),
    )
    try:
        chain = x509.load_pem_x509_certificates(data)
        key = serialization.load_pem_private_key(key_data, None)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"cannot use the certificate in {folder}",
            cause=str(error).splitlines()[0][:300],
            hint=hint,
            code="bad-certificate",
        ) from None
    if key.public_key() != chain[0].public_key():
        raise UsageError(
            f"{folder / KEY} does not belong to {folder / CERTIFICATE}",
            hint=hint,
            code="bad-certificate",
        )
    left = (chain[0].not_valid_after_utc - now).total_seconds() / 86400
    if left <= 0:
        raise UsageError(
            f"the certificate {folder / CERTIFICATE} has expired",
            cause=f"it was valid until {chain[0].not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            hint=hint,
            code="expired-certificate",
        )
    return key_data, data, left


def read_certificate_file(path: Path, *, private: bool = False) -> bytes:
    """Read a certificate, or a key (``private``).

    Raises :class:`UsageError` if the file is unreadable, or if others can change the key.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and mode & stat.S_IROTH:  # keys in mounted Secrets are readable by others
                tell("other users of this machine can read the key", "warning", path=str(path))
            if private and mode & (stat.S_IWOTH | stat.S_IWGRP):
                raise UsageError(
                    f"other users can change the key {path}",
                    hint=f"chmod 600 {path}",
                    code="bad-certificate",
                )
            return file.read()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}",
            cause=error.strerror or str(error),
            hint="create certificates with 'ensemble-server init-tls'",
            code="bad-certificate",
        ) from None


def cryptography() -> tuple[Any, Any, Any, Any]:
    """Return ``x509``, ``hashes``, ``serialization`` and ``ec`` of ``cryptography``."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise UsageError(
            "certificates need the package 'cryptography'",
            cause=str(error),
            hint="pip install 'ensemble-core[service]>=1.0'",
            code="no-cryptography",
        ) from None
    return x509, hashes, serialization, ec
