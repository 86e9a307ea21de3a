"""Daemon threads for an event loop's blocking calls: one call at a time per key, in order.

Unlike with ``run_in_executor``, the process can end while a call hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ensemble_service.service_log import tell

#: Seconds until the next attempt if the system cannot start a thread.
_NO_THREAD = 0.2

_T = TypeVar("_T")


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
