"""Transactions of the controller: decisions are in the ledger before they are carried out.

The controller's thread decides in transactions. In each, it collects lines for the ledger, and
*effects*: messages to nodes, requests to the outer queue, events for the run. At the end of the
transaction the lines are written and synced, and only then the effects follow. So a later
controller knows everything that has had an effect.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ensemble_core import EnsembleError, Event, ExecutorError, Problem
from ensemble_pilot.ledger import PilotLedger

_T = TypeVar("_T")
#: Seconds after which something that failed is tried again.
_AGAIN = 1.0


class NotYet(EnsembleError):
    """Raised by a call that should be repeated, although nothing is wrong."""


class Worker:
    """Makes calls one after the other in a thread: those that may block."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ensemble-pilot-outer", daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()


class Transaction:
    """The current transaction. ``post`` lets the controller's thread make a call."""

    def __init__(
        self,
        ledger: PilotLedger,
        clock: Callable[[], float],
        emit: Callable[[Sequence[Event]], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.ledger, self.clock, self._pass_on = ledger, clock, emit
        self._events: list[Event] = []
        self.worker = Worker()
        self.post = post
        self._lines: list[list[object]] = []
        self._effects: list[Callable[[], None]] = []
        self._stuck = 0.0
        self._said: set[str] = set()

    def record(self, *line: object) -> None:
        """Write a line to the ledger at the end of this transaction."""
        self._lines.append(list(line))

    def then(self, effect: Callable[[], None]) -> None:
        """Make a call once the lines so far are synced."""
        self._effects.append(effect)

    def emit(self, events: Iterable[Event]) -> None:
        """Emit events at the next :meth:`flush`: many at once cost the run less."""
        self._events += events

    def emit_before(self, event: Event) -> None:
        """Emit an event before those that wait for the next :meth:`flush`."""
        self._events.insert(0, event)

    def flush(self) -> None:
        """Pass events on to the run."""
        if self._events:
            events, self._events = self._events, []
            self._pass_on(events)

    @property
    def wait(self) -> float | None:
        """Seconds until the transaction should end, or ``None``: it is empty."""
        if not self._lines and not self._effects:
            return None
        return max(0.0, self._stuck - time.monotonic()) + 0.001

    @property
    def is_stuck(self) -> bool:
        """True while the ledger cannot be written."""
        return self._stuck > time.monotonic()

    def end(self) -> bool:
        """Sync the lines and carry out the effects. Return False if the ledger cannot be written.

        Nothing is dropped then: the next transaction writes the same lines.
        """
        try:
            if self._lines:
                self.ledger.add(*self._lines)
                self._lines.clear()
            self.ledger.sync()
        except ExecutorError as error:
            self._stuck = time.monotonic() + _AGAIN
            self.problem(f"no job is placed until this works: {error}", once="ledger")
            self.flush()
            return False
        if "ledger" in self._said:
            self._said.discard("ledger")
            self.say("the ledger of pilots can be written again: jobs are placed now")
        effects, self._effects = self._effects, []
        for effect in effects:
            effect()
        self.flush()
        return True

    def say(self, text: str) -> None:
        """Show a line in the run's output."""
        self.emit([Problem(self.clock(), text, "info")])

    def problem(self, text: str, *, once: str = "") -> None:
        """Show a warning. With ``once``, show only the first one with this key."""
        if once not in self._said:
            self._said.update({once} if once else ())
            self.emit([Problem(self.clock(), text)])

    def retry(self, work: Callable[[], _T], then: Callable[[_T], None], trouble: str) -> None:
        """Let the worker do something until it succeeds; then handle the result in this thread."""

        def attempt() -> None:
            try:
                result = work()
            except (EnsembleError, OSError) as error:
                if not isinstance(error, NotYet):
                    text = f"{trouble}: {error}"
                    self.post(lambda: self.problem(text, once=trouble))
                timer = threading.Timer(_AGAIN, lambda: self.worker.post(attempt))
                timer.daemon = True
                timer.start()
            else:
                self.post(lambda: then(result))

        self.worker.post(attempt)
