"""Authentication, rate limits, deadlines and error mapping for every RPC: a gRPC interceptor.

Messages are read only after their sender is known, within a time and a few at once; whom the call
comes from is then :func:`caller` for the servicer. So every method is asked with a stream, as gRPC
sees it: of any other it reads the message before anybody is asked. Health needs no token, and in
the first implementation's protocol the message says who asks: these share a few places
(``message_reader``). A refusal, or a fault, ends one call with a status and a reason; nothing else
notices.
"""

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
from ensemble_service.counters import Counters
from ensemble_service.logs import tell
from ensemble_service.message_reader import MessageReader, Messages, NoMessage, next_message
from ensemble_service.rate_limits import Deadline, RateLimiter
from ensemble_service.refusal import Refused
from ensemble_service.tokens import TokenFile
from ensemble_service.wire import clean

__all__ = ["RpcGuard", "StandIn", "caller"]

#: Says who asks where there is no credential, by the request; ``None`` for nobody.
StandIn = Callable[[Any], Identity | None]

#: Streams that one credential may have open at a time: each may hold a message that does not end.
_STREAMS = 32
#: Refusals that are logged in a second; of more, only how many there were. Characters of one.
_LOGGED = 20
_LONGEST = 1_000
#: Seconds that a caller has to send a message in, once it is being read.
_READING = 10.0
#: Streams of callers without a credential, and seconds that each may last.
_PROBES, _PROBE_AGE = 64, 600.0

_CALLER: ContextVar[Identity] = ContextVar("ensemble_service_caller")


def caller() -> Identity:
    """Whom the RPC comes from that is under way."""
    return _CALLER.get()


@dataclass(eq=False, slots=True)
class _Stream:
    """A stream that is open. ``end`` says why it was ended by us; ``since`` when, by a clock of its
    own, it was first answered, 0 for not yet."""

    identity: Identity
    task: asyncio.Task[Any]
    end: Refused | None = None
    since: float = 0.0
    age: asyncio.TimerHandle | None = None


class RpcGuard(grpc.aio.ServerInterceptor):
    """Stands before every method of the server.

    ``rate`` is how many requests a second a credential may make (twice that at once), 0 for any
    number; ``deadline`` how many seconds a single request may take. ``open_services`` need no
    credential; ``stand_ins`` are for methods whose callers may have none, ``None`` where that is
    not so now.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        rate: float,
        deadline: float,
        counters: Counters,
        open_services: frozenset[str] = frozenset(),
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
        """The method's handler behind the guard; gRPC calls this for every RPC."""
        path: str = handler_call_details.method
        guarded = self._handlers.get(path)
        if guarded is None:
            guarded = await continuation(handler_call_details)
            service, _, method = path.lstrip("/").rpartition("/")
            if guarded is None:
                return None
            is_open = service in self._open
            guarded = self._handlers[path] = self._guarded(path, method, guarded, is_open)
        return guarded

    def _guarded(self, path: str, method: str, handler: Any, is_open: bool) -> Any:
        """Return the handler of one method behind the guard, for single replies and for streams."""
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
            # The servicer decides how long the first message of a stream may take.
            deadline = Deadline(inf if asked_with_stream else seconds)
            try:
                identity = _PROBE if is_open else self._authenticate(context)
                if identity is None and stand_in is None:
                    raise _no_credential(named_by_message)
                if streaming:
                    assert identity is not None  # stand-ins are for single replies
                    stream = self._open_stream(identity, deadline.task)
                if identity is not None and not is_open:
                    self._take_turn(identity)
                if asked_with_stream:
                    assert identity is not None
                    asked = self._decoded(decode, identity, messages)
                elif identity is None or is_open:
                    asked = _decode(decode, await self._reader.read_nameless(messages))
                else:
                    asked = _decode(decode, await self._reader.read(identity, messages))
                if identity is None:
                    assert stand_in is not None
                    identity = stand_in(asked)
                    if identity is None:
                        raise _no_credential(named_by_message)
                    self._take_turn(identity)
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
            except Exception as error:  # whatever it is, it ends this call and no other
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
                if not stream.since:  # what was said at first was taken: it takes part
                    stream.since = self._monotonic()
                    if stream.identity is not _PROBE:
                        who, peer = stream.identity, _host(context)
                        tell("connected", method=method, who=who, peer=peer)
        finally:
            await replies.aclose()

    async def _decoded(
        self, decode: Callable[[bytes], Any], identity: Identity, messages: AsyncIterator[bytes]
    ) -> AsyncIterator[Any]:
        """The messages of a stream. How long the first may take is the servicer's to say."""
        # No message has a name here: a large one would be kept until the next comes.
        try:
            yield _decode(decode, await self._reader.read(identity, messages))
            while True:
                yield _decode(decode, await next_message(messages))
        except NoMessage:
            return

    # -- streams --------------------------------------------------------------------------------

    def _open_stream(self, identity: Identity, task: asyncio.Task[Any]) -> _Stream:
        most = _PROBES if identity is _PROBE else _STREAMS
        if self._streams[identity] >= most:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"{most} streams with this credential are open already; end some, or have another "
                "made for others: ensemble-server token add",
            )
        self._streams[identity] += 1
        stream = self._live[task] = _Stream(identity, task)
        if identity is _PROBE:
            end = Refused("UNAVAILABLE", f"without a credential {_PROBE_AGE:g} s are the most")
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
        """End the streams whose token was removed or has expired; how many they were."""
        ended = 0
        for stream in list(self._live.values()):
            if stream.identity is _PROBE:
                continue
            if stream.end is None and not self._tokens.stands(stream.identity):
                end = Refused("UNAUTHENTICATED", "the token was removed, or has expired")
                self._end_stream(stream, end)
                ended += 1
        return ended

    # -- authentication and rate limits ---------------------------------------------------------

    def _authenticate(self, context: Any) -> Identity | None:
        """Whom the call comes from; ``None`` without a credential. Raises
        :class:`Unauthenticated`."""
        for key, value in context.invocation_metadata():
            if key == "authorization":
                scheme, _, token = str(value).partition(" ")
                if scheme.lower() != "bearer":
                    raise Unauthenticated(
                        "the credential is not of the form 'Bearer TOKEN'", code="bad-token"
                    )
                identity = self._tokens.identify(token.strip())
                if self._tokens.trouble != self._trouble:
                    self._told_trouble()
                return identity
        return None

    def _told_trouble(self) -> None:
        self._trouble = self._tokens.trouble
        if self._trouble:
            tell("tokens cannot be read; those known before are used", "error", why=self._trouble)

    def _take_turn(self, identity: Identity) -> None:
        key = identity.id or str(identity)
        if self._rates is not None and not self._rates.take(key, self._monotonic()):
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"more than {self._rate:g} requests a second with this credential; wait, or start "
                "the service with a larger --rate",
            )

    # -- error mapping --------------------------------------------------------------------------

    def _refuse(
        self, method: str, identity: Identity | None, context: Any, error: Exception
    ) -> Refused:
        """The status that the caller gets for an error; counted and logged."""
        peer = _host(context)
        if isinstance(error, Refused):
            refused = error.without_traceback()
        elif isinstance(error, Unauthenticated):
            refused = Refused("UNAUTHENTICATED", _sentence(error))
            # Who guesses gets ever less of our time.
            if not self._failures.take(peer, self._monotonic()):
                reason = f"too many wrong credentials from {peer}; wait a second"
                refused = Refused("RESOURCE_EXHAUSTED", reason)
        elif isinstance(error, EnsembleError):
            refused = Refused("INVALID_ARGUMENT", _sentence(error))
        elif isinstance(error, grpc.aio.AbortError):
            raise error
        else:
            refused = Refused("INTERNAL", "a fault in the service; its log says more")
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
            # That the service stops, or a member is away, is nobody's doing who asks.
            "debug" if refused.code == "UNAVAILABLE" else "warning",
            method=method,
            code=refused.code,
            why=refused.message,
            who=str(identity or ""),
            token=identity.id if identity else "",
            peer=peer,
            **more,
        )


#: Stands for all callers of what needs no credential.
_PROBE = Identity("viewer", "")


def _no_credential(named_by_message: bool = False) -> Unauthenticated:
    """The refusal of a call without a credential; ``named_by_message`` where that may be. One for
    each call: what is raised keeps the frames that it went through, and so the calls, in memory."""
    cause = "the call has no 'authorization: Bearer TOKEN'"
    if named_by_message:
        return Unauthenticated(
            "there is no credential",
            cause=f"{cause}, and the member is none of those that need none",
            hint="'ensemble-server start --legacy NS/NAME' names them",
            code="no-token",
        )
    return Unauthenticated(
        "there is no credential",
        cause=cause,
        hint="set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; 'ensemble-server token add' makes tokens",
        code="no-token",
    )


def _behaviour(handler: Any) -> Callable[[Any, Any], Any]:
    """The servicer's method behind one of gRPC's handlers."""
    if not handler.response_streaming:
        return handler.unary_unary  # type: ignore[no-any-return]  # gRPC has no types
    both = handler.request_streaming
    return handler.stream_stream if both else handler.unary_stream  # type: ignore[no-any-return]


def _sentence(error: EnsembleError) -> str:
    parts = (error.what, error.cause, error.hint)
    return "; ".join(part for part in parts if part)


async def _abort(context: Any, refused: Refused) -> None:
    """End the call. gRPC raises its error again by itself; without our frames, by which a call
    would keep itself, and what was sent with it, in memory until Python looks for such circles."""
    try:
        await context.abort(getattr(grpc.StatusCode, refused.code), refused.message)
    except grpc.aio.AbortError as error:
        error.__traceback__ = None


def _host(context: Any) -> str:
    """Where a call comes from, without the port."""
    peer: str = context.peer() or ""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer


def _decode(deserializer: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserializer(data)
    except DecodeError:
        message = f"the message of {len(data)} bytes is none of this method's: it cannot be decoded"
        raise Refused("INVALID_ARGUMENT", message) from None
