"""Calls the resizer: for one member one request at a time, each request once; in worker threads,
but for one that says that it never waits.

The single requests of both protocols come here, on the event loop. A request that is asked again
under its name waits for the same answer, or gets it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ensemble_core import EnsembleError, Resized, Resizer
from ensemble_service.access import Identity
from ensemble_service.logs import tell
from ensemble_service.resize_log import Answers
from ensemble_service.rpc_guard import Tally
from ensemble_service.send_queue import Refused
from ensemble_service.workers import Workers

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
#: Seconds until a thread is tried to be had again.
_NO_WORKER = 0.2


@dataclass(eq=False, slots=True)
class _Flight:
    """A request that waits for its turn or is under way, and who waits for its answer."""

    who: Identity
    request: str
    delta: int
    seconds: float = 0.0
    refused: Refused | None = None
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


#: What a worker did: its line, the item, what came of it, and whether the line is at its end.
_Landing = tuple[_Line, "_Flight | _Look | None", Any, bool]


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
        self._landings: deque[_Landing] = deque()
        self._called = False
        self._sizes: OrderedDict[str, tuple[int | None, float]] = OrderedDict()
        self._workers = Workers(_WORKERS)
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

    # -- in a worker thread, or here ------------------------------------------------------------

    def _set_to_work(self, line: _Line) -> None:
        # After what else arrived with it: then one worker takes it all at once.
        asyncio.get_running_loop().call_soon(self._hand_over, line)

    def _hand_over(self, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        if self.resizer is not None and not self.resizer.waits:
            self._called = True  # nobody need be: it is heard of here
            self._work(line, loop)
            self._land()
            return
        try:
            self._workers.put(lambda: self._work(line, loop))
        except RuntimeError as error:  # no thread to be had: what waits may wait a little longer
            tell("no worker", "warning", member=line.member, why=str(error))
            loop.call_later(_NO_WORKER, self._hand_over, line)

    def _work(self, line: _Line, loop: asyncio.AbstractEventLoop) -> None:
        """Do what waits in the line, one after the other: no other worker has it."""
        item = self._next(line)
        if item is None:
            self._tell(loop, (line, None, None, True))
        while item is not None:
            done: Any
            if isinstance(item, _Look):
                done = self._look_up(line, item)
                following = self._next(line)
            elif item.refused is not None:
                done = item.refused
                following = self._next(line)
            else:
                done = self._do(line.member, item)
                following = self._next(line, item, done)
            self._tell(loop, (line, item, done, following is None))
            item = following

    def _next(
        self, line: _Line, ended: _Flight | None = None, answer: Resized | None = None
    ) -> _Flight | _Look | None:
        """Take what is next, and put it on record, with the answer to what has ended before it."""
        try:
            item = line.waiting.popleft()
        except IndexError:
            item = None
        begun = item if isinstance(item, _Flight) and item.request else None
        over = (ended.request, ended.delta, answer) if ended and ended.request and answer else None
        try:
            self._answers.turn(line.member, over, (begun.request, begun.delta) if begun else None)
        except EnsembleError as error:
            assert begun is not None
            begun.refused = Refused(
                "UNAVAILABLE", f"the service keeps no record: {error.what}: {error.cause}"
            )
        return item

    def _tell(self, loop: asyncio.AbstractEventLoop, landing: _Landing) -> None:
        self._landings.append(landing)
        # Looked at after the news is there: whoever is about to look finds it, or is called.
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waited for it
                loop.call_soon_threadsafe(self._land)

    def _do(self, member: str, flight: _Flight) -> Resized:
        """What the resizer answers."""
        assert self.resizer is not None
        began = time.monotonic()
        try:
            answer = self.resizer.resize(member, flight.delta)
            if not _sound(answer):
                raise TypeError(f"it answered {answer!r}")
        except (Exception, SystemExit) as error:  # a plugin's fault is an answer too
            answer = Resized(
                outcome="denied",
                reason=_plain(f"the resizer failed: {type(error).__name__}: {error}"[:500]),
                code="resizer-failed",
            )
        flight.seconds = time.monotonic() - began
        return answer

    def _look_up(self, line: _Line, look: _Look) -> int | None:
        assert self.resizer is not None
        try:
            return self.resizer.size(line.member)
        except (Exception, SystemExit) as error:  # a plugin's fault: the size is not known
            look.trouble = f"{type(error).__name__}: {error}"
            return None

    # -- on the event loop ----------------------------------------------------------------------

    def _land(self) -> None:
        """Take notice of what the workers have done."""
        self._called = False
        while self._landings:
            line, item, done, last = self._landings.popleft()
            if item is not None:
                line.count -= 1
                if isinstance(item, _Look):
                    self._looked(line, item, done)
                else:
                    self._landed(line.member, item, done)
            if last:
                self._finished(line)

    def _finished(self, line: _Line) -> None:
        """A worker found nothing more to do for a member."""
        if self.resizer is None or self.resizer.waits:
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

    async def look(self, member: str, *, doubt: bool = False) -> int | None:
        """The size now, looked up if it was not just seen; as last seen where that takes long, or
        the member is just being resized. With ``doubt``, that it could not be known just now is
        not believed: it is looked up again."""
        if self.resizer is None:
            return None
        seen = self._sizes.get(member)
        if seen and self._clock() - seen[1] < _FRESH and not (doubt and seen[0] is None):
            return seen[0]
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
        # That it cannot be known is remembered too: it is not asked again at once.
        self._saw(line.member, self.size(line.member) if size is None else size)
        line.look = None
        look.over.set()

    def _saw(self, member: str, size: int | None) -> None:
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
            try:
                self.resizer.close()
            except (Exception, SystemExit) as error:  # a plugin's fault: the service ends anyway
                tell("resizer not closed", "error", why=f"{type(error).__name__}: {error}")
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


def _sound(answer: object) -> bool:
    """Whether an answer is one that can be kept and told: a resizer may be anybody's."""
    if not isinstance(answer, Resized):
        return False
    counts = (answer.before, answer.asked, answer.granted)
    texts: tuple[object, ...] = (answer.outcome, answer.reason, answer.code)
    return (
        answer.outcome in ("granted", "partial", "denied")
        and all(type(each) is int and abs(each) < 1 << 63 for each in counts)
        and all(isinstance(each, str) and _plain(each) == each for each in texts)
        and isinstance(answer.transient, bool)
    )


def _plain(text: str) -> str:
    """Text that can be sent: what the system names may have bytes of no encoding in it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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
