"""Message reader: a few messages of callers at once, so that what never ends takes no memory.

``rpc_guard`` reads every message by it that a call begins with, once the caller is known. gRPC
makes room for a message only while it is being read: of all others it holds no more than a stream's
window. What an honest caller sends is there at once, so where there are too many without a
credential, who has been reading longest gives way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from ensemble_service.access import Identity
from ensemble_service.refusal import Refused

__all__ = ["MessageReader", "Messages", "NoMessage", "next_message"]

#: Messages that are read at once: of one credential, and of all callers that have none.
_AT_ONCE, _NAMELESS_AT_ONCE = 4, 8
#: Requests of one credential that are read or wait for their turn: each holds a stream's window.
_IN_LINE = 128
#: Credentials whose turns are remembered.
_MOST_READERS = 1_000


class Messages:
    """The messages of a call, as they come: gRPC's own iterator keeps each until the next."""

    def __init__(self, context: Any) -> None:
        self._read: Callable[[], Awaitable[Any]] = context.read

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self._read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        return data  # type: ignore[no-any-return]  # gRPC has no types


class MessageReader:
    """Reads the message that a call begins with. Raises :class:`Refused`."""

    def __init__(self) -> None:
        self._turns: dict[Identity, _Turns] = {}
        self.nameless = _Places(_NAMELESS_AT_ONCE)

    async def read(self, identity: Identity, messages: AsyncIterator[bytes]) -> bytes:
        """A message of a caller that is known."""
        turns = self._turns.get(identity)
        if turns is None:
            if len(self._turns) >= _MOST_READERS:
                self._turns = {who: left for who, left in self._turns.items() if left.in_line}
            turns = self._turns[identity] = _Turns()
        if turns.in_line >= _IN_LINE:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"{_IN_LINE} requests with this credential wait to be read; ask again when some "
                "were answered",
            )
        turns.in_line += 1
        try:
            async with turns.places:
                return await next_message(messages)
        finally:
            turns.in_line -= 1

    async def read_nameless(self, messages: AsyncIterator[bytes]) -> bytes:
        """A message of a caller that is not known."""
        return await self.nameless.read(messages)


class _Turns:
    """Of one credential: who is read, and how many are in line for that, these included."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(_AT_ONCE)
        self.in_line = 0


class _Places:
    """A bounded set of places for messages in work; a newcomer gets the oldest's when all are
    taken."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: Those whose message is being read, the oldest first.
        self._tasks: dict[asyncio.Task[object], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def read(self, messages: AsyncIterator[bytes]) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= self._most:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        self._tasks[task] = None
        try:
            return await next_message(messages)
        except asyncio.CancelledError:
            if task in self._tasks:  # its time is over, or the caller is gone
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            reason = "too many callers without a credential are slow; try again"
            raise Refused("RESOURCE_EXHAUSTED", reason) from None
        finally:
            self._tasks.pop(task, None)


class NoMessage(Refused):
    """The caller has ended its side of the call."""

    def __init__(self) -> None:
        super().__init__("INVALID_ARGUMENT", "the call ended before its message")


async def next_message(messages: AsyncIterator[bytes]) -> bytes:
    """The next message of a call. Raises :class:`NoMessage` where none follows."""
    try:
        return await messages.__anext__()
    except StopAsyncIteration:
        raise NoMessage from None
