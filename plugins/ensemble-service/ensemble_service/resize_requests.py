"""Resize requests: each is carried out once, and a member's requests one after another.

A log in SQLite has the answers for repeated requests, even after a restart of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ensemble_core import EnsembleError, Resized, Resizer
from ensemble_service.access import Identity
from ensemble_service.call_errors import Refused
from ensemble_service.monitoring import Counters
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


#: Maximum number of remembered requests, and the number of old requests dropped at once beyond
#: that.
MOST = 10_000
_FORGOTTEN_AT_ONCE = 100

_ANSWER = ("outcome", "before", "asked", "granted", "reason", "code", "transient")
_COLUMNS = ", ".join(_ANSWER)
_TABLE = f"""
CREATE TABLE IF NOT EXISTS resizes (
  number INTEGER PRIMARY KEY, member TEXT, request TEXT, delta INTEGER, {_COLUMNS}, kept TEXT,
  UNIQUE (member, request))
"""
_BEGIN = "INSERT OR IGNORE INTO resizes (member, request, delta) VALUES (?, ?, ?)"
_ONE = "WHERE member = ? AND request = ?"
_KEEP = f"UPDATE resizes SET kept = ? {_ONE}"
_GET = f"SELECT delta, kept, {_COLUMNS} FROM resizes {_ONE}"
_END = f"UPDATE resizes SET {', '.join(f'{name} = ?' for name in _ANSWER)} {_ONE}"
_FORGET = "DELETE FROM resizes WHERE number <= ?"


@dataclass(frozen=True, slots=True)
class Entry:
    """A resize request and its answer."""

    delta: int
    #: None if not known yet, or if the service was killed while it carried out the request.
    answer: Resized | None = None
    #: What the resizer recorded before the change.
    kept: Mapping[str, Any] | None = None


class ResizeLog:
    """The log of each member's resize requests, with their answers.

    If ``path`` is ``None``, the log is kept in memory. Threads may share a log, but only one
    thread at a time may use it for the same member. Raises :class:`EnsembleError` if the file
    cannot be used.
    """

    def __init__(self, path: Path | None, most: int = MOST) -> None:
        self._path, self._most = path, most
        self._lock = threading.Lock()
        #: Answers that could not be written yet.
        self._unwritten: dict[tuple[str, str], Resized] = {}
        try:
            self._db = _open(path)
        except (sqlite3.Error, OSError) as error:
            raise EnsembleError(
                f"cannot read {path}", cause=str(error), code="cannot-read"
            ) from None

    def begin(self, member: str, request: str, delta: int) -> Entry | None:
        """Record a request before it is carried out, or return its entry if it was begun before.

        Raises :class:`EnsembleError` if the request cannot be recorded; it must then not be carried
        out.
        """
        with self._lock:
            try:
                cursor = self._db.execute(_BEGIN, (member, request, delta))
                if not cursor.rowcount:
                    return self._entry(member, request)
                number = cursor.lastrowid or 0
                if number > self._most and number % _FORGOTTEN_AT_ONCE == 0:
                    self._db.execute(_FORGET, (number - self._most,))
            except sqlite3.Error as error:
                raise self._no_record(error) from None
        return None

    def _no_record(self, error: sqlite3.Error) -> EnsembleError:
        return EnsembleError(
            "cannot record the resize request",
            cause=f"{self._path}: {error}",
            code="no-record",
            transient=True,
        )

    def end(self, member: str, request: str, answer: Resized) -> None:
        """Record the answer. If that fails, keep it in memory and retry later."""
        with self._lock:
            try:
                self._db.execute(_END, (*_values(answer), member, request))
                for key, each in list(self._unwritten.items()):
                    self._db.execute(_END, (*_values(each), *key))
                    del self._unwritten[key]
            except sqlite3.Error:
                self._unwritten[member, request] = answer

    def keep(self, member: str, request: str, kept: Mapping[str, Any]) -> None:
        """Record the step that the resizer is about to take.

        Raises :class:`EnsembleError` if the step cannot be recorded; it must then not be taken.
        """
        with self._lock:
            try:
                self._db.execute(_KEEP, (json.dumps(kept), member, request))
            except sqlite3.Error as error:
                raise self._no_record(error) from None

    def get(self, member: str, request: str) -> Entry | None:
        """Return the entry of a request, or ``None``."""
        with self._lock:
            return self._entry(member, request)

    def _entry(self, member: str, request: str) -> Entry | None:
        row = self._db.execute(_GET, (member, request)).fetchone()
        if row is None:
            return None
        answer = self._unwritten.get((member, request))
        delta, kept, outcome, before, asked, granted, reason, code, transient = row
        if outcome is not None:
            answer = Resized(
                outcome=outcome,
                before=before,
                asked=asked,
                granted=granted,
                reason=reason,
                code=code,
                transient=bool(transient),
            )
        return Entry(delta, answer, json.loads(kept) if kept else None)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:  # make the file private; SQLite's additional files become private too
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        # Use small pages: rows are short, and each change writes whole pages.
        db.execute("PRAGMA page_size = 1024")
        # Only this process uses the folder (see ``state_folder``), so no shared memory is needed.
        # Many network file systems lack it.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        # Sync each commit: a request forgotten in a power cut would be carried out again.
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 4000")
        db.execute(_TABLE)
    except BaseException:
        db.close()
        raise
    return db


def _values(a: Resized) -> tuple[Any, ...]:
    return a.outcome, a.before, a.asked, a.granted, a.reason, a.code, a.transient


#: Seconds until the next attempt if the system cannot start a thread.
_NO_THREAD = 0.2


@dataclass(eq=False, slots=True)
class _KeyLock:
    """Lock that lets calls with the same key run one at a time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0  # number of calls that hold or wait for the lock
    callers: int = 0  # number of these whose caller still waits


class SerialThreads:
    """Runs up to ``most`` calls at a time. Use it on one event loop."""

    def __init__(self, most: int, name: str) -> None:
        self._room, self._name = asyncio.Semaphore(most), name
        self._turns: dict[str, _KeyLock] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def count(self, key: str) -> int:
        """Return the number of callers that wait for a call of this key to end."""
        turn = self._turns.get(key)
        return turn.callers if turn is not None else 0

    @property
    def busy(self) -> Collection[str]:
        """The keys with a call that runs or waits."""
        return self._turns.keys()

    async def call(
        self, key: str, call: Callable[[], _T], then: Callable[[_T], object] | None = None
    ) -> _T:
        """Return the call's result.

        If the caller is cancelled, a call that has not begun is withdrawn, and a call that has
        begun runs to its end. The callback ``then`` gets the result on the event loop, even if the
        caller was cancelled.
        """
        turn = self._turns.setdefault(key, _KeyLock())
        self._idle.clear()
        turn.calls += 1
        turn.callers += 1
        held = contextlib.AsyncExitStack()
        held.callback(self._leave, key, turn)
        try:
            await held.enter_async_context(turn.lock)
            await held.enter_async_context(self._room)
            # From here on the call holds the lock until it ends, even if the caller is cancelled.
            ended = asyncio.ensure_future(self._run(call, then, held.pop_all()))
            ended.add_done_callback(lambda task: task.cancelled() or task.exception())
            return await asyncio.shield(ended)
        finally:
            turn.callers -= 1
            await held.aclose()

    async def idle(self, seconds: float) -> bool:
        """Wait until no call runs or waits. Return False after ``seconds``."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def _leave(self, key: str, turn: _KeyLock) -> None:
        turn.calls -= 1
        if not turn.calls:
            del self._turns[key]
            if not self._turns:
                self._idle.set()

    async def _run(
        self,
        call: Callable[[], _T],
        then: Callable[[_T], object] | None,
        held: contextlib.AsyncExitStack,
    ) -> _T:
        async with held:
            result = await self._in_thread(call)
            if then is not None:
                then(result)
            return result

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[_T] = loop.create_future()

        def run() -> None:
            try:
                land = partial(ended.set_result, call())
            except BaseException as error:
                land = partial(ended.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(lambda: ended.done() or land())

        while True:
            try:
                threading.Thread(target=run, name=self._name, daemon=True).start()
                break
            except RuntimeError as error:
                tell("no thread", "warning", why=str(error))
                await asyncio.sleep(_NO_THREAD)
        return await ended
