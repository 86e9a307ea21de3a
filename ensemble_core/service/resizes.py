"""Calls the resizer: in worker threads, for one member one request at a time, each request once.

The single requests of both protocols come here, on the event loop. A request that is asked again
under its name waits for the same answer, or gets it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ensemble_core.errors import EnsembleError
from ensemble_core.resizer import Resized, Resizer
from ensemble_core.service.access import Identity
from ensemble_core.service.answers import Answers
from ensemble_core.service.guard import Tally
from ensemble_core.service.hub import Refused
from ensemble_core.service.logs import tell

__all__ = ["Resizes", "check_delta"]

#: Threads that call the resizer: so many members can be resized at a time.
_WORKERS = 16
#: Requests that may wait for one member.
_MOST_WAITING = 16
#: The largest change that is taken for one.
_LARGEST = 1_000_000
#: Seconds for which a size that was looked up is told again, and that looking it up may take.
_FRESH = 5.0
_LOOK = 2.0
_MOST_SIZES = 20_000


@dataclass(eq=False, slots=True)
class _Flight:
    """A request that waits for its turn or is under way, and who waits for its answer."""

    who: Identity
    member: str
    request: str
    delta: int
    begun: float = 0.0
    waiters: list[asyncio.Future[Resized]] = field(default_factory=list)


class Resizes:
    """The resizer, or none, behind a line for each member. Belongs to the event loop's thread."""

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
        #: Of each member that is being resized or looked up, who waits for its turn.
        self._lines: dict[str, deque[_Flight]] = {}
        self._sizes: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._looks: dict[str, asyncio.Event] = {}
        self._workers = _Workers(_WORKERS)
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def ask(self, who: Identity, member: str, request: str, delta: int) -> Resized:
        """Have a member resized; ``request`` empty is one that will not be asked again.

        Cancelled while it waits for its turn, it is not carried out; once begun, it is, and its
        answer is kept for who asks again. Raises :class:`Refused`.
        """
        if self.resizer is None:
            self._tally.resizes["denied"] += 1
            return Resized(
                outcome="denied",
                reason="this service can resize nothing: start it with --resizer or --kubernetes",
                code="no-resizer",
            )
        flight = self._flights.get((member, request)) if request else None
        if flight is not None:
            _same(request, flight.delta, delta)
        else:
            known = self._answers.get(member, request) if request else None
            if known is not None:
                _same(request, known.delta, delta)
                return known.answer or await self._cut_short(member)
            flight = self._take_off(_Flight(who, member, request, delta))
        waiter: asyncio.Future[Resized] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            flight.waiters.remove(waiter)
            if not flight.waiters and not flight.begun:
                self._lines[member].remove(flight)
                self._forget(flight)
            raise

    def _take_off(self, flight: _Flight) -> _Flight:
        if self._closed:
            raise Refused("UNAVAILABLE", "the service stops")
        line = self._lines.get(flight.member)
        if line is not None and len(line) >= _MOST_WAITING:
            raise Refused("RESOURCE_EXHAUSTED", f"too many requests wait for {flight.member}")
        if line is None:
            self._begin(flight)
            self._lines[flight.member] = deque()
            self._idle.clear()
        else:
            line.append(flight)
        if flight.request:
            self._flights[flight.member, flight.request] = flight
        return flight

    def _begin(self, flight: _Flight) -> None:
        """Hand it to a worker. Raises :class:`Refused` where it cannot be put on record."""
        if flight.request:
            try:
                self._answers.begin(flight.member, flight.request, flight.delta)
            except EnsembleError as error:
                raise Refused("UNAVAILABLE", f"{error.what}: {error.cause}") from None
        flight.begun = time.monotonic()
        loop = asyncio.get_running_loop()

        def work() -> None:
            answer = self._call(flight.member, flight.delta)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waited for it
                loop.call_soon_threadsafe(self._landed, flight, answer)

        self._workers.put(work)

    def _call(self, member: str, delta: int) -> Resized:
        """In a worker thread: what the resizer answers, whatever becomes of it."""
        assert self.resizer is not None
        try:
            answer = self.resizer.resize(member, delta)
            if not isinstance(answer, Resized):
                raise TypeError(f"it answered {answer!r}")
            return answer
        except Exception as error:  # a plugin's fault is an answer too
            return Resized(
                outcome="denied",
                reason=f"the resizer failed: {type(error).__name__}: {error}"[:500],
                code="resizer-failed",
            )

    def _landed(self, flight: _Flight, answer: Resized) -> None:
        member = flight.member
        if flight.request:
            self._answers.end(member, flight.request, flight.delta, answer)
        if answer.outcome != "denied":
            self._saw(member, answer.granted)
        self._tally.resizes[answer.outcome] += 1
        tell(
            "resize",
            "error" if answer.code == "resizer-failed" else "info",
            who=flight.who,
            member=member,
            request=flight.request,
            delta=flight.delta,
            outcome=answer.outcome,
            before=answer.before,
            granted=answer.granted,
            code=answer.code,
            why=answer.reason,
            seconds=round(time.monotonic() - flight.begun, 3),
        )
        self._forget(flight)
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_result(answer)
        self._next(member)

    def _next(self, member: str) -> None:
        """Begin what waits for this member; one that cannot be begun does not hold up the rest."""
        line = self._lines[member]
        while line:
            flight = line.popleft()
            try:
                self._begin(flight)
                return
            except Refused as refused:
                self._refuse(flight, refused)
        del self._lines[member]
        if not self._lines:
            self._idle.set()

    def _refuse(self, flight: _Flight, refused: Refused) -> None:
        self._forget(flight)
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_exception(refused)

    def _forget(self, flight: _Flight) -> None:
        self._flights.pop((flight.member, flight.request), None)

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
        """The size now, looked up if it was not just seen; as last seen where that takes long, or
        the member is just being resized."""
        seen = self._sizes.get(member)
        if self.resizer is None or (seen and self._clock() - seen[1] < _FRESH):
            return self.size(member)
        over = self._looks.get(member)
        if over is None and member not in self._lines and not self._closed:
            over = self._looks[member] = asyncio.Event()
            self._look_up(self.resizer, member, over)
        if over is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), _LOOK)
        return self.size(member)

    def _look_up(self, resizer: Resizer, member: str, over: asyncio.Event) -> None:
        # Who asks for another size of this member waits meanwhile.
        self._lines[member] = deque()
        self._idle.clear()
        loop = asyncio.get_running_loop()

        def work() -> None:
            size, trouble = None, ""
            try:
                size = resizer.size(member)
            except Exception as error:  # a plugin's fault: the size is not known
                trouble = f"{type(error).__name__}: {error}"
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done, size, trouble)

        def done(size: int | None, trouble: str) -> None:
            if trouble:
                tell("size unknown", "warning", member=member, why=trouble)
            if size is not None:
                self._saw(member, size)
            del self._looks[member]
            over.set()
            self._next(member)

        self._workers.put(work)

    def _saw(self, member: str, size: int) -> None:
        self._sizes[member] = (size, self._clock())
        self._sizes.move_to_end(member)
        if len(self._sizes) > _MOST_SIZES:
            self._sizes.popitem(last=False)

    async def close(self, seconds: float) -> None:
        """Begin nothing more, wait for what is under way, for so long, and give all back."""
        self._closed = True
        for line in self._lines.values():
            while line:
                self._refuse(line.popleft(), Refused("UNAVAILABLE", "the service stops"))
        if not self._idle.is_set():
            try:
                await asyncio.wait_for(self._idle.wait(), max(0.05, seconds))
            except asyncio.TimeoutError:
                tell("resizes were cut short", "warning", members=",".join(self._lines))
        self._workers.close()
        if self.resizer is not None:
            self.resizer.close()
        self._answers.close()


class _Workers:
    """Threads that do what is put to them; as many as are needed, up to ``most``.

    They do not keep the process from ending: a resizer that hangs is left behind.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._works: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def put(self, work: Callable[[], Any]) -> None:
        """Have it done in a thread. ``work`` raises nothing."""
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            name = f"ensemble-resizer-{self._count}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        self._works.put(work)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()
            self._idle.release()

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        for _ in range(self._count):
            self._works.put(None)


def check_delta(delta: int) -> None:
    """Refuse what is no change of a size."""
    if not delta:
        raise Refused("INVALID_ARGUMENT", "a change of 0 nodes is none")
    if abs(delta) > _LARGEST:
        raise Refused("INVALID_ARGUMENT", f"a change of {delta} nodes is more than {_LARGEST}")


def _same(request: str, before: int, delta: int) -> None:
    if before != delta:
        raise Refused(
            "INVALID_ARGUMENT", f"request {request!r} was for {before:+d} nodes, not {delta:+d}"
        )
