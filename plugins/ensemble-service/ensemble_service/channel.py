"""gRPC channels to the ensemble service: addresses, TLS and tokens.

Every part that connects opens its channel here: clients, member agents, the executor ``remote``.
gRPC is loaded when a channel is opened, not before.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core import UsageError
from ensemble_service.listeners import foreign_owner, nobody_listens

if TYPE_CHECKING:
    import grpc
    from grpc import Channel

__all__ = [
    "MAX_MESSAGE",
    "address",
    "authorization",
    "is_loopback",
    "load_grpc",
    "open_channel",
    "own_authority",
    "read_certificate",
    "read_token",
    "tls_context",
    "trusted_file",
]

#: What the largest message may be, in bytes; more is not read.
MAX_MESSAGE = 4 * 1024 * 1024


def load_grpc() -> Any:
    """The module ``grpc``. Raises :class:`EnsembleError` with a hint where it is not installed."""
    try:
        with _quiet():
            import grpc
            import grpc.aio
        from google import protobuf  # noqa: F401 - its absence is to be told here, and not later
    except ImportError as error:
        raise UsageError(
            "the ensemble service needs gRPC",
            cause=str(error),
            hint="pip install 'ensemble-core[service]>=1.0'",
            code="no-grpc",
        ) from None
    return grpc


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep gRPC's own remarks off stderr, unless they are asked for: what fails is told in our
    words. It looks at the environment when it is loaded; jobs need not inherit that."""
    if "GRPC_VERBOSITY" in os.environ:
        yield
        return
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        yield
    finally:
        os.environ.pop("GRPC_VERBOSITY", None)


def is_loopback(host: str) -> bool:
    """True if what goes to this host stays on this machine, as far as its name tells."""
    host = host.strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def address(host: str, port: int) -> str:
    """``HOST:PORT`` as gRPC takes it; an IPv6 address gets its brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def open_channel(
    host: str = "localhost",
    port: int = 50051,
    *,
    token: str | Callable[[], str | None] | None = None,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    max_message: int = MAX_MESSAGE,
) -> grpc.Channel:
    """A channel to the service; each call on it carries the token.

    Parameters
    ----------
    token:
        The credential; falls back to ``$ENSEMBLE_TOKEN``, then to the content of the file
        ``$ENSEMBLE_TOKEN_FILE``. Without any, calls go without one. That file is read for each
        call, and a function is called for each, so that a token may be renewed while the channel
        is open; where that fails, the last one goes on to be used.
    ca:
        A file with the certificate of the authority that the service's own is checked by; falls
        back to ``$ENSEMBLE_CA``, then for a service on this machine to :func:`own_authority`.
        Where there is none, a service on this machine is spoken to in plaintext, and any other by
        the authorities that this machine trusts.
    insecure:
        Plaintext, also to another machine: everyone on the way may read the token. Without it, a
        token goes in plaintext only to who listens on this machine as this user or root.
    max_message:
        The largest message that is taken, in bytes.

    Raises :class:`UsageError` where a file cannot be read. Nothing is sent yet: whether the service
    is there is known with the first call.
    """
    grpc = load_grpc()
    channel: Channel
    if not host or not 0 < port < 65536:
        raise UsageError(f"{host}:{port} is no address of a service", code="bad-address")
    source = _source(token)
    first = source()
    trusted = trusted_file(host, ca, insecure)
    if trusted and insecure:
        raise UsageError(
            "a certificate authority and plaintext exclude each other",
            hint="leave out --insecure, or the authority's file",
            code="bad-option",
        )
    options = [
        ("grpc.max_receive_message_length", max_message),
        ("grpc.max_send_message_length", max_message),
        # A connection that is dead without a word is noticed while a stream is open on it.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # Two channels of one process are two connections.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(host):
        options.append(("grpc.enable_http_proxy", 0))
    target = address(host, port)
    if trusted:
        credentials = grpc.ssl_channel_credentials(read_certificate(trusted))
        channel = grpc.secure_channel(target, credentials, options)
    elif insecure or is_loopback(host):
        channel = grpc.insecure_channel(target, options)
    else:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
    if first:
        plain = not trusted and not insecure and is_loopback(host)
        check = partial(_check_listener, host, port) if plain else None
        channel = grpc.intercept_channel(channel, _bearer(first, source, check))
    return channel


def authorization(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that carries this token, for channels of another kind."""
    return (("authorization", f"Bearer {token}"),) if token else ()


def own_authority(host: str, folder: Path | None = None) -> Path | None:
    """The authority of a service on this machine, where ``ensemble-server init-tls`` has made one.

    ``folder`` is that of the certificates, if it is not the usual one. ``None`` for another host.
    """
    if not is_loopback(host):
        return None
    if folder is None:
        from ensemble_core.cli.toolkit import state_folder

        folder = state_folder(None) / "service" / "tls"
    own = folder / "ca.crt"
    return own if own.exists() else None


def trusted_file(
    host: str, ca: str | os.PathLike[str] | None, insecure: bool
) -> str | os.PathLike[str] | None:
    """The authority's file. What is spelt out counts more than what is in the environment."""
    if ca or insecure:
        return ca
    return os.environ.get("ENSEMBLE_CA") or own_authority(host)


def _source(given: str | Callable[[], str | None] | None) -> Callable[[], str | None]:
    """A function that gives the token of each call."""
    if callable(given):
        return given
    text = given or os.environ.get("ENSEMBLE_TOKEN")
    path = os.environ.get("ENSEMBLE_TOKEN_FILE")
    if not text and path:
        return partial(read_token, path)
    token = _checked(text or "") or None
    return lambda: token


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file that has nothing else. Raises :class:`UsageError`."""
    try:
        text = _checked(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the token in {os.fspath(path)}",
            cause=getattr(error, "strerror", None) or "it is not text",
            hint="the file has nothing but the token, as 'ensemble-server token add' printed it",
            code="bad-token-file",
        ) from None
    if not text:
        raise UsageError(f"there is no token in {os.fspath(path)}", code="bad-token-file")
    return text


def _checked(text: str) -> str:
    text = text.strip()
    if not text.isascii() or not text.isprintable() or len(text) > 1000:
        raise UsageError(  # the token itself is not shown
            "the token has characters that no token has",
            hint="it is one line, as 'ensemble-server token add' printed it",
            code="bad-token",
        )
    return text


def read_certificate(path: str | os.PathLike[str]) -> bytes:
    """The certificates in a file of an authority. Raises :class:`UsageError`."""
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the certificate {os.fspath(path)}",
            cause=error.strerror or str(error),
            hint="'ensemble-server init-tls' makes ca.crt; copy it to where it is to be trusted",
            code="bad-certificate",
        ) from None
    cause = "no line '-----BEGIN CERTIFICATE-----'"
    # Bundles have remarks between their certificates, in any encoding.
    found = b"\n".join(_PEM.findall(data))
    if found:
        try:
            tls_context(found)
        except (ssl.SSLError, ValueError) as error:
            cause = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        else:
            return found + b"\n"
    raise UsageError(
        f"{os.fspath(path)} has no certificate in it that can be used",
        cause=cause,
        hint="it is the ca.crt that 'ensemble-server init-tls' has made for this service",
        code="bad-certificate",
    )


_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def tls_context(authority: bytes | None) -> ssl.SSLContext:
    """How TLS is spoken with a service that this authority vouches for; no stricter than gRPC."""
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _check_listener(host: str, port: int) -> None:
    """Raise a ``grpc.RpcError`` where a token would go to somebody else."""
    import grpc

    class NotSent(grpc.RpcError):
        """A call that was not made; ``refusal`` is the error that the user gets, if it is not that
        nobody is there."""

        refusal: UsageError | None = None

        def code(self) -> grpc.StatusCode:
            if self.refusal is None:
                return grpc.StatusCode.UNAVAILABLE
            return grpc.StatusCode.FAILED_PRECONDITION

        def details(self) -> str:
            return str(self)

    if nobody_listens(host, port):
        raise NotSent(f"nobody listens on port {port} of this machine")
    cause = foreign_owner(host, port)
    if cause is not None:
        error = NotSent(cause)
        error.refusal = UsageError(
            f"the token is not sent in plaintext to {address(host, port)}",
            cause=cause,
            hint="give the service TLS ('ensemble-server init-tls') and its ca.crt with --ca; "
            "--insecure sends it all the same",
            code="foreign-listener",
        )
        raise error


def _bearer(
    token: str, source: Callable[[], str | None], check: Callable[[], None] | None = None
) -> Any:
    """An interceptor that puts the token on every call, after a check; ``token`` while its source
    gives none. (gRPC's own call credentials refuse plaintext, which a service on this machine may
    speak.)"""
    import grpc

    def current() -> str:
        nonlocal token
        with contextlib.suppress(UsageError):  # its file is being replaced
            token = source() or token
        return token

    class Details(grpc.ClientCallDetails):
        def __init__(self, details: Any) -> None:
            self.method = details.method
            self.timeout = details.timeout
            self.metadata = (*(details.metadata or ()), *authorization(current()))
            self.credentials = details.credentials
            self.wait_for_ready = details.wait_for_ready
            self.compression = details.compression

    def go_on(self: Any, continuation: Any, details: Any, request: Any) -> Any:
        if check is not None:
            check()
        return continuation(Details(details), request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    bases = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")
    return type(
        "Bearer",
        tuple(getattr(grpc, f"{base}ClientInterceptor") for base in bases),
        {f"intercept_{kind}": go_on for kind in kinds},
    )()
