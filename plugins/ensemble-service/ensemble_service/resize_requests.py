"""Resize requests: each is carried out once, and a member's requests one after another."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ensemble_core import EnsembleError, Resized, Resizer
from ensemble_service.access import Identity
from ensemble_service.resize_log import Entry, ResizeLog
from ensemble_service.rpc_error import Refused
from ensemble_service.serial_threads import SerialThreads
from ensemble_service.service_counters import Counters
from ensemble_service.service_log import tell

_T = TypeVar("_T")

#: Number of resizer threads, and so of members that can be resized at a time.
_THREADS = 16
#: Maximum number of requests that wait for one member.
_MOST_WAITING = 16
#: Largest change of one request.
_LARGEST = 1_000_000
#: Seconds for which a size stays cached, and the time limit of a lookup.
_FRESH = 5.0
_LOOK = 2.0
_MOST_SIZES = 20_000
#: Seconds to wait for the log to close.
_CLOSING = 1.0


# Only this layer makes requests idempotent: a repeated request waits until earlier requests of the
# member are answered, and gets its first answer from the log. So Resizer.resize is called once.
class Resizes:
    """Queue of resize requests for each member. Use it on the event loop only."""

    def __init__(
        self,
        resizer: Resizer | None,  # plugin that changes the size of members
        log: ResizeLog,
        counters: Counters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.resizer = resizer
        self._log = log
        self._counters = counters
        self._clock = clock
        self._threads = SerialThreads(_THREADS, "ensemble-resizer")
        self._looks: dict[str, asyncio.Future[int | None]] = {}
        self._sizes: OrderedDict[str, tuple[int | None, float]] = OrderedDict()
        self._closed = False
        #: Why the last request of each member was denied, if it was.
        self.denied: OrderedDict[str, str] = OrderedDict()
        #: The request in progress for each member.
        self._current: dict[str, str] = {}
        if resizer is not None:
            resizer.keep = self._record_step

    def _record_step(self, member: str, kept: Mapping[str, Any]) -> None:
        request = self._current.get(member)
        if request:
            self._log.keep(member, request, kept)

    async def ask(self, who: Identity, member: str, request: str, delta: int) -> Resized:
        """Resize a member. The name ``request`` is empty if the request will not be repeated.

        If the caller is cancelled before the member's turn, the request is not carried out. If the
        caller is cancelled later, the request is carried out, and its answer is kept for a
        repetition. Raises :class:`Refused`.
        """
        if self.resizer is None:
            self._counters.resizes["denied"] += 1
            denied = Resized(
                outcome="denied",
                reason="this service cannot resize: start it with --resizer or --kubernetes",
                code="no-resizer",
            )
            self._remember(member, denied)
            return denied
        if self._threads.count(member) > _MOST_WAITING:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                (f"{_MOST_WAITING} resize requests for {member} are already waiting"),
            )
        call = partial(self._call_resizer, member, request, delta)
        ended = partial(self._on_outcome, who, member, request, delta)
        answer: Resized = (await self._call(member, call, ended))[0]
        return answer

    async def _call(self, member: str, call: Callable[[], _T], then: Callable[[_T], object]) -> _T:
        """Call the resizer in the member's turn, or directly if it never blocks."""
        assert self.resizer is not None
        if self.resizer.waits:
            return await self._threads.call(member, call, then)
        result = call()
        then(result)
        return result

    # -- in a thread, or on the event loop -----------------------------------------------------

    def _call_resizer(self, member: str, request: str, delta: int) -> tuple[Resized, float | None]:
        """Return the answer and the resizer's duration, which is ``None`` if the resizer was not
        called.
        """
        if self._closed:
            raise Refused("UNAVAILABLE", "the service stops")
        if request:
            try:
                known = self._log.begin(member, request, delta)
            except EnsembleError as error:
                reason = f"the service keeps no record: {error.what}: {error.cause}"
                raise Refused("UNAVAILABLE", reason) from None
            if known is not None:
                return self._repeat_answer(member, request, delta, known), None
        self._current[member] = request
        began = time.monotonic()
        assert self.resizer is not None
        try:
            answer = self.resizer.resize(member, delta)
            if not _sound(answer):
                raise TypeError(f"invalid answer of the resizer: {answer!r}")
        except (Exception, SystemExit) as error:  # any fault of a plugin must become an answer
            answer = Resized(
                outcome="denied",
                reason=_plain(f"the resizer failed: {type(error).__name__}: {error}"[:500]),
                code="resizer-failed",
            )
        if request:
            self._log.end(member, request, answer)
        return answer, time.monotonic() - began

    def _repeat_answer(self, member: str, request: str, delta: int, known: Entry) -> Resized:
        """Return the answer to a request that was begun before."""
        if known.delta != delta:
            before = f"request {request!r} was for {known.delta:+d} nodes"
            raise Refused("INVALID_ARGUMENT", f"{before}, not {delta:+d}")
        answer = known.answer or self._decide(member, request, delta, known.kept)
        if answer is not None:
            return answer
        size = self._look_up(member) or 0
        return Resized(
            outcome="denied",
            before=size,
            asked=size,
            granted=size,
            reason=(
                "the service was stopped during this request, and cannot tell whether it "
                "took effect; check the size, and request what is missing under another name"
            ),
            code="interrupted",
        )

    def _decide(
        self, member: str, request: str, delta: int, kept: Mapping[str, Any] | None
    ) -> Resized | None:
        """Return the outcome of a request that a kill of the service interrupted; ``None`` if
        unknown.
        """
        assert self.resizer is not None
        self._current[member] = request
        try:
            answer = self.resizer.decide(member, delta, kept or {})
        except (Exception, SystemExit) as error:  # a plugin's fault: the outcome stays unknown
            tell("resize outcome unknown", "warning", member=member, why=f"{type(error).__name__}")
            return None
        if answer is None or not _sound(answer):
            return None
        self._log.end(member, request, answer)
        return answer

    def _look_up(self, member: str) -> int | None:
        assert self.resizer is not None
        try:
            return self.resizer.size(member)
        except (Exception, SystemExit) as error:  # a plugin's fault: the size is unknown
            tell("size unknown", "warning", member=member, why=f"{type(error).__name__}: {error}")
            return None

    # -- on the event loop ----------------------------------------------------------------------

    def _on_outcome(
        self,
        who: Identity,
        member: str,
        request: str,
        delta: int,
        told: tuple[Resized, float | None],
    ) -> None:
        answer, seconds = told
        if seconds is None:
            return
        if answer.outcome != "denied":
            self._cache_size(member, answer.granted)
        self._counters.resizes[answer.outcome] += 1
        self._remember(member, answer)
        tell(
            "resize",
            "error" if answer.code == "resizer-failed" else "info",
            who=who,
            member=member,
            request=request,
            delta=delta,
            outcome=answer.outcome,
            before=answer.before,
            granted=answer.granted,
            code=answer.code,
            why=answer.reason,
            seconds=round(seconds, 3),
        )

    def _remember(self, member: str, answer: Resized) -> None:
        """Remember why a request was denied, until the member's next successful request."""
        self.denied.pop(member, None)
        if answer.outcome == "denied":
            self.denied[member] = ": ".join(filter(None, (answer.code, answer.reason)))[:500]
            if len(self.denied) > _MOST_SIZES:
                self.denied.popitem(last=False)

    # -- sizes ----------------------------------------------------------------------------------

    def size(self, member: str) -> int | None:
        """Return the last known size."""
        seen = self._sizes.get(member)
        return seen[0] if seen else None

    async def look(self, member: str, *, doubt: bool = False) -> int | None:
        """Look up the size, unless it is cached.

        Returns the last known size if the lookup is slow or the member is being resized. With
        ``doubt``, a cached failure is looked up again.
        """
        if self.resizer is None:
            return None
        seen = self._sizes.get(member)
        if seen and self._clock() - seen[1] < _FRESH and not (doubt and seen[0] is None):
            return seen[0]
        look = self._looks.get(member)
        if look is None and member not in self._threads.busy and not self._closed:
            look = self._looks[member] = asyncio.ensure_future(
                self._call(
                    member, partial(self._look_up, member), partial(self._cache_size, member)
                )
            )
            look.add_done_callback(lambda _: self._looks.pop(member))
        if look is not None:
            await asyncio.wait({look}, timeout=_LOOK)
        return self.size(member)

    def _cache_size(self, member: str, size: int | None) -> None:
        # Failures are cached too.
        self._sizes[member] = (self.size(member) if size is None else size, self._clock())
        self._sizes.move_to_end(member)
        if len(self._sizes) > _MOST_SIZES:
            self._sizes.popitem(last=False)

    async def close(self, seconds: float) -> None:
        """Accept no more requests, wait for those in progress, and release everything.

        Waits at most ``seconds``.
        """
        self._closed = True
        if not await self._threads.idle(max(0.05, seconds)):
            tell("resizes interrupted", "warning", members=",".join(self._threads.busy))
        if self.resizer is not None:
            try:
                self.resizer.close()
            except (
                Exception,
                SystemExit,
            ) as error:  # a plugin's fault
                tell("resizer not closed", "error", why=f"{type(error).__name__}: {error}")
        # Close the log in a thread, because the disk may hang.
        closing = asyncio.ensure_future(self._threads.call("", self._log.close))
        await asyncio.wait({closing}, timeout=_CLOSING)
        closing.cancel()
        for look in self._looks.values():
            look.cancel()


def _sound(answer: object) -> bool:
    """Return whether an answer can be stored and sent. Third-party resizers may return anything."""
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
    """Make text encodable: system messages may contain undecodable bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def check_delta(delta: int) -> None:
    """Reject an invalid change of size."""
    if not delta:
        raise Refused("INVALID_ARGUMENT", "a change of 0 nodes has no effect")
    if abs(delta) > _LARGEST:
        raise Refused("INVALID_ARGUMENT", f"a change of {delta} nodes is more than {_LARGEST}")
