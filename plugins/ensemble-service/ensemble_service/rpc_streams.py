"""Long-lived gRPC streams of the service: one for each connected member or run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.router import SILENCE, CallerIdentity, Router
from ensemble_service.rpc_error import Refused
from ensemble_service.send_queue import SendQueue, Sized

#: Seconds within which a new stream must send its first message.
_HELLO = 10.0

_M = TypeVar("_M", bound=Sized)
_R = TypeVar("_R", pb.FromMember, pb.FromRun)


async def member_stream(
    router: Router,
    who: CallerIdentity,
    requests: AsyncIterator[pb.FromMember],
    clock: Callable[[], float],
) -> AsyncIterator[pb.ToMember]:
    """Serve a member's connection. Raise :class:`Refused` to end it with an error."""
    first = await _first(requests, "hello")
    link = router.join(who, first.hello, clock())
    del first
    last = looked = clock()
    loop = asyncio.get_running_loop()
    watch: asyncio.TimerHandle

    async def read() -> None:
        nonlocal last
        async for message in requests:
            last = clock()
            router.from_member(link, message, last)
            del message  # don't keep a large message until the next arrives

    def look() -> None:
        nonlocal watch, last, looked
        now = clock()
        if abs(now - looked) > SILENCE * 3 / 4:  # the service was blocked, not the peer
            last = now
        looked = now
        if now - last > SILENCE:
            reason = f"{link.name} was silent for {SILENCE:g} s"
            link.send_queue.close(Refused("DEADLINE_EXCEEDED", reason))
        watch = loop.call_later(SILENCE / 4, look)

    watch = loop.call_later(SILENCE / 4, look)
    reader = asyncio.create_task(_read_to_end(link.send_queue, read()))
    try:
        async for message in _sent(link.send_queue):
            yield message
    finally:
        watch.cancel()
        router.leave(link)
        reader.cancel()


async def steer_stream(
    router: Router,
    who: CallerIdentity,
    requests: AsyncIterator[pb.FromRun],
    clock: Callable[[], float],
) -> AsyncIterator[pb.ToRun]:
    """Serve a run's connection. Raise :class:`Refused` to end it with an error."""
    first = await _first(requests, "begin")
    link = router.begin(who, first.begin)
    del first

    async def read() -> None:
        async for message in requests:
            router.from_run(link, message)
            del message

    reader = asyncio.create_task(_read_to_end(link.send_queue, read()))
    try:
        async for message in _sent(link.send_queue):
            yield message
    finally:
        router.end(link)
        reader.cancel()


async def _first(requests: AsyncIterator[_R], wanted: str) -> _R:
    """Return the first message. Raise :class:`Refused` if it is not of the kind ``wanted``."""
    try:
        first = await asyncio.wait_for(requests.__anext__(), _HELLO)
    except StopAsyncIteration:
        came = "nothing"
    except asyncio.TimeoutError:
        message = f"no message in the first {_HELLO:g} s of the stream"
        raise Refused("DEADLINE_EXCEEDED", message) from None
    else:
        came = first.WhichOneof("what") or "an empty message"
        if came == wanted:
            return first
    raise Refused("INVALID_ARGUMENT", f"the stream began with {came}, expected {wanted}")


async def _sent(send_queue: SendQueue[_M]) -> AsyncIterator[_M]:
    """Yield the messages to send until the queue ends. Raise the reason for the end."""
    while True:
        # Take one message at a time, because waiting batches can still grow.
        message = send_queue.take()
        if message is not None:
            yield message
        elif send_queue.closed:
            return
        else:
            await send_queue.wait()


async def _read_to_end(send_queue: SendQueue[_M], reading: Awaitable[None]) -> None:
    """Read until the stream ends or fails, and close the connection with the error, if any."""
    try:
        await reading
    except Refused as refused:
        send_queue.close(refused.without_traceback())
    finally:
        send_queue.close()
