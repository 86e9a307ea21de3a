"""Message reader: a few messages of callers at once, so that what never ends takes no memory.

``rpc_guard`` reads every message by it that a call begins with, once the caller is known. gRPC
makes room for a message only while it is being read: of all others it holds no more than a stream's
window. What an honest caller sends is there at once, so where there are too many without a
credential, who has been reading longest gives way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from ensemble_service.access import Identity
from ensemble_service.refusal import Refused

__all__ = ["MessageReader", "NoMessage", "next_message"]

#: Messages that are read at once: of one credential, and of all callers that have none.
_AT_ONCE, _NAMELESS_AT_ONCE = 8, 16
#: Credentials whose turns are remembered.
_MOST_READERS = 1_000


class MessageReader:
    """Reads the message that a call begins with. Raises :class:`Refused`."""

    def __init__(self) -> None:
        self._turns: dict[Identity, asyncio.Semaphore] = {}
        self.nameless = _Places(_NAMELESS_AT_ONCE)

    async def read(self, identity: Identity, messages: AsyncIterator[bytes]) -> bytes:
        """A message of a caller that is known."""
        turns = self._turns.get(identity)
        if turns is None:
            if len(self._turns) >= _MOST_READERS:
                self._turns = {who: left for who, left in self._turns.items() if left.locked()}
            turns = self._turns[identity] = asyncio.Semaphore(_AT_ONCE)
        async with turns:
            return await next_message(messages)

    async def read_nameless(self, messages: AsyncIterator[bytes]) -> bytes:
        """A message of a caller that is not known."""
        return await self.nameless.read(messages)


class _Places:
    """So many messages at once; who comes when all places are taken gets the oldest's."""

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
        super().__init__("INVALID_ARGUMENT", "there is no message")


async def next_message(messages: AsyncIterator[bytes]) -> bytes:
    """The next message of a call. Raises :class:`NoMessage` where none follows."""
    try:
        return await messages.__anext__()
    except StopAsyncIteration:
        raise NoMessage from None
