"""Limits on requests: rates (token buckets), deadlines, and messages that are read at a time.

``rpc_guard`` applies them, and limits the number of streams.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf
from typing import Any

import grpc.aio

from ensemble_service.access import Identity
from ensemble_service.call_errors import Refused


class RateLimiter:
    """Rate limiter with a token bucket for each key.

    To limit memory, only the most recently used keys are stored.
    """

    def __init__(
        self,
        rate: float,  # tokens per second
        burst: float,  # size of a bucket
        most: int = 20_000,  # maximum number of keys
    ) -> None:
        self._rate, self._burst, self._most = rate, max(1.0, burst), most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        """Take a token. Return False if none is left."""
        level, since = self._levels.get(key, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1.0
        self._levels[key] = (level - 1.0 if allowed else level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return allowed


class Deadline:
    """Cancels the current task after a time (``asyncio.timeout``, which Python 3.10 lacks).

    If the caller has set a shorter deadline, gRPC itself cancels the request at that time.
    """

    __slots__ = ("_timer", "exceeded", "seconds", "task")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task, self.exceeded = task, False
        self._timer: asyncio.TimerHandle | None = None
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """Restart with this many seconds; infinity for no deadline."""
        self.seconds = seconds
        if self._timer is not None:
            self._timer.cancel()
        if seconds < inf and not self.exceeded:
            self._timer = self.task.get_loop().call_later(max(0.0, seconds), self._exceed)

    def _exceed(self) -> None:
        self.exceeded = True
        self.task.cancel()

    def end(self) -> bool:
        """End the request. Return whether the deadline cancelled it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.exceeded and sys.version_info >= (3, 11):
            self.task.uncancel()
        return self.exceeded


#: Maximum number of messages read at once: per credential, and for all callers without a
#: credential.
_AT_ONCE, _NAMELESS_AT_ONCE = 4, 8
#: Maximum number of requests of one credential that are read or queued. Each holds a stream window.
_IN_LINE = 128
#: Number of credentials whose queues are remembered.
_MOST_READERS = 1_000


class Messages:
    """Iterator over the messages of a call.

    Unlike gRPC's own iterator, it keeps no reference to a returned message, so that the message
    can be freed before the next one arrives.
    """

    def __init__(self, context: Any) -> None:
        self._read: Callable[[], Awaitable[Any]] = context.read

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self._read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        return data  # type: ignore[no-any-return]  # gRPC has no types


# gRPC allocates memory for a message only while the message is read. Before that, a call holds at
# most one HTTP/2 flow control window.
class MessageReader:
    """Reads the first message of each call. Raises :class:`Refused` if too many calls wait."""

    def __init__(self) -> None:
        self._turns: dict[Identity, _Turns] = {}
        self.nameless = _Places(_NAMELESS_AT_ONCE)

    async def read(self, identity: Identity, messages: AsyncIterator[bytes]) -> bytes:
        """Read a message of a known caller."""
        turns = self._turns.get(identity)
        if turns is None:
            if len(self._turns) >= _MOST_READERS:
                self._turns = {who: left for who, left in self._turns.items() if left.in_line}
            turns = self._turns[identity] = _Turns()
        if turns.in_line >= _IN_LINE:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"{_IN_LINE} requests with this credential are already queued; try again later",
            )
        turns.in_line += 1
        try:
            async with turns.places:
                return await next_message(messages)
        finally:
            turns.in_line -= 1

    async def read_nameless(self, messages: AsyncIterator[bytes]) -> bytes:
        """Read a message of an unknown caller."""
        return await self.nameless.read(messages)


class _Turns:
    """Limit on the messages of one credential that are read at the same time."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(_AT_ONCE)
        self.in_line = 0


# If the set is full, a new message replaces the oldest. An honest caller's message arrives at once,
# so it is hardly ever the oldest.
class _Places:
    """A bounded set of messages that are being read, from callers without a credential."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: The messages being read, oldest first.
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
            if task in self._tasks:  # it timed out, or the caller is gone
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            reason = "too many callers without a credential are slow; try again"
            raise Refused("RESOURCE_EXHAUSTED", reason) from None
        finally:
            self._tasks.pop(task, None)


class EndOfMessages(Refused):
    """The caller has closed its side of the call."""

    def __init__(self) -> None:
        super().__init__("INVALID_ARGUMENT", "the call ended before its message")


async def next_message(messages: AsyncIterator[bytes]) -> bytes:
    """Return the next message of a call. Raise :class:`EndOfMessages` after the last."""
    try:
        return await messages.__anext__()
    except StopAsyncIteration:
        raise EndOfMessages from None
