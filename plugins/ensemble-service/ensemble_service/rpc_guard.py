"""What stands before every request: who asks, how often, how long it may take, and what is said
when it is refused.

The server wraps each handler in a :class:`Guard`. Messages are decoded only after their sender is
known. A refusal ends one call with a status and a reason; nothing else notices.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ensemble_core import EnsembleError
from ensemble_service.access import Identity, TokenFile, Unknown
from ensemble_service.logs import tell
from ensemble_service.rate_limits import Buckets, Deadlines
from ensemble_service.send_queue import Refused

__all__ = ["Guard", "Tally"]

_Q = TypeVar("_Q", bound=Message)

#: Streams that one credential may have open at a time.
_STREAMS = 1_000
#: Refusals that are logged in a second; of more, only how many there were.
_LOGGED = 20
_LONGEST = 1_000


class Tally:
    """What was counted since the start; read by the metrics."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()  # method, name of the status
        self.resizes: Counter[str] = Counter()  # outcome


@dataclass(eq=False, slots=True)
class _Live:
    """A stream that is open. ``end`` says why it was ended by us; ``since`` when, by a clock of its
    own, it was first answered, 0 for not yet."""

    identity: Identity
    task: asyncio.Task[Any]
    end: Refused | None = None
    since: float = 0.0


class Guard:
    """Wraps handlers for gRPC.

    ``rate`` is how many requests a second a credential may make (twice that at once), 0 for any
    number; ``deadline`` how many seconds a request may take.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        rate: float,
        deadline: float,
        tally: Tally,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._deadlines = Deadlines(deadline)
        self._tally = tally
        self._monotonic = monotonic
        self._buckets = Buckets(rate, 2 * rate) if rate else None
        self._failures = Buckets(20, 100)
        self._live: dict[asyncio.Task[Any], _Live] = {}
        self._streams: Counter[Identity] = Counter()
        self._logs = Buckets(_LOGGED, _LOGGED)
        self._unlogged = 0
        self._trouble = ""

    # -- handlers -------------------------------------------------------------------------------

    def unary(
        self,
        method: str,
        request: type[_Q],
        answer: Callable[[Identity, _Q], Awaitable[Message]],
        *,
        stand_in: Callable[[_Q], Identity | None] | None = None,
    ) -> Any:
        """A handler for single requests. ``stand_in`` says who asks when there is no credential."""
        codes, deadlines = self._tally.requests, self._deadlines
        ok = (method, "OK")

        async def handle(data: bytes, context: Any) -> Message:
            identity: Identity | None = None
            task = deadlines.begin()
            try:
                identity = self._identity(context)
                if identity is None:
                    identity = stand_in(_decode(request, data)) if stand_in else None
                    if identity is None:
                        raise _NOBODY_OLD if stand_in else _NOBODY
                self._turn(identity)
                reply = await answer(identity, _decode(request, data))
            except asyncio.CancelledError:
                if not deadlines.end(task):
                    codes[method, "CANCELLED"] += 1
                    raise
                refused = self._refuse(method, identity, context, deadlines.refusal())
            except Exception as error:  # whatever it is, it ends this call and no other
                deadlines.end(task)
                refused = self._refuse(method, identity, context, error)
            else:
                deadlines.end(task)
                codes[ok] += 1
                return reply
            await _abort(context, refused)
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=_encode)

    def unary_stream(
        self,
        method: str,
        request: type[_Q],
        answers: Callable[[Identity, _Q], AsyncIterator[Message]],
    ) -> Any:
        """A handler for a request with a stream of answers."""

        async def handle(data: bytes, context: Any) -> None:
            def start(identity: Identity) -> AsyncIterator[Message]:
                self._turn(identity)
                return answers(identity, _decode(request, data))

            await self._stream(method, context, start)

        return grpc.unary_stream_rpc_method_handler(handle, response_serializer=_encode)

    def stream_stream(
        self,
        method: str,
        request: type[_Q],
        answers: Callable[[Identity, AsyncIterator[_Q]], AsyncIterator[Message]],
    ) -> Any:
        """A handler for streams in both directions."""

        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            def start(identity: Identity) -> AsyncIterator[Message]:
                self._turn(identity)
                return answers(identity, _decoded(request, requests))

            await self._stream(method, context, start)

        return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_encode)

    def closed(self, handler: Any) -> Any:
        """A handler of someone else's service (reflection), for those with a credential only."""
        inner = handler.stream_stream

        async def handle(requests: Any, context: Any) -> Any:
            try:
                identity = self._identity(context)
                if identity is None:
                    raise _NOBODY
                self._turn(identity)
            except Exception as error:
                await _abort(context, self._refuse("Reflection", None, context, error))
            async for reply in inner(requests, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(
            handle, handler.request_deserializer, handler.response_serializer
        )

    async def _stream(
        self, method: str, context: Any, start: Callable[[Identity], AsyncIterator[Message]]
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        identity: Identity | None = None
        live: _Live | None = None
        replies: Any = None
        try:
            identity = self._identity(context)
            if identity is None:
                raise _NOBODY
            if self._streams[identity] >= _STREAMS:
                raise Refused("RESOURCE_EXHAUSTED", f"{_STREAMS} streams are open already")
            self._streams[identity] += 1
            live = self._live[task] = _Live(identity, task)
            replies = start(identity)
            async for reply in replies:
                await context.write(reply)
                if not live.since:  # what was said at first was taken: it takes part
                    live.since = self._monotonic()
                    tell("connected", method=method, who=identity, peer=_host(context))
            self._tally.requests[method, "OK"] += 1
            return
        except asyncio.CancelledError:
            if live is None or live.end is None:
                self._tally.requests[method, "CANCELLED"] += 1
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            refused = self._refuse(method, identity, context, live.end)
        except Exception as error:  # whatever it is, it ends this call and no other
            refused = self._refuse(method, identity, context, error)
        finally:
            if live is not None:
                self._live.pop(task, None)
                self._streams[live.identity] -= 1
                if not self._streams[live.identity]:
                    del self._streams[live.identity]
                if live.since:
                    seconds = round(self._monotonic() - live.since, 1)
                    tell("disconnected", method=method, who=identity, seconds=seconds)
            if replies is not None:
                await replies.aclose()
        await _abort(context, refused)

    # -- who asks -------------------------------------------------------------------------------

    def _identity(self, context: Any) -> Identity | None:
        """Whom the call comes from; ``None`` without a credential. Raises :class:`Unknown`."""
        for key, value in context.invocation_metadata():
            if key == "authorization":
                scheme, _, token = str(value).partition(" ")
                if scheme.lower() != "bearer":
                    raise Unknown(
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

    def _turn(self, identity: Identity) -> None:
        key = identity.id or str(identity)
        if self._buckets is not None and not self._buckets.take(key, self._monotonic()):
            raise Refused("RESOURCE_EXHAUSTED", "too many requests with this credential; wait")

    # -- what is refused ------------------------------------------------------------------------

    def _refuse(
        self, method: str, identity: Identity | None, context: Any, error: Exception
    ) -> Refused:
        """What the caller is told, counted and logged."""
        peer = _host(context)
        if isinstance(error, Refused):
            refused = error
        elif isinstance(error, Unknown):
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
        self._tally.requests[method, refused.code] += 1
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
        ident = identity.id if identity else ""
        tell(
            "refused",
            # That the service stops, or a member is away, is nobody's doing who asks.
            "debug" if refused.code == "UNAVAILABLE" else "warning",
            method=method,
            code=refused.code,
            why=refused.message[:_LONGEST],
            who=str(identity or ""),
            token=ident,
            peer=peer,
            **more,
        )

    def end_streams_of_removed(self) -> int:
        """End the streams whose token was removed or has expired; how many they were."""
        ended = 0
        for live in list(self._live.values()):
            if live.end is None and not self._tokens.stands(live.identity):
                live.end = Refused("UNAUTHENTICATED", "the token was removed, or has expired")
                live.task.cancel()
                ended += 1
        return ended


_NOBODY = Unknown(
    "there is no credential",
    cause="the call has no 'authorization: Bearer TOKEN'",
    hint="set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; 'ensemble-server token add' makes tokens",
    code="no-token",
)

_NOBODY_OLD = Unknown(
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


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


def _decode(kind: type[_Q], data: bytes) -> _Q:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise Refused("INVALID_ARGUMENT", "the message cannot be decoded") from None
    return message


async def _decoded(kind: type[_Q], messages: AsyncIterator[bytes]) -> AsyncIterator[_Q]:
    async for data in messages:
        yield _decode(kind, data)
