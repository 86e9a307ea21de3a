"""Authentication, rate limits, deadlines and error mapping for every RPC: a gRPC interceptor.

Messages are decoded only after their sender is known; whom the call comes from is then
:func:`caller` for the servicer. A refusal, or a fault, ends one call with a status and a reason;
nothing else notices.
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
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ensemble_core import EnsembleError
from ensemble_service.access import Identity, Unauthenticated
from ensemble_service.counters import Counters
from ensemble_service.logs import tell
from ensemble_service.rate_limits import Deadline, RateLimiter
from ensemble_service.refusal import Refused
from ensemble_service.tokens import TokenFile

__all__ = ["RpcGuard", "StandIn", "caller"]

#: Says who asks where there is no credential, by the request; ``None`` for nobody.
StandIn = Callable[[Any], Identity | None]

#: Streams that one credential may have open at a time.
_STREAMS = 1_000
#: Refusals that are logged in a second; of more, only how many there were.
_LOGGED = 20
_LONGEST = 1_000

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


class RpcGuard(grpc.aio.ServerInterceptor):
    """Stands before every method of the server.

    ``rate`` is how many requests a second a credential may make (twice that at once), 0 for any
    number; ``deadline`` how many seconds a single request may take. ``open_services`` need no
    credential; ``stand_ins`` are for methods whose callers may have none.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        rate: float,
        deadline: float,
        counters: Counters,
        open_services: frozenset[str] = frozenset(),
        stand_ins: Mapping[str, StandIn] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._deadline = deadline
        self._counters = counters
        self._open = open_services
        self._stand_ins = stand_ins or {}
        self._monotonic = monotonic
        self._rates = RateLimiter(rate, 2 * rate) if rate else None
        self._failures = RateLimiter(20, 100)
        self._handlers: dict[str, Any] = {}
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
            if guarded is None or service in self._open:
                return guarded
            guarded = self._handlers[path] = self._guarded(path, method, guarded)
        return guarded

    def _guarded(self, path: str, method: str, handler: Any) -> Any:
        if not handler.response_streaming:
            return self._unary(method, handler, self._stand_ins.get(path))
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(method, handler.stream_stream, _decoded, handler),
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_stream_rpc_method_handler(
            self._streaming(method, handler.unary_stream, _decode, handler),
            response_serializer=handler.response_serializer,
        )

    def _unary(self, method: str, handler: Any, stand_in: StandIn | None) -> Any:
        decode, behaviour = handler.request_deserializer, handler.unary_unary
        codes, ok = self._counters.requests, (method, "OK")

        async def handle(data: bytes, context: Any) -> Any:
            identity: Identity | None = None
            deadline = Deadline(self._deadline)
            try:
                identity = self._authenticate(context)
                if identity is None:
                    identity = stand_in(_decode(decode, data)) if stand_in else None
                    if identity is None:
                        raise _NOBODY_LEGACY if stand_in else _NOBODY
                self._take_turn(identity)
                _CALLER.set(identity)
                reply = await behaviour(_decode(decode, data), context)
            except asyncio.CancelledError:
                if not deadline.end():
                    codes[method, "CANCELLED"] += 1
                    raise
                late = Refused("DEADLINE_EXCEEDED", f"it took longer than {self._deadline:.3g} s")
                refused = self._refuse(method, identity, context, late)
            except Exception as error:  # whatever it is, it ends this call and no other
                deadline.end()
                refused = self._refuse(method, identity, context, error)
            else:
                deadline.end()
                codes[ok] += 1
                return reply
            await _abort(context, refused)
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=handler.response_serializer
        )

    def _streaming(
        self,
        method: str,
        behaviour: Callable[[Any, Any], AsyncIterator[Any]],
        decoded: Callable[[Any, Any], Any],
        handler: Any,
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A method that answers with a stream; ``decoded`` is for what it is asked with."""

        async def handle(asked: Any, context: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            identity: Identity | None = None
            stream: _Stream | None = None
            replies: Any = None
            try:
                identity = self._authenticate(context)
                if identity is None:
                    raise _NOBODY
                stream = self._open_stream(identity, task)
                self._take_turn(identity)
                _CALLER.set(identity)
                replies = behaviour(decoded(handler.request_deserializer, asked), context)
                async for reply in replies:
                    await context.write(reply)
                    if not stream.since:  # what was said at first was taken: it takes part
                        stream.since = self._monotonic()
                        tell("connected", method=method, who=identity, peer=_host(context))
                self._counters.requests[method, "OK"] += 1
                return
            except asyncio.CancelledError:
                if stream is None or stream.end is None:
                    self._counters.requests[method, "CANCELLED"] += 1
                    raise
                if sys.version_info >= (3, 11):
                    task.uncancel()
                refused = self._refuse(method, identity, context, stream.end)
            except Exception as error:  # whatever it is, it ends this call and no other
                refused = self._refuse(method, identity, context, error)
            finally:
                if stream is not None:
                    self._close_stream(method, stream)
                if replies is not None:
                    await replies.aclose()
            await _abort(context, refused)

        return handle

    # -- streams --------------------------------------------------------------------------------

    def _open_stream(self, identity: Identity, task: asyncio.Task[Any]) -> _Stream:
        if self._streams[identity] >= _STREAMS:
            raise Refused("RESOURCE_EXHAUSTED", f"{_STREAMS} streams are open already")
        self._streams[identity] += 1
        stream = self._live[task] = _Stream(identity, task)
        return stream

    def _close_stream(self, method: str, stream: _Stream) -> None:
        self._live.pop(stream.task, None)
        self._streams[stream.identity] -= 1
        if not self._streams[stream.identity]:
            del self._streams[stream.identity]
        if stream.since:
            seconds = round(self._monotonic() - stream.since, 1)
            tell("disconnected", method=method, who=stream.identity, seconds=seconds)

    def end_streams_of_removed(self) -> int:
        """End the streams whose token was removed or has expired; how many they were."""
        ended = 0
        for stream in list(self._live.values()):
            if stream.end is None and not self._tokens.stands(stream.identity):
                stream.end = Refused("UNAUTHENTICATED", "the token was removed, or has expired")
                stream.task.cancel()
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
            raise Refused("RESOURCE_EXHAUSTED", "too many requests with this credential; wait")

    # -- error mapping --------------------------------------------------------------------------

    def _refuse(
        self, method: str, identity: Identity | None, context: Any, error: Exception
    ) -> Refused:
        """The status that the caller gets for an error; counted and logged."""
        peer = _host(context)
        if isinstance(error, Refused):
            refused = error
        elif isinstance(error, Unauthenticated):
            refused = Refused("UNAUTHENTICATED", _sentence(error))
            # Who guesses gets ever less of our time.
            if not self._failures.take(peer, self._monotonic()):
                refused = Refused("RESOURCE_EXHAUSTED", "too many wrong credentials from there")
        elif isinstance(error, EnsembleError):
            refused = Refused("INVALID_ARGUMENT", _sentence(error))
        elif isinstance(error, grpc.aio.AbortError):
            raise error
        else:
            refused = Refused("INTERNAL", "a fault in the service; its log says more")
            words = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            tell("fault", "error", method=method, who=str(identity or ""), trace=words)
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
        tell(
            "refused",
            # That the service stops, or a member is away, is nobody's doing who asks.
            "debug" if refused.code == "UNAVAILABLE" else "warning",
            method=method,
            code=refused.code,
            why=refused.message[:_LONGEST],
            who=str(identity or ""),
            token=identity.id if identity else "",
            peer=peer,
            **more,
        )


_NOBODY = Unauthenticated(
    "there is no credential",
    cause="the call has no 'authorization: Bearer TOKEN'",
    hint="set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; 'ensemble-server token add' makes tokens",
    code="no-token",
)

_NOBODY_LEGACY = Unauthenticated(
    "there is no credential",
    cause="the call has no 'authorization: Bearer TOKEN', and the member is none of those that "
    "need none",
    hint="'ensemble-server start --legacy NS/NAME' names them",
    code="no-token",
)


def _sentence(error: EnsembleError) -> str:
    parts = (error.what, error.cause, error.hint)
    return "; ".join(part for part in parts if part)


async def _abort(context: Any, refused: Refused) -> None:
    code = getattr(grpc.StatusCode, refused.code)
    await context.abort(code, refused.message[:_LONGEST])


def _host(context: Any) -> str:
    """Where a call comes from, without the port."""
    peer: str = context.peer() or ""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer


def _decode(deserializer: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserializer(data)
    except DecodeError:
        raise Refused("INVALID_ARGUMENT", "the message cannot be decoded") from None


async def _decoded(
    deserializer: Callable[[bytes], Any], messages: AsyncIterator[bytes]
) -> AsyncIterator[Any]:
    async for data in messages:
        yield _decode(deserializer, data)
