"""gRPC channels to the ensemble service: addresses, TLS and tokens.

A token is sent in plaintext only to a listener on this machine of the same user or root.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
import struct
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core import UsageError

if TYPE_CHECKING:
    import grpc
    from grpc import Channel

#: Largest message that is accepted, in bytes.
MAX_MESSAGE = 4 * 1024 * 1024


def open_channel(
    host: str = "localhost",
    port: int = 50051,
    *,
    token: str | Callable[[], str | None] | None = None,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    max_message: int = MAX_MESSAGE,
) -> grpc.Channel:
    """Open a channel to the service. Each call on it carries the token.

    Parameters
    ----------
    token:
        The credential, or a function that returns it. The default is ``$ENSEMBLE_TOKEN``, then the
        content of the file ``$ENSEMBLE_TOKEN_FILE``. For each call, the function is called or
        the file is read, so that a token can be renewed while the channel is open. If that fails,
        the last token is used. Without any of these, calls carry no token.
    ca:
        File with the certificate authority's certificate. The default is ``$ENSEMBLE_CA``, then,
        for a service on this machine, :func:`own_authority`. Without any of them, a service on this
        machine is called in plaintext, and any other service must be trusted by the system's
        certificate authorities.
    insecure:
        Use plaintext to other machines too: anyone on the network path can then read the token.
        Otherwise, a token is sent in plaintext only to a listener on this machine that belongs to
        this user or root.
    max_message:
        Maximum size of a received message, in bytes.

    Raises :class:`UsageError` if a file cannot be read. Does not connect yet: the first call finds
    out whether the service is reachable.
    """
    grpc = load_grpc()
    channel: Channel
    if not host or not 0 < port < 65536:
        raise UsageError(f"invalid service address {host}:{port}", code="bad-address")
    source = _source(token)
    first = source()
    trusted = trusted_file(host, ca, insecure)
    if trusted and insecure:
        raise UsageError(
            "--insecure cannot be combined with a certificate authority",
            hint="leave out --insecure or --ca",
            code="bad-option",
        )
    options = [
        ("grpc.max_receive_message_length", max_message),
        ("grpc.max_send_message_length", max_message),
        # Detect a dead connection while a stream is open on it.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # Each channel of a process gets its own connection.
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
    """Return the call metadata that contain this token."""
    return (("authorization", f"Bearer {token}"),) if token else ()


def load_grpc() -> Any:
    """Return the module ``grpc``. Raise :class:`EnsembleError` if it is missing."""
    try:
        with _silence_grpc():
            import grpc
            import grpc.aio
        from google import protobuf  # noqa: F401 - report here if it is missing
    except ImportError as error:
        raise UsageError(
            "the ensemble service needs gRPC",
            cause=str(error),
            hint="pip install 'ensemble-core[service]>=1.0'",
            code="no-grpc",
        ) from None
    return grpc


@contextlib.contextmanager
def _silence_grpc() -> Iterator[None]:
    """Silence gRPC's logging on stderr unless the user has configured it.

    Failures are reported by the callers instead. gRPC reads its environment variable on import. The
    variable is removed afterwards, so that jobs don't inherit it.
    """
    if "GRPC_VERBOSITY" in os.environ:
        yield
        return
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        yield
    finally:
        os.environ.pop("GRPC_VERBOSITY", None)


def is_loopback(host: str) -> bool:
    """Return whether this host is ``localhost`` or a loopback address."""
    host = host.strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def address(host: str, port: int) -> str:
    """Return ``HOST:PORT`` as gRPC expects it, with brackets around an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def own_authority(host: str, folder: Path | None = None) -> Path | None:
    """Return the file of this machine's certificate authority (see ``ensemble-server init-tls``).

    ``folder`` replaces the usual certificate folder. Returns ``None`` if the file does not exist,
    or if ``host`` is another machine.
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
    """Return the certificate authority's file: the argument if given, else from the environment."""
    if ca or insecure:
        return ca
    return os.environ.get("ENSEMBLE_CA") or own_authority(host)


def _source(given: str | Callable[[], str | None] | None) -> Callable[[], str | None]:
    """Return a function that returns the token for each call."""
    if callable(given):
        return given
    text = given or os.environ.get("ENSEMBLE_TOKEN")
    path = os.environ.get("ENSEMBLE_TOKEN_FILE")
    if not text and path:
        return partial(read_token, path)
    token = _check_token(text or "") or None
    return lambda: token


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token from a file that contains only the token. Raise :class:`UsageError`."""
    try:
        text = _check_token(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the token in {os.fspath(path)}",
            cause=getattr(error, "strerror", None) or "it is not text",
            hint="the file must contain only the token, as printed by 'ensemble-server token add'",
            code="bad-token-file",
        ) from None
    if not text:
        raise UsageError(f"{os.fspath(path)} contains no token", code="bad-token-file")
    return text


def _check_token(text: str) -> str:
    text = text.strip()
    if not text.isascii() or not text.isprintable() or len(text) > 1000:
        raise UsageError(  # the token itself is not shown
            "invalid characters in the token",
            hint="use one line, as printed by 'ensemble-server token add'",
            code="bad-token",
        )
    return text


def read_certificate(path: str | os.PathLike[str]) -> bytes:
    """Return the certificates in a certificate authority's file. Raise :class:`UsageError`."""
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the certificate {os.fspath(path)}",
            cause=error.strerror or str(error),
            hint="copy ca.crt from the service, where 'ensemble-server init-tls' created it",
            code="bad-certificate",
        ) from None
    cause = "no line '-----BEGIN CERTIFICATE-----'"
    # Bundles have comments between certificates, in any encoding.
    found = b"\n".join(_PEM.findall(data))
    if found:
        try:
            tls_context(found)
        except (ssl.SSLError, ValueError) as error:
            cause = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        else:
            return found + b"\n"
    raise UsageError(
        f"{os.fspath(path)} contains no usable certificate",
        cause=cause,
        hint="use the ca.crt that 'ensemble-server init-tls' created for this service",
        code="bad-certificate",
    )


_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def tls_context(authority: bytes | None) -> ssl.SSLContext:
    """Return a TLS context that trusts this certificate authority, and is no stricter than gRPC."""
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _bearer(
    token: str, source: Callable[[], str | None], check: Callable[[], None] | None = None
) -> Any:
    """Return an interceptor that adds the token to every call, after a check.

    gRPC's own call credentials reject plaintext, but a service on this machine may use plaintext.
    """
    import grpc

    def current() -> str:
        nonlocal token
        with contextlib.suppress(UsageError):  # the token's file is being replaced
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

    def intercept(self: Any, continuation: Any, details: Any, request: Any) -> Any:
        if check is not None:
            check()
        return continuation(Details(details), request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    bases = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")
    return type(
        "Bearer",
        tuple(getattr(grpc, f"{base}ClientInterceptor") for base in bases),
        {f"intercept_{kind}": intercept for kind in kinds},
    )()


def _check_listener(host: str, port: int) -> None:
    """Raise a ``grpc.RpcError`` if another user's process would receive the token."""
    import grpc

    class CallNotSent(grpc.RpcError):
        """A call that was not made.

        The attribute ``refusal`` is the error for the user, or ``None`` if no process listens on
        the port.
        """

        refusal: UsageError | None = None

        def code(self) -> grpc.StatusCode:
            if self.refusal is None:
                return grpc.StatusCode.UNAVAILABLE
            return grpc.StatusCode.FAILED_PRECONDITION

        def details(self) -> str:
            return str(self)

    if is_port_free(host, port):
        raise CallNotSent(f"no process listens on port {port} of this machine")
    cause = foreign_owner(host, port)
    if cause is not None:
        error = CallNotSent(cause)
        error.refusal = UsageError(
            f"the token was not sent to {address(host, port)}: the connection is not encrypted",
            cause=cause,
            hint=(
                "set up TLS with 'ensemble-server init-tls' and pass ca.crt with --ca, or use "
                "--insecure to send the token without encryption"
            ),
            code="foreign-listener",
        )
        raise error


#: The kernel's tables of sockets, and the state number of a listening socket in them.
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


# Any user may listen on a free loopback port and wait for tokens. On Linux, the kernel reports the
# owner of a listening socket (/proc/net/tcp, tcp6).
def foreign_owner(host: str, port: int) -> str | None:
    """Return an error text if another user (except root) listens on this loopback address.

    Returns ``None`` otherwise.
    """
    for address, owner in _listeners(host, port):
        if owner not in (os.geteuid(), 0):
            return f"user {owner} listens on {address}, port {port}"
    return None


def is_port_free(host: str, port: int) -> bool:
    """Return whether no process listens on the port (yet); ``False`` if unknown."""
    return not _listeners(host, port) and any(table.exists() for table in _TABLES)


def _listeners(host: str, port: int) -> list[tuple[IPv4Address | IPv6Address, int]]:
    """Return the listening addresses, each with the owner of its socket."""
    wanted = _addresses(host)
    found = []
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            where, _, number = fields[1].partition(":")
            if fields[3] == _LISTENS and int(number, 16) == port:
                address = _parse_address(where)
                if address in wanted or not int(address):
                    found.append((address, int(fields[7])))
    return found


def _addresses(host: str) -> set[IPv4Address | IPv6Address]:
    """Return the addresses that a connection to this host may use."""
    bare = host.strip("[]").partition("%")[0]
    found: set[IPv4Address | IPv6Address] = set()
    for kind in (IPv4Address, IPv6Address):
        try:
            found.add(kind(bare))
        except ValueError:
            continue
    found = found or {IPv4Address("127.0.0.1"), IPv6Address("::1")}
    return found | {IPv6Address(f"::ffff:{each}") for each in found if each.version == 4}


def _parse_address(where: str) -> IPv4Address | IPv6Address:
    """Parse an address in the kernel's format: four-byte words in native byte order."""
    words = [int(where[at : at + 8], 16) for at in range(0, len(where), 8)]
    data = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return IPv4Address(data)
    return IPv6Address(data)
