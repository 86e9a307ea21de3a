"""gRPC interceptor for every RPC: authentication, rate limits, deadlines and error mapping."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ensemble_core import EnsembleError
from ensemble_service.access import Identity, Unauthenticated
from ensemble_service.call_errors import Refused
from ensemble_service.monitoring import Counters
from ensemble_service.request_limits import (
    Deadline,
    EndOfMessages,
    MessageReader,
    Messages,
    RateLimiter,
    next_message,
)
from ensemble_service.service_log import tell
from ensemble_service.tokens import TokenFile
from ensemble_service.wire import clean

#: Function that identifies a caller without a credential by its request, or returns ``None``.
StandIn = Callable[[Any], Identity | None]

#: Maximum number of streams per credential. Each stream may hold an endless message.
_STREAMS = 32
#: Maximum number of refusals logged per second. Beyond that, only their number is logged.
_LOGGED = 20
_LONGEST = 1_000
#: Seconds within which a caller must send its message, once reading has begun.
_READING = 10.0
#: Maximum number of streams of callers without a credential, and the seconds that each may last.
_PROBES, _PROBE_AGE = 64, 600.0

_CALLER: ContextVar[Identity] = ContextVar("ensemble_service_caller")


def caller() -> Identity:
    """Return the caller of the current RPC."""
    return _CALLER.get()


@dataclass(eq=False, slots=True)
class _Stream:
    """An open stream."""

    identity: Identity
    task: asyncio.Task[Any]
    end: Refused | None = None  # why the service ended the stream
    since: float = 0.0  # time of the first reply, 0 before
    age: asyncio.TimerHandle | None = None


class RpcGuard(grpc.aio.ServerInterceptor):
    """Guard of every method of the server.

    An error ends one call with a status and a reason, and affects no other call.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        rate: float,  # requests per second and credential; bursts are twice as large; 0: no limit
        deadline: float,  # seconds for a single request
        counters: Counters,
        open_services: frozenset[str] = frozenset(),  # services that need no credential
        # For methods of the legacy protocol: functions that identify callers without a credential.
        stand_ins: Mapping[str, StandIn | None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._deadline = deadline
        self._counters = counters
        self._open = open_services
        self._stand_ins = stand_ins or {}
        self._monotonic = monotonic
        self._rate = rate
        self._rates = RateLimiter(rate, 2 * rate) if rate else None
        self._failures = RateLimiter(20, 100)
        self._handlers: dict[str, Any] = {}
        self._reader = MessageReader()
        self._live: dict[asyncio.Task[Any], _Stream] = {}
        self._streams: Counter[Identity] = Counter()
        self._logs = RateLimiter(_LOGGED, _LOGGED)
        self._unlogged = 0
        self._trouble = ""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the guarded handler of a method; gRPC calls this for every RPC."""
        path: str = handler_call_details.method
        guarded = self._handlers.get(path)
        if guarded is None:
            guarded = await continuation(handler_call_details)
            service, _, method = path.lstrip("/").rpartition("/")
            if guarded is None:
                return None
            is_open = service in self._open
            guarded = self._handlers[path] = self._guard_handler(path, method, guarded, is_open)
        return guarded

    def _guard_handler(self, path: str, method: str, handler: Any, is_open: bool) -> Any:
        """Return the guarded handler of one method, for single replies and for streams."""
        decode, streaming = handler.request_deserializer, handler.response_streaming
        asked_with_stream: bool = handler.request_streaming
        behaviour = _behaviour(handler)
        codes, ok = self._counters.requests, (method, "OK")
        named_by_message = path in self._stand_ins
        stand_in = self._stand_ins.get(path)

        async def handle(_: Any, context: Any) -> Any:
            messages = Messages(context)
            identity: Identity | None = None
            stream: _Stream | None = None
            asked: Any
            seconds = _READING if streaming else min(_READING, self._deadline)
            # For streams, the servicer sets the deadline of the first message.
            deadline = Deadline(inf if asked_with_stream else seconds)
            try:
                identity = _PROBE if is_open else self._authenticate(context)
                if identity is None and stand_in is None:
                    raise _no_credential(named_by_message)
                if streaming:
                    assert identity is not None  # stand-ins are for single replies
                    stream = self._open_stream(identity, deadline.task)
                if identity is not None and not is_open:
                    self._check_rate(identity)
                if asked_with_stream:
                    assert identity is not None
                    asked = self._decode_stream(decode, identity, messages)
                elif identity is None or is_open:
                    asked = _decode(decode, await self._reader.read_nameless(messages))
                else:
                    asked = _decode(decode, await self._reader.read(identity, messages))
                if identity is None:
                    assert stand_in is not None
                    identity = stand_in(asked)
                    if identity is None:
                        raise _no_credential(named_by_message)
                    self._check_rate(identity)
                if not is_open:
                    _CALLER.set(identity)
                reply = None
                if stream is None:
                    deadline.renew(self._deadline)
                    reply = await behaviour(asked, context)
                else:
                    deadline.renew(inf)
                    await self._write(method, context, stream, behaviour(asked, context))
            except asyncio.CancelledError:
                end = stream.end if stream is not None else None
                if deadline.end():
                    late = f"it took longer than {deadline.seconds:.3g} s"
                    end = Refused("DEADLINE_EXCEEDED", late)
                elif end is None:
                    codes[method, "CANCELLED"] += 1
                    raise
                elif sys.version_info >= (3, 11):
                    deadline.task.uncancel()
                refused = self._refuse(method, identity, context, end)
            except Exception as error:  # any fault ends this call only
                deadline.end()
                refused = self._refuse(method, identity, context, error)
            else:
                deadline.end()
                codes[ok] += 1
                return reply
            finally:
                if stream is not None:
                    self._close_stream(method, stream)
            await _abort(context, refused)
            return None

        # gRPC would read the message of a unary method before the interceptor runs.
        kind = (
            grpc.stream_stream_rpc_method_handler
            if streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return kind(handle, response_serializer=handler.response_serializer)

    # -- messages -------------------------------------------------------------------------------

    async def _write(self, method: str, context: Any, stream: _Stream, replies: Any) -> None:
        """Send all replies of a stream."""
        try:
            async for reply in replies:
                await context.write(reply)
                if not stream.since:  # the first message was accepted, so the stream is established
                    stream.since = self._monotonic()
                    if stream.identity is not _PROBE:
                        who, peer = stream.identity, _host(context)
                        tell("connected", method=method, who=who, peer=peer)
        finally:
            await replies.aclose()

    async def _decode_stream(
        self, decode: Callable[[bytes], Any], identity: Identity, messages: AsyncIterator[bytes]
    ) -> AsyncIterator[Any]:
        """Yield the messages of a stream. The servicer sets the deadline of the first message."""
        # Don't assign the message to a variable, which would keep a large message in memory until
        # the next.
        try:
            yield _decode(decode, await self._reader.read(identity, messages))
            while True:
                yield _decode(decode, await next_message(messages))
        except EndOfMessages:
            return

    # -- streams --------------------------------------------------------------------------------

    def _open_stream(self, identity: Identity, task: asyncio.Task[Any]) -> _Stream:
        most = _PROBES if identity is _PROBE else _STREAMS
        if self._streams[identity] >= most:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"{most} streams with this credential are already open; end some, or create "
                "another token: ensemble-server token add",
            )
        self._streams[identity] += 1
        stream = self._live[task] = _Stream(identity, task)
        if identity is _PROBE:
            end = Refused(
                "UNAVAILABLE", f"a stream without a credential is closed after {_PROBE_AGE:g} s"
            )
            stream.age = task.get_loop().call_later(_PROBE_AGE, self._end_stream, stream, end)
        return stream

    def _end_stream(self, stream: _Stream, end: Refused) -> None:
        stream.end = end
        stream.task.cancel()

    def _close_stream(self, method: str, stream: _Stream) -> None:
        self._live.pop(stream.task, None)
        if stream.age is not None:
            stream.age.cancel()
        self._streams[stream.identity] -= 1
        if not self._streams[stream.identity]:
            del self._streams[stream.identity]
        if stream.since and stream.identity is not _PROBE:
            seconds = round(self._monotonic() - stream.since, 1)
            tell("disconnected", method=method, who=stream.identity, seconds=seconds)

    def end_streams_of_removed(self) -> int:
        """End the streams whose token was removed or has expired. Return their number."""
        ended = 0
        for stream in list(self._live.values()):
            if stream.identity is _PROBE:
                continue
            if stream.end is None and not self._tokens.stands(stream.identity):
                end = Refused("UNAUTHENTICATED", "the token was removed or has expired")
                self._end_stream(stream, end)
                ended += 1
        return ended

    # -- authentication and rate limits ---------------------------------------------------------

    def _authenticate(self, context: Any) -> Identity | None:
        """Return the caller's identity, or ``None`` without a credential.

        Raises :class:`Unauthenticated`.
        """
        for key, value in context.invocation_metadata():
            if key == "authorization":
                scheme, _, token = str(value).partition(" ")
                if scheme.lower() != "bearer":
                    raise Unauthenticated(
                        "expected 'Bearer TOKEN' as the credential", code="bad-token"
                    )
                identity = self._tokens.identify(token.strip())
                if self._tokens.trouble != self._trouble:
                    self._log_trouble()
                return identity
        return None

    def _log_trouble(self) -> None:
        self._trouble = self._tokens.trouble
        if self._trouble:
            tell("cannot read the tokens; using those read before", "error", why=self._trouble)

    def _check_rate(self, identity: Identity) -> None:
        key = identity.id or str(identity)
        if self._rates is not None and not self._rates.take(key, self._monotonic()):
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"more than {self._rate:g} requests a second with this credential; wait, or "
                "start the service with a larger --rate",
            )

    # -- error mapping --------------------------------------------------------------------------

    def _refuse(
        self, method: str, identity: Identity | None, context: Any, error: Exception
    ) -> Refused:
        """Return the gRPC status for an error, after counting and logging it."""
        peer = _host(context)
        if isinstance(error, Refused):
            refused = error.without_traceback()
        elif isinstance(error, Unauthenticated):
            refused = Refused("UNAUTHENTICATED", _sentence(error))
            # Limit the time spent on repeated guesses.
            if not self._failures.take(peer, self._monotonic()):
                reason = f"too many wrong credentials from {peer}; wait a second"
                refused = Refused("RESOURCE_EXHAUSTED", reason)
        elif isinstance(error, EnsembleError):
            refused = Refused("INVALID_ARGUMENT", _sentence(error))
        elif isinstance(error, grpc.aio.AbortError):
            raise error
        else:
            refused = Refused("INTERNAL", "internal error of the service; see its log")
            words = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            tell("fault", "error", method=method, who=str(identity or ""), trace=words)
        refused.message = clean(refused.message, _LONGEST)
        self._counters.requests[method, refused.code] += 1
        self._log_refusal(method, identity, peer, refused)
        return refused

    def _log_refusal(
        self, method: str, identity: Identity | None, peer: str, refused: Refused
    ) -> None:
        if not self._logs.take("", self._monotonic()):
            self._unlogged += 1
            return
        more = {"unlogged": self._unlogged} if self._unlogged else {}
        self._unlogged = 0
        if identity is _PROBE:
            identity = None
        tell(
            "refused",
            # A stopping service or an absent member is not the caller's fault.
            "debug" if refused.code == "UNAVAILABLE" else "warning",
            method=method,
            code=refused.code,
            why=refused.message,
            who=str(identity or ""),
            token=identity.id if identity else "",
            peer=peer,
            **more,
        )


#: Identity of all callers of methods that need no credential.
_PROBE = Identity("viewer", "")


def _no_credential(named_by_message: bool = False) -> Unauthenticated:
    """Return the error for a call without a credential.

    ``named_by_message`` says whether the message may identify the caller.
    """
    # A new object each time, because a raised error keeps its frames, and so the call, in memory.
    cause = "the call has no 'authorization: Bearer TOKEN'"
    if named_by_message:
        return Unauthenticated(
            "missing credential",
            cause=f"{cause}, and the member is not in --legacy",
            hint="add the member with 'ensemble-server start --legacy NS/NAME'",
            code="no-token",
        )
    return Unauthenticated(
        "missing credential",
        cause=cause,
        hint=(
            "set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; create a token with 'ensemble-server "
            "token add'"
        ),
        code="no-token",
    )


def _behaviour(handler: Any) -> Callable[[Any, Any], Any]:
    """Return the servicer's method from a gRPC handler."""
    if not handler.response_streaming:
        return handler.unary_unary  # type: ignore[no-any-return]  # gRPC has no types
    both = handler.request_streaming
    return handler.stream_stream if both else handler.unary_stream  # type: ignore[no-any-return]


def _sentence(error: EnsembleError) -> str:
    parts = (error.what, error.cause, error.hint)
    return "; ".join(part for part in parts if part)


async def _abort(context: Any, refused: Refused) -> None:
    """End the call with a gRPC status."""
    try:
        await context.abort(getattr(grpc.StatusCode, refused.code), refused.message)
    except grpc.aio.AbortError as error:
        # Our frames would keep the call's data in memory until the cycle is collected.
        error.__traceback__ = None


def _host(context: Any) -> str:
    """Return a caller's address without the port."""
    peer: str = context.peer() or ""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer


def _decode(deserializer: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserializer(data)
    except DecodeError:
        message = f"cannot decode a message of {len(data)} bytes as this method's request"
        raise Refused("INVALID_ARGUMENT", message) from None
