"""gRPC channels to the ensemble service: TLS and tokens, and the errors that users see.

Every part that connects opens its channel here: clients, member agents, the executor ``remote``.
gRPC is loaded when a channel is opened, not before.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, ExecutorError, UsageError

if TYPE_CHECKING:
    import grpc
    from grpc import Channel

__all__ = [
    "MAX_MESSAGE",
    "MISMATCHED",
    "Away",
    "address",
    "authorization",
    "fault",
    "is_absence",
    "is_answer",
    "is_loopback",
    "load_grpc",
    "open_channel",
    "own_authority",
    "read_token",
    "why_away",
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
    """Whether what goes to this host stays on this machine, as far as its name tells."""
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
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    max_message: int = MAX_MESSAGE,
) -> grpc.Channel:
    """A channel to the service; each call on it carries the token.

    Parameters
    ----------
    token:
        The credential; falls back to ``$ENSEMBLE_TOKEN``, then to the content of the file
        ``$ENSEMBLE_TOKEN_FILE``. Without any, calls go without one.
    ca:
        A file with the certificate of the authority that the service's own is checked by; falls
        back to ``$ENSEMBLE_CA``, then for a service on this machine to :func:`own_authority`.
        Where there is none, a service on this machine is spoken to in plaintext, and any other by
        the authorities that this machine trusts.
    insecure:
        Plaintext, also to another machine: everyone on the way may read the token.
    max_message:
        The largest message that is taken, in bytes.

    Raises :class:`UsageError` where a file cannot be read. Nothing is sent yet: whether the service
    is there is known with the first call.
    """
    grpc = load_grpc()
    channel: Channel
    if not host or not 0 < port < 65536:
        raise UsageError(f"{host}:{port} is no address of a service", code="bad-address")
    token = _token(token)
    trusted = _trusted(host, ca, insecure)
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
        credentials = grpc.ssl_channel_credentials(_certificate(trusted))
        channel = grpc.secure_channel(target, credentials, options)
    elif insecure or is_loopback(host):
        channel = grpc.insecure_channel(target, options)
    else:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
    if token:
        channel = grpc.intercept_channel(channel, _bearer(token))
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


def _trusted(
    host: str, ca: str | os.PathLike[str] | None, insecure: bool
) -> str | os.PathLike[str] | None:
    """The authority's file. What is spelt out counts more than what is in the environment."""
    if ca or insecure:
        return ca
    return os.environ.get("ENSEMBLE_CA") or own_authority(host)


def _token(given: str | None) -> str | None:
    text = given or os.environ.get("ENSEMBLE_TOKEN")
    path = os.environ.get("ENSEMBLE_TOKEN_FILE")
    if not text and path:
        return read_token(path)
    return _checked(text or "") or None


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


def _certificate(path: str | os.PathLike[str]) -> bytes:
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
            _context(found)
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


def _context(authority: bytes | None) -> ssl.SSLContext:
    """How TLS is spoken with a service that this authority vouches for; no stricter than gRPC."""
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _bearer(token: str) -> Any:
    """An interceptor that puts the token on every call. (gRPC's own call credentials refuse
    plaintext, which a service on this machine may speak.)"""
    import grpc

    extra = authorization(token)

    class Details(grpc.ClientCallDetails):
        def __init__(self, details: Any) -> None:
            self.method = details.method
            self.timeout = details.timeout
            self.metadata = (*(details.metadata or ()), *extra)
            self.credentials = details.credentials
            self.wait_for_ready = details.wait_for_ready
            self.compression = details.compression

    def go_on(self: Any, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(Details(details), request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    bases = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")
    return type(
        "Bearer",
        tuple(getattr(grpc, f"{base}ClientInterceptor") for base in bases),
        {f"intercept_{kind}": go_on for kind in kinds},
    )()


@dataclass(frozen=True, slots=True)
class Away:
    """Why the service cannot be reached, and what to do; ``code`` is for programs."""

    cause: str
    hint: str
    code: str = "unavailable"


#: Codes of what no waiting mends: the two do not speak the same language, or do not trust.
MISMATCHED = frozenset({"untrusted", "speaks-tls", "no-tls"})


def fault(error: grpc.RpcError, target: str, away: Away | None = None) -> EnsembleError:
    """What a call that failed means, in words that a user can act on.

    ``transient`` where the same call may succeed later; it is then open whether it was delivered.
    ``away`` is what :func:`why_away` found, where nobody could be reached.
    """
    import grpc

    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else "") or str(error)
    words, hint, transient = _FAULTS.get(code.name, ("did not answer as it should", None, False))
    name = code.name.lower().replace("_", "-")
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "ask again in a while" if is_answer(details) else _THERE
        if away is not None and not is_answer(details):
            details, hint, name = away.cause, away.hint, away.code
    elif "larger than max" in details:
        words, transient = "takes no message of this size", False
    if hint and details.endswith(hint):  # the service said so too
        details = details[: -len(hint)].rstrip("; ")
    return ExecutorError(
        f"the service at {target} {words}",
        cause=" ".join(details.split())[:500],
        hint=hint,
        code=name,
        transient=transient,
    )


_FAULTS: dict[str, tuple[str, str | None, bool]] = {
    "UNAVAILABLE": ("cannot be reached", None, True),
    "DEADLINE_EXCEEDED": ("did not answer in time", None, True),
    "CANCELLED": ("was not asked to the end", None, True),
    "UNKNOWN": ("failed", None, True),
    "INTERNAL": ("failed", None, True),
    "ABORTED": ("gave up", None, True),
    "RESOURCE_EXHAUSTED": ("takes no more for now", None, True),
    "UNAUTHENTICATED": (
        "does not know this credential",
        "set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; 'ensemble-server token add' makes tokens",
        False,
    ),
    "PERMISSION_DENIED": (
        "refused: the credential does not allow this",
        "'ensemble-server token list' shows for whom each token is",
        False,
    ),
    "ALREADY_EXISTS": (
        "refused: this name is taken",
        "end the other one, or give this one another name",
        True,
    ),
    "INVALID_ARGUMENT": ("refused what was asked", None, False),
    "NOT_FOUND": ("does not know it", None, False),
    "FAILED_PRECONDITION": ("refused", None, False),
    "OUT_OF_RANGE": ("refused", None, False),
    "UNIMPLEMENTED": (
        "does not know the request",
        "is it an ensemble service, and not an older one?",
        False,
    ),
}


_THERE = "is it running there? If it speaks TLS, give its ca.crt with --ca or ENSEMBLE_CA"


def is_absence(details: str) -> bool:
    """Whether the words of ``UNAVAILABLE`` are the service's own of a member that is away."""
    return details.startswith("member ") and is_answer(details)


def is_answer(details: str) -> bool:
    """Whether the words of ``UNAVAILABLE`` are the service's own: it was reached."""
    return _OURS.match(details) is not None


#: Not any words of the system that are alike: "Transport endpoint is not connected".
_OURS = re.compile(r"the service (stops|keeps no record)|member \S+ is not connected")


def why_away(
    host: str,
    port: int,
    *,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    seconds: float = 2.0,
) -> Away:
    """Why the service cannot be reached: looked into with a connection of its own, for gRPC tells
    only what befell the last of the addresses that it tried. The arguments are those of
    :func:`open_channel`; what that raises, this does too."""
    trusted = _trusted(host, ca, insecure)
    plain = not trusted and (insecure or is_loopback(host))
    context = _context(_certificate(trusted) if trusted else None)
    if plain:  # only to learn whether it speaks TLS: nothing is sent that is to be kept secret
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    bare = host.strip("[]")
    try:
        plug = socket.create_connection((bare, port), seconds)
    except OSError as error:
        words = error.strerror or str(error) or "no answer"
        return Away(words, "is it running there? 'ensemble-server start' starts one")
    with plug:
        try:
            with context.wrap_socket(plug, server_hostname=bare):
                if plain:
                    words = "it speaks TLS, and was asked in plaintext"
                    return Away(words, "give its ca.crt with --ca or ENSEMBLE_CA", "speaks-tls")
        except ssl.SSLCertVerificationError as error:
            return _distrusted(error, trusted, own=not (ca or os.environ.get("ENSEMBLE_CA")))
        except (OSError, ValueError) as error:
            if not plain and getattr(error, "reason", None) in _NO_TLS:
                words = "it does not speak TLS, or something else listens there"
                return Away(words, _plaintext_hint(ca, trusted), "no-tls")
    return Away("it takes the connection and does not answer", "is something else listening there?")


#: What OpenSSL calls an answer that is not TLS. That a connection just ends may pass.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


def _plaintext_hint(
    ca: str | os.PathLike[str] | None, trusted: str | os.PathLike[str] | None
) -> str:
    """How to ask in plaintext after all."""
    if ca or not trusted:
        return "leave out --ca if it is to be asked in plaintext"
    where = os.fspath(trusted)
    if os.environ.get("ENSEMBLE_CA"):
        return f"unset ENSEMBLE_CA ({where}) if it is to be asked in plaintext"
    return f"{where} says that it does; --insecure asks in plaintext"


def _distrusted(
    error: ssl.SSLCertVerificationError, trusted: str | os.PathLike[str] | None, *, own: bool
) -> Away:
    words, said = f"its certificate is not trusted: {error.verify_message}", error.verify_message
    if "expired" in said:
        hint = "renew it where the service is: ensemble-server init-tls --renew"
    elif "not yet valid" in said:
        hint = "compare the clocks of this machine and of the service's"
    elif "mismatch" in said or "not valid for" in said:
        hint = "make one for this name where the service is: init-tls --renew --host NAME"
    else:
        hint = "give the ca.crt of this service with --ca or ENSEMBLE_CA"
        if trusted:
            found = ", which was found by itself" if own else ""
            hint += f"; this was {os.fspath(trusted)}{found}"
    return Away(words, hint, "untrusted")
