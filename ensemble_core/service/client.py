"""Channels to the ensemble service, and the client that asks it for things.

:func:`open_channel` serves every part that connects (clients, member agents, the executor
``remote``). :class:`ServiceClient` is what plugins use, under the name
``ensemble_core.ServiceClient``. gRPC is loaded when a channel is opened, not before.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ensemble_core.errors import EnsembleError, ExecutorError, UsageError
from ensemble_core.resizer import Resized

if TYPE_CHECKING:
    import grpc

__all__ = [
    "GroupStatus",
    "MemberStatus",
    "ServiceClient",
    "authorization",
    "fault",
    "is_loopback",
    "load_grpc",
    "open_channel",
    "quiet_grpc",
    "read_token",
]

_R = TypeVar("_R")

#: What the largest message may be, in bytes; more is not read.
MAX_MESSAGE = 4 * 1024 * 1024


def load_grpc() -> Any:
    """The module ``grpc``. Raises :class:`EnsembleError` with a hint where it is not installed."""
    try:
        import grpc
        import grpc.aio
        from google import protobuf  # noqa: F401 - its absence is to be told here, and not later
    except ImportError as error:
        raise UsageError(
            "the ensemble service needs gRPC",
            cause=str(error),
            hint="pip install 'ensemble-core[service]'",
            code="no-grpc",
        ) from None
    return grpc


def quiet_grpc() -> None:
    """Keep gRPC's own remarks off stderr, where nothing asks for them: what fails is told in our
    words. To be called before gRPC is loaded."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


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
        back to ``$ENSEMBLE_CA``. Where there is none, a service on this machine is spoken to in
        plaintext, and any other by the authorities that this machine trusts.
    insecure:
        Plaintext also to another machine: everyone on the way may read the token.
    max_message:
        The largest message that is taken, in bytes.

    Raises :class:`UsageError` where a file cannot be read. Nothing is sent yet: whether the service
    is there is known with the first call.
    """
    grpc = load_grpc()
    if not host or not 0 < port < 65536:
        raise UsageError(f"{host}:{port} is no address of a service", code="bad-address")
    token = _token(token)
    # What is spelt out counts more than what is in the environment.
    trusted = ca or (None if insecure else os.environ.get("ENSEMBLE_CA") or None)
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
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise UsageError(
            f"{os.fspath(path)} has no certificate in it",
            cause="no line '-----BEGIN CERTIFICATE-----'",
            code="bad-certificate",
        )
    return data


def _bearer(token: str) -> Any:
    """An interceptor that puts the token on every call. (gRPC's own call credentials refuse
    plaintext, which a service on this machine may speak.)"""
    import grpc

    extra = authorization(token)

    class Details(grpc.ClientCallDetails):  # type: ignore[misc]  # untyped base class
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


# -- what is known of members -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """How many jobs of a group are in which state."""

    name: str
    waiting: int = 0
    running: int = 0
    success: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """How a member stands. ``last_beat`` is in seconds since the epoch, 0 for never; ``size`` in
    nodes, of what the service resizes for it, where that is known."""

    member: str
    alive: bool = False
    last_beat: float = 0.0
    executor: str = ""
    host: str = ""
    version: str = ""
    gauges: Mapping[str, float] = field(default_factory=dict)
    groups: tuple[GroupStatus, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    size: int | None = None


# -- the client ---------------------------------------------------------------------------------


class ServiceClient:
    """Asks the ensemble service. May be used by several threads.

    ``token`` and ``ca`` are as for :func:`open_channel`. ``timeout`` is in seconds and holds for
    each request as a whole, asking again included.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 50051,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        timeout: float = 10.0,
    ) -> None:
        self.target = address(host, port)
        self.timeout = timeout
        self._channel = open_channel(host, port, token=token, ca=ca, insecure=insecure)
        from ensemble_core.service.proto import ensemble_pb2, ensemble_pb2_grpc

        self._wire: Any = ensemble_pb2
        stub: Any = ensemble_pb2_grpc.EnsembleStub
        self._stub: Any = stub(self._channel)
        self._closed = threading.Event()

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back. Calls that are under way end with an error."""
        self._closed.set()
        self._channel.close()

    def resize(self, member: str, request: str, delta: int) -> Resized:
        """Ask for ``delta`` more nodes of ``member``, fewer when negative.

        ``request`` names it: asked again under that name, it is answered again and not carried out
        twice. Raises :class:`ExecutorError`; a ``transient`` one leaves open whether the request
        arrived, and asking again under the same name is safe.
        """
        message = self._wire.ResizeRequest(member=member, request=request, delta=delta)
        reply = self._ask(self._stub.Resize, message, again=True)
        names: dict[int, Literal["granted", "partial", "denied"]] = {
            1: "granted",
            2: "partial",
            3: "denied",
        }
        if reply.outcome not in names:
            raise ExecutorError(
                f"the service at {self.target} gave an answer that is not known here",
                cause=f"outcome {reply.outcome}",
                hint="it may be newer than this client",
                code="bad-answer",
            )
        return Resized(
            outcome=names[reply.outcome],
            before=reply.before,
            asked=reply.asked,
            granted=reply.granted,
            reason=reply.reason,
            code=reply.code,
            transient=reply.transient,
        )

    def cancel(self, member: str, run: str, jobs: Sequence[str] = ()) -> None:
        """Cancel jobs of a run on a member, all of them where none is named."""
        message = self._wire.CancelRequest(member=member, run=run, jobs=jobs)
        self._ask(self._stub.Cancel, message, again=True)

    def status(self, member: str = "") -> list[MemberStatus]:
        """How a member stands, or every member that the credential may see, by name."""
        reply = self._ask(self._stub.GetStatus, self._wire.StatusRequest(member=member), again=True)
        return [read_status(each) for each in reply.members]

    def _ask(self, call: Callable[..., _R], message: Any, *, again: bool) -> _R:
        """Make a call; ask again, within the time, while it cannot have been delivered."""
        import grpc

        end = time.monotonic() + self.timeout
        pause = 0.1
        while True:
            try:
                return call(message, timeout=max(0.001, end - time.monotonic()))
            except grpc.RpcError as error:
                code = error.code() if hasattr(error, "code") else None
                left = end - time.monotonic()
                if not again or code != grpc.StatusCode.UNAVAILABLE or left <= pause:
                    raise fault(error, self.target) from None
                if self._closed.wait(pause):
                    raise fault(error, self.target) from None
                pause = min(pause * 2, 2.0)
            except ValueError as error:  # what gRPC says of a channel that is closed
                raise ExecutorError(
                    f"the connection to the service at {self.target} is closed",
                    cause=str(error),
                    code="closed",
                ) from None


def read_status(message: Any) -> MemberStatus:
    """A member's status from the wire."""
    return MemberStatus(
        member=message.member,
        alive=message.alive,
        last_beat=message.last_beat,
        executor=message.executor,
        host=message.host,
        version=message.version,
        gauges=dict(message.gauges),
        groups=tuple(
            GroupStatus(
                name=group.name,
                waiting=group.waiting,
                running=group.running,
                success=group.success,
                failed=group.failed,
                cancelled=group.cancelled,
            )
            for group in message.groups
        ),
        metrics=dict(message.metrics),
        runs=tuple(message.runs),
        size=message.size if message.HasField("size") else None,
    )


def fault(error: grpc.RpcError, target: str) -> EnsembleError:
    """What a call that failed means, in words that a user can act on.

    ``transient`` where the same call may succeed later; it is then open whether it was delivered.
    """
    import grpc

    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else "") or str(error)
    words, hint, transient = _FAULTS.get(code.name, ("did not answer as it should", None, False))
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = _why_away(details)
    elif "larger than max" in details:
        words, transient = "takes no message of this size", False
    return ExecutorError(
        f"the service at {target} {words}",
        cause=" ".join(details.split())[:500],
        hint=hint,
        code=code.name.lower().replace("_", "-"),
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
    "PERMISSION_DENIED": ("refused: the credential does not allow this", None, False),
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


def _why_away(details: str) -> str:
    lower = details.lower()
    if "certificate" in lower and ("verify" in lower or "verification" in lower):
        return (
            "its certificate is not of the authority that is trusted, has expired, or is for other "
            "names; give the service's ca.crt with --ca or ENSEMBLE_CA"
        )
    if "ssl" in lower or "handshake" in lower or "wrong version" in lower or "tls" in lower:
        return "does one side speak TLS and the other not? give ca.crt with --ca or ENSEMBLE_CA"
    if "the service stops" in lower or "not connected" in lower:
        return "ask again in a while"
    return "is it running there? If it speaks TLS, give its ca.crt with --ca or ENSEMBLE_CA"
