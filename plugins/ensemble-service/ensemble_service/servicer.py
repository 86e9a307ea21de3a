"""gRPC servicer of ``ensemble.v1``: answers clients, member agents and runs.

``rpc_guard`` authenticates each caller first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Any

from ensemble_service import rpc_streams
from ensemble_service.access import Identity, is_run_name, runs_named
from ensemble_service.access import member_name as _spelt
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.resize_requests import Resizes, check_delta
from ensemble_service.router import MemberState, Router
from ensemble_service.rpc_error import Refused
from ensemble_service.rpc_guard import caller
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
        return rpc_streams.member_stream(self._router, caller(), requests, self._clock)

    def Steer(self, requests: Any, context: Any) -> AsyncIterator[pb.ToRun]:  # noqa: N802
        """Serve a run's connection."""
        return rpc_streams.steer_stream(self._router, caller(), requests, self._clock)

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
