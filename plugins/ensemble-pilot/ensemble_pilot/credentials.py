"""Credentials of a run's pilots: the controller's certificate, and a secret for the nodes' tokens.

All are files in the run's folder that only its owner can read. They are made once and stay the same
at a resume. Nodes trust this certificate alone, under a fixed name, so the controller may move to
another machine.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
import ssl
from pathlib import Path

from ensemble_core import private_folder

#: The name in the certificate.
NAME = "ensemble-pilot"
_CERTIFICATE, _KEY, _SECRET = "certificate.pem", "key.pem", "secret"
_DAYS = 3650


def write_private(path: Path, data: bytes) -> None:
    """Write and sync a file that only its owner can read. A reader finds all of it or nothing."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.replace(draft, path)


def make(folder: Path) -> None:
    """Create the credentials in a private folder, unless they exist."""
    private_folder(folder)
    if (folder / _SECRET).exists():  # it is written last
        return
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.timezone.utc)
    public = key.public_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks of nodes may be behind
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(
        folder / _KEY,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    write_private(folder / _CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    write_private(folder / _SECRET, os.urandom(32))


def token(folder: Path, pilot: int, rank: int) -> str:
    """Return the token by which a node proves that it belongs to the run."""
    secret = (folder / _SECRET).read_bytes()
    return hmac.new(secret, f"{pilot}/{rank}".encode(), hashlib.sha256).hexdigest()


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the controller's TLS settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / _CERTIFICATE, folder / _KEY)
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    """Return a node's TLS settings: it trusts the certificate of its run's controller alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder / _CERTIFICATE)
    return context
