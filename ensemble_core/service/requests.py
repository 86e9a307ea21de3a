"""Single requests: another size, cancel, status, and the watch.

The server hands them here with the identity that the guard has found. Resizers are slow and are
called in worker threads, for one member one at a time; everything else is answered at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ensemble_core.errors import EnsembleError
from ensemble_core.resizer import Resized, Resizer
from ensemble_core.service.access import Identity, member_name
from ensemble_core.service.answers import Answers
from ensemble_core.service.guard import Tally
from ensemble_core.service.hub import Hub, MemberState, Refused
from ensemble_core.service.logs import tell
from ensemble_core.service.proto import ensemble_pb2 as pb

__all__ = ["Requests", "Resizes"]

#: Threads that call the resizer: so many members can be resized at a time.
_WORKERS = 16
#: Requests that may wait for one member.
_MOST_WAITING = 16
#: The largest change that is taken for one.
_LARGEST = 1_000_000
_LONGEST_NAME = 200
#: Seconds for which a size that was looked up is told again, and that looking it up may take.
_FRESH = 5.0
_LOOK = 2.0
_MOST_SIZES = 20_000

_R = TypeVar("_R")

_OUTCOMES = {"granted": 1, "partial": 2, "denied": 3}


@dataclass(eq=False, slots=True)
class _Flight:
    """A request that is under way: who waits for it, and whether the resizer was called."""

    delta: int
    waiting: int = 0
    begun: bool = False
    task: asyncio.Task[Resized] = field(init=False)


class Resizes:
    """Calls the resizer: one request at a time for each member, each request once."""

    def __init__(
        self,
        resizer: Resizer | None,
        answers: Answers,
        tally: Tally,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.resizer = resizer
        self._answers = answers
        self._tally = tally
        self._clock = clock
        self._flights: dict[tuple[str, str], _Flight] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._sizes: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._unnamed = 0

    async def ask(self, who: Identity, member: str, request: str, delta: int) -> Resized:
        """Have a member resized; ``request`` empty is one that will not be asked again.

        Cancelled while it waits for its turn, it is not carried out; once begun, it is, and its
        answer is kept for who asks again.
        """
        if self.resizer is None:
            self._tally.resizes["denied"] += 1
            return Resized(
                outcome="denied",
                reason="this service can resize nothing: start it with --resizer or --kubernetes",
                code="no-resizer",
            )
        if not request:
            self._unnamed += 1
        key = (member, request or f"\0{self._unnamed}")
        flight = self._flights.get(key)
        if flight is None:
            known = self._answers.get(member, request) if request else None
            if known is not None:
                _same(request, known.delta, delta)
                return known.answer or await self._cut_short(member)
            if self._locks.get(member, (None, 0))[1] >= _MOST_WAITING:
                raise Refused("RESOURCE_EXHAUSTED", f"too many requests wait for {member}")
            flight = self._flights[key] = _Flight(delta)
            flight.task = asyncio.create_task(self._in_turn(who, member, request, flight))
            flight.task.add_done_callback(lambda task: self._landed(key, task))
        else:
            _same(request, flight.delta, delta)
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.begun and not flight.task.done():
                self._flights.pop(key, None)  # who asks now begins anew
                flight.task.cancel()

    def _landed(self, key: tuple[str, str], task: asyncio.Task[Resized]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # whoever still waited has been told

    async def _in_turn(self, who: Identity, member: str, request: str, flight: _Flight) -> Resized:
        lock, users = self._locks.get(member, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[member] = (lock, users + 1)
        try:
            async with lock:
                return await self._carry_out(who, member, request, flight)
        finally:
            lock, users = self._locks.pop(member)
            if users > 1:
                self._locks[member] = (lock, users - 1)

    async def _carry_out(
        self, who: Identity, member: str, request: str, flight: _Flight
    ) -> Resized:
        if request:
            try:
                self._answers.begin(member, request, flight.delta)
            except EnsembleError as error:
                raise Refused("UNAVAILABLE", f"{error.what}: {error.cause}") from None
        flight.begun = True
        assert self.resizer is not None
        began = time.monotonic()
        try:
            answer = await self._in_thread(self.resizer.resize, member, flight.delta)
            if not isinstance(answer, Resized):
                raise TypeError(f"the resizer answered {answer!r}")
        except Exception as error:  # a plugin's fault is an answer too
            answer = Resized(
                outcome="denied",
                reason=f"the resizer failed: {type(error).__name__}: {error}"[:500],
                code="resizer-failed",
            )
            tell("resizer failed", "error", member=member, why=answer.reason)
        if request:
            self._answers.end(member, request, flight.delta, answer)
        if answer.outcome != "denied":
            self._saw(member, answer.granted)
        self._tally.resizes[answer.outcome] += 1
        tell(
            "resize",
            who=str(who),
            member=member,
            request=request,
            delta=flight.delta,
            outcome=answer.outcome,
            before=answer.before,
            granted=answer.granted,
            code=answer.code,
            why=answer.reason,
            seconds=round(time.monotonic() - began, 3),
        )
        return answer

    async def _cut_short(self, member: str) -> Resized:
        size = await self.look(member) or 0
        return Resized(
            outcome="denied",
            before=size,
            asked=size,
            granted=size,
            reason="the service was stopped while it carried this out, and does not know whether "
            "it took effect; look at the size, and ask for what is missing under another name",
            code="interrupted",
        )

    # -- sizes ----------------------------------------------------------------------------------

    def size(self, member: str) -> int | None:
        """The size as last seen."""
        seen = self._sizes.get(member)
        return seen[0] if seen else None

    async def look(self, member: str) -> int | None:
        """The size now, looked up if it was not just seen; as last seen where that takes long."""
        seen = self._sizes.get(member)
        if self.resizer is not None and not (seen and self._clock() - seen[1] < _FRESH):
            looking = asyncio.ensure_future(self._in_thread(self.resizer.size, member))
            try:
                size = await asyncio.wait_for(looking, _LOOK)
            except Exception as error:  # a plugin's fault, or it takes too long: not known
                tell("size unknown", "warning", member=member, why=f"{type(error).__name__}")
            else:
                if size is not None:
                    self._saw(member, size)
        return self.size(member)

    def _saw(self, member: str, size: int) -> None:
        self._sizes[member] = (size, self._clock())
        self._sizes.move_to_end(member)
        if len(self._sizes) > _MOST_SIZES:
            self._sizes.popitem(last=False)

    # -- threads --------------------------------------------------------------------------------

    async def _in_thread(self, function: Callable[..., _R], *arguments: object) -> _R:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, "ensemble-resizer")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*arguments))

    async def close(self, seconds: float) -> None:
        """Wait for what is under way, for so long; then give everything back."""
        begun = []
        for flight in list(self._flights.values()):
            if flight.begun:
                begun.append(flight.task)
            else:
                flight.task.cancel()
        if begun:
            await asyncio.wait(begun, timeout=seconds)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self.resizer is not None:
            self.resizer.close()
        self._answers.close()


def _same(request: str, before: int, delta: int) -> None:
    if before != delta:
        raise Refused(
            "INVALID_ARGUMENT", f"request {request!r} was for {before:+d} nodes, not {delta:+d}"
        )


class Requests:
    """The single requests of ``ensemble.v1``."""

    def __init__(self, hub: Hub, resizes: Resizes) -> None:
        self._hub = hub
        self._resizes = resizes

    async def resize(self, who: Identity, request: pb.ResizeRequest) -> pb.ResizeReply:
        """Another size for a member."""
        member = member_name(request.member)
        if not who.may_resize(member):
            raise Refused("PERMISSION_DENIED", f"this credential may not resize {member}")
        if not request.request or len(request.request) > _LONGEST_NAME:
            raise Refused(
                "INVALID_ARGUMENT", f"a request has a name, of at most {_LONGEST_NAME} characters"
            )
        check_delta(request.delta)
        answer = await self._resizes.ask(who, member, request.request, request.delta)
        self._hub.changed(member)
        return pb.ResizeReply(
            outcome=_OUTCOMES[answer.outcome],  # type: ignore[arg-type]  # the enum's own numbers
            before=answer.before,
            asked=answer.asked,
            granted=answer.granted,
            reason=answer.reason,
            code=answer.code,
            transient=answer.transient,
        )

    async def cancel(self, who: Identity, request: pb.CancelRequest) -> pb.CancelReply:
        """Cancel jobs of a run on a member."""
        member = member_name(request.member)
        if not who.may_steer(member) or not who.may_run(request.run):
            raise Refused("PERMISSION_DENIED", f"this credential may not cancel jobs of {member}")
        run = self._hub.runs.get(request.run)
        if run is not None and run.owner != who.owner and who.role != "admin":
            raise Refused("PERMISSION_DENIED", f"run {request.run} belongs to another namespace")
        if not self._hub.cancel(member, request.run, list(request.jobs)):
            raise Refused("UNAVAILABLE", f"member {member} is not connected")
        tell("cancel", who=str(who), member=member, run=request.run, jobs=len(request.jobs))
        return pb.CancelReply()

    async def get_status(self, who: Identity, request: pb.StatusRequest) -> pb.StatusReply:
        """How one member stands, or all that may be seen."""
        if not request.member:
            states = self._hub.statuses(who.may_see)
            return pb.StatusReply(members=[self._status(state) for state in states])
        return pb.StatusReply(members=[await self.one(who, member_name(request.member))])

    async def one(self, who: Identity, member: str) -> pb.MemberStatus:
        """How a member stands. Raises :class:`Refused` where nothing is known of it."""
        if not who.may_see(member):
            raise Refused("PERMISSION_DENIED", f"this credential may not see {member}")
        state = self._hub.members.get(member)
        size = await self._resizes.look(member)
        if state is None and size is None:
            raise Refused("NOT_FOUND", f"nothing is known of member {member}: it never connected")
        return self._status(state or MemberState(member))

    async def watch(
        self, who: Identity, request: pb.WatchRequest
    ) -> AsyncIterator[pb.MemberStatus]:
        """The status of each member, then again whenever it changes."""
        only = member_name(request.member) if request.member else None
        if only is not None and not who.may_see(only):
            raise Refused("PERMISSION_DENIED", f"this credential may not see {only}")

        def visible(member: str) -> bool:
            return who.may_see(member) if only is None else member == only

        # Listened to before the first look, so that no change falls in between.
        changes = self._hub.changes()
        following = asyncio.ensure_future(changes.__anext__())
        await asyncio.sleep(0)
        try:
            for state in self._hub.statuses(visible):
                yield self._status(state)
            while True:
                try:
                    member = await following
                except StopAsyncIteration:
                    raise Refused("UNAVAILABLE", "the service stops") from None
                state_now = self._hub.members.get(member)
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
        )


def check_delta(delta: int) -> None:
    """Refuse what is no change of a size."""
    if not delta:
        raise Refused("INVALID_ARGUMENT", "a change of 0 nodes is none")
    if abs(delta) > _LARGEST:
        raise Refused("INVALID_ARGUMENT", f"a change of {delta} nodes is more than {_LARGEST}")
