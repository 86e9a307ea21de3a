"""Certificates of the service: its certificate authority issues and renews them.

A running service reloads a renewed certificate (:func:`server_credentials`).
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, UsageError, private_folder
from ensemble_service.channel import load_grpc
from ensemble_service.service_log import tell
from ensemble_service.tokens import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec


#: Files of the TLS folder: certificates, and keys that only their owner may read.
CA, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "server.crt", "server.key"
#: Seconds between checks for a renewed certificate.
_GLANCE = 1.0
#: Lifetime of the certificate authority, in days.
_CA_DAYS = 3650
#: Certificates are backdated by this much, for clients whose clocks are behind.
_EARLIER = dt.timedelta(minutes=5)
_NAME = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*"
    r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
)


def init(
    folder: Path,
    hosts: Sequence[str] = (),
    *,
    days: int = 365,
    force: bool = False,
    renew: bool = False,
    now: dt.datetime | None = None,
) -> list[str]:
    """Create a certificate authority and a service certificate valid for ``days``.

    Returns the names that the certificate covers: those of this machine and ``hosts``. Existing
    files are replaced only with one of these flags:

    - ``force`` replaces everything. Clients then need the new ``ca.crt``.
    - ``renew`` replaces only the certificate, for the same names. Clients still trust it.
    """
    cryptography()
    now = now or dt.datetime.now(dt.timezone.utc)
    there = [name for name in (CA, CA_KEY, CERTIFICATE, KEY) if (folder / name).exists()]
    if there and not force and not renew:
        raise UsageError(
            f"{folder} already has certificates",
            cause=", ".join(there),
            hint=(
                "use --renew to replace only the service's certificate, or --force to replace "
                "all files; after --force, clients need the new ca.crt"
            ),
            code="certificates-exist",
        )
    names = certificate_names(hosts)
    if renew:
        ca_key, ca = _authority(folder)
        names += [name for name in _names_before(folder / CERTIFICATE) if name not in names]
        if ca.not_valid_after_utc <= now:
            raise UsageError(
                f"the certificate authority in {folder} has expired",
                hint="create a new one with --force; clients then need the new ca.crt",
                code="expired-certificate",
            )
    else:
        ca_key, ca = _new_authority(now, max(_CA_DAYS, days))
    key, certificate = _new_certificate(names, ca_key, ca, now, days)
    try:
        private_folder(folder)
    except OSError as error:
        raise EnsembleError(
            f"cannot create the folder {folder}", cause=error.strerror, code="cannot-write"
        ) from None
    # Write keys first, so that a certificate always has its key.
    if not renew:
        write_private(folder / CA_KEY, _pem_key(ca_key))
        _write_public(folder / CA, _pem(ca))
    write_private(folder / KEY, _pem_key(key))
    _write_public(folder / CERTIFICATE, _pem(certificate))
    return names


def certificate_names(hosts: Sequence[str]) -> list[str]:
    """Return the names and addresses for a certificate: those of this machine and ``hosts``."""
    own = socket.gethostname()
    names = [*hosts, "localhost", "127.0.0.1", "::1", own, socket.getfqdn()]
    found: dict[str, None] = {}
    for name in names:
        bare = name.strip().strip("[]")
        try:
            whole = ipaddress.ip_address(bare)
        except ValueError:
            pass
        else:
            if whole.is_unspecified:
                raise UsageError(
                    f"clients cannot use {name!r} as the service's address",
                    cause="it means all addresses of a machine",
                    hint="pass a host name or an address at which clients can reach this machine",
                    code="bad-host",
                )
            found[str(whole)] = None
            continue
        if _NAME.fullmatch(bare) and len(bare) <= 253 and not bare.rpartition(".")[2].isdigit():
            found[bare.lower()] = None
        elif name in hosts:
            raise UsageError(
                f"{name!r} is not a valid host name or address",
                hint="for example: --host ensemble.default.svc --host 10.0.0.7",
                code="bad-host",
            )
    return list(found)


def _names_before(path: Path) -> list[str]:
    """Return the names in the current certificate, or nothing if it is missing or unreadable."""
    x509, *_ = cryptography()
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in known if isinstance(name, (x509.DNSName, x509.IPAddress))]


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    x509, _, serialization, _ = cryptography()
    key_data, data = (
        read_certificate_file(folder / CA_KEY, private=True),
        read_certificate_file(folder / CA),
    )
    try:
        key = serialization.load_pem_private_key(key_data, None)
        return key, x509.load_pem_x509_certificate(data)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"cannot use the certificate authority in {folder}",
            cause=str(error).splitlines()[0][:300],
            hint="create a new one with --force; clients then need the new ca.crt",
            code="bad-certificate",
        ) from None


def _new_authority(
    now: dt.datetime, days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    x509, hashes, _, ec = cryptography()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Ensemble service authority")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _new_certificate(
    names: Sequence[str],
    ca_key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    now: dt.datetime,
    days: int,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    x509, hashes, _, ec = cryptography()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Ensemble service")])
    until = min(now + dt.timedelta(days=days), ca.not_valid_after_utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(map(_general, names)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return key, certificate


def _general(name: str) -> x509.GeneralName:
    x509, *_ = cryptography()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))  # type: ignore[no-any-return]  # loaded late
    except ValueError:
        return x509.DNSName(name)  # type: ignore[no-any-return]  # loaded late


def _usage(*, signs: bool) -> x509.KeyUsage:
    x509, *_ = cryptography()
    return x509.KeyUsage(  # type: ignore[no-any-return]  # loaded late
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    _, _, serialization, _ = cryptography()
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    _, _, serialization, _ = cryptography()
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_public(path: Path, data: bytes) -> None:
    write_private(path, data)
    os.chmod(path, 0o644)


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
