"""Send queue of one connection, with a limit on the bytes that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from ensemble_service.call_errors import Refused
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.wire import MOST_BYTES, MOST_ITEMS

#: Maximum number of bytes that wait for the connections of one credential.
_MOST_WAITING = 64_000_000

_M = TypeVar("_M", bound="Sized")


class Sized(Protocol):
    """A protobuf message, which knows its size in bytes."""

    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's name


class _Waiting(Generic[_M]):
    """A message and its size."""

    # ``member`` is set for a batch of events that can be extended.
    __slots__ = ("member", "message", "size")

    def __init__(self, message: _M, size: int, member: str = "") -> None:
        self.message, self.size, self.member = message, size, member


class SendQueue(Generic[_M]):
    """Messages for one connection, in order."""

    def __init__(self, of_one: WeakSet[SendQueue[Any]] | None = None) -> None:
        #: The queues of all connections with the same credential. They share a limit: above it, the
        #: connection with the largest backlog is closed.
        self._of_one = WeakSet() if of_one is None else of_one
        self._of_one.add(self)
        self._waiting: deque[_Waiting[_M]] = deque()
        self.bytes = 0
        self._news = asyncio.Event()
        self._end: Refused | None = None
        self.closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: _M) -> None:
        """Add a message. May close the connection with the largest backlog.

        The closed peer reconnects, and senders repeat what was not acknowledged.
        """
        if self._room(size := message.ByteSize()):
            self._waiting.append(_Waiting(message, size))
            self._news.set()

    def _room(self, size: int) -> bool:
        """Reserve ``size`` bytes. Return whether there was room."""
        if self.closed:
            return False
        self.bytes += size
        # Check the total only if this backlog is large: small backlogs cannot reach the limit.
        if self.bytes > _MOST_WAITING // 64:
            sizes = {each: each.bytes for each in self._of_one}
            if sum(sizes.values()) > _MOST_WAITING:
                max(sizes, key=sizes.__getitem__).drop()
        return not self.closed

    def drop(self) -> None:
        """Close the connection and discard its backlog."""
        self._waiting.clear()
        self.bytes = 0
        reason = (
            f"more than {_MOST_WAITING:,} bytes wait for the connections of this credential, "
            "most of them for this one: read faster, or reconnect"
        )
        self.close(Refused("RESOURCE_EXHAUSTED", reason))

    def close(self, end: Refused | None = None) -> None:
        """Accept no more messages. The reader gets the waiting messages, then ``end``."""
        if not self.closed:
            self.closed, self._end = True, end
            self._news.set()

    def take(self) -> _M | None:
        """Return the next message, or ``None``. When empty and closed, raise the reason."""
        if self._waiting:
            return self._next().message
        if self._end is not None:
            raise self._end.without_traceback()
        if not self.closed:
            self._news.clear()
        return None

    def _next(self) -> _Waiting[_M]:
        waiting = self._waiting.popleft()
        self.bytes -= waiting.size
        return waiting

    async def wait(self) -> None:
        """Wait until there is a message or the queue is closed."""
        await self._news.wait()


class RunSendQueue(SendQueue[pb.ToRun]):
    """Send queue for a run, which merges waiting batches of events from the same member."""

    def __init__(self, of_one: WeakSet[SendQueue[Any]] | None = None) -> None:
        super().__init__(of_one)
        #: For each member, the last waiting batch, unless a different message about the member
        #: follows it.
        self._newest: dict[str, _Waiting[pb.ToRun]] = {}

    def put_about(self, member: str, message: pb.ToRun) -> None:
        """Add a message about a member. Later batches of the member stay behind this message."""
        self._newest.pop(member, None)
        self.put(message)

    def put_batch(self, batch: pb.Batch) -> None:
        """Add events of a member."""
        newest = self._newest.get(batch.member)
        if newest is not None and _follows(newest, batch):
            if self._room(size := batch.ByteSize()):
                newest.message.batch.events.MergeFrom(batch.events)
                newest.size += size
            return
        message = pb.ToRun(batch=batch)
        if self._room(size := message.ByteSize()):
            waiting = self._newest[batch.member] = _Waiting(message, size, batch.member)
            self._waiting.append(waiting)
            self._news.set()

    def _next(self) -> _Waiting[pb.ToRun]:
        waiting = super()._next()
        if waiting.member and self._newest.get(waiting.member) is waiting:
            del self._newest[waiting.member]
        return waiting


def _follows(waiting: _Waiting[pb.ToRun], batch: pb.Batch) -> bool:
    """Return whether a batch continues the waiting batch and both fit in one message."""
    held = waiting.message.batch
    count = len(held.events)
    return (
        held.first + count == batch.first
        and held.life == batch.life
        and count + len(batch.events) <= MOST_ITEMS
        and waiting.size + batch.ByteSize() <= MOST_BYTES
    )
