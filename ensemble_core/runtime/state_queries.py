"""Lets other threads read the state of a live run, or request an action from it.

The engine's thread answers between two events, so no thread sees a half-handled event.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.requests import check_parameters, refusal
from ensemble_core.errors import UsageError
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Requested
from ensemble_core.runtime.event_check import admitted

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")


class StateQueries:
    """Requests of other threads, which the engine's thread answers."""

    def __init__(self, engine: Engine, tag: str, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._tag = tag
        self._wake = wake
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: True once the engine's thread has ended. Callers then read the state directly.
        self._free = False

    def query(self, function: Callable[[Engine], _T]) -> _T:
        """Call a function with the engine, between two events, and return its result.

        The function must be quick and change nothing. Safe from any thread except the run's own
        thread.
        """
        found: list[_T] = []
        raised: list[BaseException] = []
        done = threading.Event()

        def answer() -> None:
            try:
                found.append(function(self._engine))
            except BaseException as error:  # raised again on the requester's thread
                raised.append(error)
            done.set()

        with self._lock:
            free = self._free
            if not free:
                self._asked.put(answer)
        if free:
            answer()
        else:
            self._wake()
            done.wait()
        if raised:
            raise raised[0]
        return found[0]

    def request(
        self,
        action: Mapping[str, Any],
        by: str,
        clock: Callable[[], float],
        handle: Callable[[Requested], tuple[Decision, ...]],
    ) -> Future[tuple[Decision, ...]]:
        """Request an action. The future receives the decisions, or a :class:`UsageError`.

        ``handle`` is called on the run's thread. Safe from any thread.
        """
        from concurrent.futures import Future

        found: Future[tuple[Decision, ...]] = Future()

        def carry_out() -> tuple[Decision, ...]:
            if self._engine.state.ended is not None:
                raise self._not_live()
            refused = refusal(self._engine.state, action)
            if refused is not None:
                raise refused
            check_parameters(self._engine.state, action)
            try:
                event, _ = admitted(Requested(clock(), by, dict(action)), clock())
            except ValueError as error:
                raise UsageError(f"invalid request: {error}", code="bad-request") from error
            assert isinstance(event, Requested)
            return handle(event)

        def answer() -> None:
            try:
                found.set_result(carry_out())
            except BaseException as error:  # raised again on the requester's thread
                found.set_exception(error)

        with self._lock:
            if not self._free:
                self._asked.put(answer)
                self._wake()
                return found
        found.set_exception(self._not_live())
        return found

    def _not_live(self) -> UsageError:
        hint = "'ensemble run' starts it again; 'ensemble resume' resumes an unfinished one"
        return UsageError(f"run {self._tag} is not live", hint=hint, code="not-under-way")

    def answer(self) -> None:
        """Answer pending requests. Called on the run's thread."""
        while not self._asked.empty():
            self._asked.get()()

    def close(self) -> None:
        """Answer the last requests, when the run has ended or its controller exits."""
        with self._lock:
            self._free = True
        self.answer()
