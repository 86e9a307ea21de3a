"""gRPC servicer of ``ensemble.v1``: requests of clients, and the streams of members and runs.

``rpc_guard`` authenticates each caller first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from ensemble_service.access import Identity, is_run_name, runs_named
from ensemble_service.access import member_name as _spelt
from ensemble_service.call_errors import Refused
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.resize_requests import Resizes, check_delta
from ensemble_service.router import SILENCE, CallerIdentity, MemberState, Router
from ensemble_service.rpc_guard import caller
from ensemble_service.send_queue import SendQueue, Sized
from ensemble_service.service_log import tell

_LONGEST_NAME = 200
#: Maximum size of a reply about several members, in bytes.
_PAGE = 1_000_000

#: Cached, because the same few members are requested repeatedly.
member_name = lru_cache(4096)(_spelt)

_OUTCOMES = {"granted": 1, "partial": 2, "denied": 3}


class EnsembleServicer(api.EnsembleServicer):
    """Methods of the gRPC service ``ensemble.v1``."""

    def __init__(
        self, router: Router, resizes: Resizes, clock: Callable[[], float] = time.time
    ) -> None:
        self._router = router
        self._resizes = resizes
        self._clock = clock

    def Member(self, requests: Any, context: Any) -> AsyncIterator[pb.ToMember]:  # noqa: N802
        """Serve a member's connection."""
        return member_stream(self._router, caller(), requests, self._clock)

    def Steer(self, requests: Any, context: Any) -> AsyncIterator[pb.ToRun]:  # noqa: N802
        """Serve a run's connection."""
        return steer_stream(self._router, caller(), requests, self._clock)

    async def Resize(self, request: pb.ResizeRequest, context: Any) -> pb.ResizeReply:  # noqa: N802
        """Resize a member."""
        who = caller()
        member = member_name(request.member)
        if not who.may_resize(member):
            raise Refused("PERMISSION_DENIED", f"this credential may not resize {member}")
        if not request.request or len(request.request) > _LONGEST_NAME:
            raise Refused(
                "INVALID_ARGUMENT", f"a request needs a name of at most {_LONGEST_NAME} characters"
            )
        check_delta(request.delta)
        answer = await self._resizes.ask(who, member, request.request, request.delta)
        self._router.changed(member)
        return pb.ResizeReply(
            outcome=_OUTCOMES[answer.outcome],  # type: ignore[arg-type]  # the enum's own numbers
            before=answer.before,
            asked=answer.asked,
            granted=answer.granted,
            reason=answer.reason,
            code=answer.code,
            transient=answer.transient,
        )

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelReply:  # noqa: N802
        """Cancel jobs of a run on a member."""
        who = caller()
        member = member_name(request.member)
        if not is_run_name(request.run):
            raise Refused("INVALID_ARGUMENT", f"{request.run[:100]!r} is not a valid run name")
        if not who.may_steer(member):
            raise Refused("PERMISSION_DENIED", f"this credential may not cancel jobs of {member}")
        named = runs_named(request.run, self._router.runs)
        if len(named) > 1:
            raise Refused(
                "INVALID_ARGUMENT",
                f"{len(named)} runs have the tag {request.run}: name one of {', '.join(named)}",
            )
        run = self._router.runs.get(named[0]) if named else None
        if run is not None and run.owner != who.owner and who.role != "admin":
            raise Refused("PERMISSION_DENIED", f"run {request.run} belongs to another namespace")
        if not self._router.cancel(member, request.run, list(request.jobs)):
            raise Refused("UNAVAILABLE", f"member {member} is not connected")
        tell("cancel", who=str(who), member=member, run=request.run, jobs=len(request.jobs))
        return pb.CancelReply()

    async def GetStatus(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        """Return the status of one member, or of all visible members."""
        who = caller()
        if not request.member:
            return self._page(self._router.statuses(who.may_see), request.after)
        return pb.StatusReply(members=[await self.one(who, member_name(request.member))])

    def _page(self, states: Sequence[MemberState], after: str) -> pb.StatusReply:
        """Return as many of these members, by name, as fit in a message."""
        reply, size = pb.StatusReply(), 0
        for state in states:
            if state.name <= after:
                continue
            status = self._status(state)
            size += status.ByteSize()
            if reply.members and size > _PAGE:
                reply.next = reply.members[-1].member
                break
            reply.members.append(status)
        return reply

    async def one(self, who: Identity, member: str) -> pb.MemberStatus:
        """Return a member's status. Raise :class:`Refused` if nothing is known about the member."""
        if not who.may_see(member):
            raise Refused("PERMISSION_DENIED", f"this credential may not see {member}")
        state = self._router.members.get(member)
        # If the member has never connected, only its size can be known. So retry a failed lookup.
        size = await self._resizes.look(member, doubt=state is None)
        if state is None and size is None:
            raise Refused(
                "NOT_FOUND", (f"nothing is known of member {member}: it has never connected")
            )
        return self._status(state or MemberState(member))

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.MemberStatus]:
        """Send the status of each member, then again on each change."""
        who = caller()
        only = member_name(request.member) if request.member else None
        if only is not None and not who.may_see(only):
            raise Refused("PERMISSION_DENIED", f"this credential may not see {only}")

        def visible(member: str) -> bool:
            return who.may_see(member) if only is None else member == only

        # Subscribe before the first look, so that no change is missed.
        changes = self._router.changes()
        following = asyncio.ensure_future(changes.__anext__())
        await asyncio.sleep(0)
        try:
            for state in self._router.statuses(visible):
                yield self._status(state)
            while True:
                try:
                    member = await following
                except StopAsyncIteration:
                    raise Refused("UNAVAILABLE", "the service stops") from None
                state_now = self._router.members.get(member)
                if state_now is not None and visible(member):
                    yield self._status(state_now)
                following = asyncio.ensure_future(changes.__anext__())
        finally:
            following.cancel()
            await asyncio.wait([following])
            await changes.aclose()  # type: ignore[attr-defined]  # an asynchronous generator

    def _status(self, state: MemberState) -> pb.MemberStatus:
        return pb.MemberStatus(
            member=state.name,
            alive=state.alive,
            last_beat=state.last_beat,
            executor=state.executor,
            host=state.host,
            version=state.version,
            gauges=state.gauges,
            groups=state.groups,
            metrics=state.metrics,
            runs=sorted(state.runs),
            size=self._resizes.size(state.name),
            denied=self._resizes.denied.get(state.name, ""),
        )


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
