"""Thread pool for an event loop, with an order: of one key one call at a time, in the order asked.

Made for ``resizes``, which calls a plugin that may take long. A thread takes all that waits for a
key at once, and the event loop hears of it at once: of calls that take microseconds that costs half
of a lock for each key and ``run_in_executor``. The threads do not keep the process from ending, as
those of :mod:`concurrent.futures` do: a call that hangs is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ensemble_service.logs import tell

__all__ = ["SerialThreads"]

#: Seconds until a thread is tried to be had again.
_NO_THREAD = 0.2

_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class _Call:
    """A call, who waits for it, and who is told of what came of it in any case."""

    call: Callable[[], Any]
    future: asyncio.Future[Any]
    then: Callable[[Any], object] | None
    result: Any = None
    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class _Line:
    """The calls of a key. A thread takes from ``waiting`` what it begins; what the event loop takes
    out before that is never begun. ``count`` is of those that somebody waits for."""

    key: str
    waiting: deque[_Call] = field(default_factory=deque)
    count: int = 0


class _Landing(NamedTuple):
    """A call that is over, and whether nothing more waited for its key."""

    line: _Line
    call: _Call | None
    last: bool


class SerialThreads:
    """Up to ``most`` threads, started when they are needed. Belongs to the event loop's thread."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._lines: dict[str, _Line] = {}
        self._ready: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
        self._threads = 0
        #: What is over and the event loop has not heard of; whether it was called.
        self._landings: deque[_Landing] = deque()
        self._called = False
        self._idle = asyncio.Event()
        self._idle.set()

    def count(self, key: str) -> int:
        """Of how many calls of a key somebody waits for the end."""
        line = self._lines.get(key)
        return line.count if line is not None else 0

    @property
    def busy(self) -> Collection[str]:
        """The keys for which something is done or waits."""
        return self._lines.keys()

    async def call(
        self, key: str, call: Callable[[], _T], then: Callable[[_T], object] | None = None
    ) -> _T:
        """The result of the call. Cancelled before its turn, it is not called; once begun, it is
        carried out. ``then`` is called with the result on the event loop, also where nobody
        waits."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        asked = _Call(call, future, then)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
            self._idle.clear()
            self._start_soon(line)
        line.count += 1
        line.waiting.append(asked)
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it was begun
                line.waiting.remove(asked)
            raise
        finally:
            line.count -= 1

    async def idle(self, seconds: float) -> bool:
        """Wait until nothing is done and nothing waits; whether that came in time."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        for _ in range(self._threads):
            self._ready.put(None)

    def _start_soon(self, line: _Line) -> None:
        # After what else arrived with it: then one thread takes it all at once.
        asyncio.get_running_loop().call_soon(self._start, line, asyncio.get_running_loop())

    def _start(self, line: _Line, loop: asyncio.AbstractEventLoop) -> None:
        if self._threads < min(len(self._lines), self._most):
            name = f"{self._name}-{self._threads + 1}"
            thread = threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
            try:
                thread.start()
                self._threads += 1
            except RuntimeError as error:
                if not self._threads:  # what waits may wait a little longer
                    tell("no thread", "warning", why=str(error))
                    loop.call_later(_NO_THREAD, self._start, line, loop)
                    return
        self._ready.put(line)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (line := self._ready.get()) is not None:
            asked = _next(line)
            if asked is None:  # cancelled meanwhile
                self._tell(loop, _Landing(line, None, True))
            while asked is not None:
                try:
                    asked.result = asked.call()
                except BaseException as error:  # told to who waits
                    asked.error = error
                following = _next(line)
                self._tell(loop, _Landing(line, asked, following is None))
                asked = following

    def _tell(self, loop: asyncio.AbstractEventLoop, landing: _Landing) -> None:
        self._landings.append(landing)
        # Looked at after the news is there: whoever is about to look finds it, or is called.
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waited for it
                loop.call_soon_threadsafe(self._land)

    def _land(self) -> None:
        """On the event loop: what the threads have done."""
        self._called = False
        while self._landings:
            line, asked, last = self._landings.popleft()
            if asked is not None:
                self._tell_who_waits(asked)
            if last and line.waiting:  # it came meanwhile
                self._start_soon(line)
            elif last:
                del self._lines[line.key]
                if not self._lines:
                    self._idle.set()

    def _tell_who_waits(self, asked: _Call) -> None:
        if asked.error is None and asked.then is not None:
            asked.then(asked.result)
        if asked.future.done():  # cancelled
            return
        if asked.error is not None:
            asked.future.set_exception(asked.error)
        else:
            asked.future.set_result(asked.result)


def _next(line: _Line) -> _Call | None:
    try:
        return line.waiting.popleft()
    except IndexError:
        return None
