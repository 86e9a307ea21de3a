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
    request: str
    delta: int
    seconds: float = 0.0
    waiters: list[asyncio.Future[Resized]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Look:
    """A size that is looked up; ``over`` is set when it is."""

    trouble: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class _Line:
    """What is to be done for one member, in order. A worker takes from ``waiting`` what it begins;
    what the event loop takes out before that is never begun. ``count`` is what is not over."""

    member: str
    waiting: deque[_Flight | _Look] = field(default_factory=deque)
    count: int = 0
    look: _Look | None = None


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
        #: The members for which something is done or waits.
        self._lines: dict[str, _Line] = {}
        #: What workers have done and the event loop has not heard of; whether it was called.
        self._landings: deque[tuple[_Line, Any, Any]] = deque()
        self._called = False
        self._sizes: OrderedDict[str, tuple[int, float]] = OrderedDict()
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
            flight = self._take_off(member, _Flight(who, request, delta))
        waiter: asyncio.Future[Resized] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            flight.waiters.remove(waiter)
            line = self._lines.get(member)
            if not flight.waiters and line is not None:
                with contextlib.suppress(ValueError):  # it was begun
                    line.waiting.remove(flight)
                    line.count -= 1
                    self._forget(member, flight)
            raise

    def _take_off(self, member: str, flight: _Flight) -> _Flight:
        if self._closed:
            raise Refused("UNAVAILABLE", "the service stops")
        line = self._lines.get(member)
        if line is not None and line.count > _MOST_WAITING:
            raise Refused("RESOURCE_EXHAUSTED", f"too many requests wait for {member}")
        if flight.request:
            self._flights[member, flight.request] = flight
        self._put(member, flight)
        return flight

    def _put(self, member: str, item: _Flight | _Look) -> _Line:
        line = self._lines.get(member)
        new = line is None
        if line is None:
            line = self._lines[member] = _Line(member)
            self._idle.clear()
        line.count += 1
        line.waiting.append(item)
        if new:
            self._set_to_work(line)
        return line

    # -- in a worker thread ---------------------------------------------------------------------

    def _set_to_work(self, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        self._workers.put(lambda: self._work(line, loop))

    def _work(self, line: _Line, loop: asyncio.AbstractEventLoop) -> None:
        """Do what waits in the line, one after the other: no other worker has it."""
        while True:
            try:
                item = line.waiting.popleft()
            except IndexError:
                self._tell(loop, line, None, None)
                return
            done = self._look_up(line, item) if isinstance(item, _Look) else self._do(line, item)
            self._tell(loop, line, item, done)

    def _tell(self, loop: asyncio.AbstractEventLoop, line: _Line, item: Any, done: Any) -> None:
        self._landings.append((line, item, done))
        # Looked at after the news is there: whoever is about to look finds it, or is called.
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waited for it
                loop.call_soon_threadsafe(self._land)

    def _do(self, line: _Line, flight: _Flight) -> Resized | Refused:
        """What the resizer answers, on record before and after."""
        assert self.resizer is not None
        if flight.request:
            try:
                self._answers.begin(line.member, flight.request, flight.delta)
            except EnsembleError as error:
                return Refused(
                    "UNAVAILABLE", f"the service keeps no record: {error.what}: {error.cause}"
                )
        began = time.monotonic()
        try:
            answer = self.resizer.resize(line.member, flight.delta)
            if not isinstance(answer, Resized):
                raise TypeError(f"it answered {answer!r}")
        except Exception as error:  # a plugin's fault is an answer too
            answer = Resized(
                outcome="denied",
                reason=f"the resizer failed: {type(error).__name__}: {error}"[:500],
                code="resizer-failed",
            )
        flight.seconds = time.monotonic() - began
        if flight.request:
            self._answers.end(line.member, flight.request, flight.delta, answer)
        return answer

    def _look_up(self, line: _Line, look: _Look) -> int | None:
        assert self.resizer is not None
        try:
            return self.resizer.size(line.member)
        except Exception as error:  # a plugin's fault: the size is not known
            look.trouble = f"{type(error).__name__}: {error}"
            return None

    # -- on the event loop ----------------------------------------------------------------------

    def _land(self) -> None:
        """Take notice of what the workers have done."""
        self._called = False
        while self._landings:
            line, item, done = self._landings.popleft()
            if item is None:
                self._finished(line)
                continue
            line.count -= 1
            if isinstance(item, _Look):
                self._looked(line, item, done)
            else:
                self._landed(line.member, item, done)

    def _finished(self, line: _Line) -> None:
        """A worker found nothing more to do for a member."""
        self._workers.done()
        if line.waiting:  # it came meanwhile
            self._set_to_work(line)
            return
        del self._lines[line.member]
        if not self._lines:
            self._idle.set()

    def _landed(self, member: str, flight: _Flight, done: Resized | Refused) -> None:
        self._forget(member, flight)
        if isinstance(done, Refused):
            self._refuse(flight, done)
            return
        if done.outcome != "denied":
            self._saw(member, done.granted)
        self._tally.resizes[done.outcome] += 1
        tell(
            "resize",
            "error" if done.code == "resizer-failed" else "info",
            who=flight.who,
            member=member,
            request=flight.request,
            delta=flight.delta,
            outcome=done.outcome,
            before=done.before,
            granted=done.granted,
            code=done.code,
            why=done.reason,
            seconds=round(flight.seconds, 3),
        )
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_result(done)

    def _refuse(self, flight: _Flight, refused: Refused) -> None:
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_exception(refused)

    def _forget(self, member: str, flight: _Flight) -> None:
        self._flights.pop((member, flight.request), None)

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
        line = self._lines.get(member)
        look = line.look if line is not None else None
        if line is None and not self._closed:
            look = _Look()
            self._put(member, look).look = look
        if look is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(look.over.wait(), _LOOK)
        return self.size(member)

    def _looked(self, line: _Line, look: _Look, size: int | None) -> None:
        if look.trouble:
            tell("size unknown", "warning", member=line.member, why=look.trouble)
        if size is not None:
            self._saw(line.member, size)
        line.look = None
        look.over.set()

    def _saw(self, member: str, size: int) -> None:
        self._sizes[member] = (size, self._clock())
        self._sizes.move_to_end(member)
        if len(self._sizes) > _MOST_SIZES:
            self._sizes.popitem(last=False)

    async def close(self, seconds: float) -> None:
        """Begin nothing more, wait for what is under way, for so long, and give all back."""
        self._closed = True
        for line in self._lines.values():
            self._send_away(line)
        if not self._idle.is_set():
            try:
                await asyncio.wait_for(self._idle.wait(), max(0.05, seconds))
            except asyncio.TimeoutError:
                tell("resizes were cut short", "warning", members=",".join(self._lines))
        self._workers.close()
        if self.resizer is not None:
            self.resizer.close()
        self._answers.close()

    def _send_away(self, line: _Line) -> None:
        while True:
            try:
                item = line.waiting.popleft()
            except IndexError:
                return
            line.count -= 1
            if isinstance(item, _Look):
                self._looked(line, item, None)
            else:
                self._forget(line.member, item)
                self._refuse(item, Refused("UNAVAILABLE", "the service stops"))


class _Workers:
    """Threads that do what is put to them; as many as are needed, up to ``most``.

    They do not keep the process from ending: a resizer that hangs is left behind. Whoever puts work
    says when it is done, on the same thread, so that counting needs no lock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._works: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._busy = 0
        self._count = 0

    def put(self, work: Callable[[], Any]) -> None:
        """Have it done in a thread. ``work`` raises nothing."""
        self._busy += 1
        if self._count < min(self._busy, self._most):
            self._count += 1
            name = f"ensemble-resizer-{self._count}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        self._works.put(work)

    def done(self) -> None:
        """One that was put is over."""
        self._busy -= 1

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()

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
