"""Outlet of an executor: what it tells its run; it reports each problem once.

Used by ``BatchExecutor``, and by executors of queues that have a loop of their own. Whoever owns
it calls it from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from ensemble_core import Emit, Event, Problem, Resources

__all__ = ["Outlet"]


class Outlet:
    """The events and messages to hand on, in order. ``name`` is the queue's name in messages,
    ``folder`` where its executor keeps records. ``unwritten`` is true while the disk does not take
    them."""

    def __init__(self, name: str, clock: Callable[[], float], emit: Emit, folder: str) -> None:
        self._name = name
        self._clock = clock
        self._emit = emit
        self._folder = folder
        self._events: list[Event] = []
        self._troubles: dict[str, str] = {}
        self.unwritten = False

    def add(self, events: Iterable[Event]) -> None:
        """Tell these at the next :meth:`emit`."""
        self._events.extend(events)

    def emit(self) -> None:
        """Emit the events gathered so far."""
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    def warn(self, message: str, severity: Literal["warning", "error"] = "warning") -> None:
        """Something that the user must hear of."""
        self._events.append(Problem(self._clock(), message, severity))

    def gauges(self, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """Gauges of the queue that have another value than before."""
        changed = {path: value for path, value in now.items() if before.get(path) != value}
        if changed:
            self._events.append(Resources(self._clock(), changed))

    @property
    def trouble_now(self) -> str:
        """The queue's present trouble in words; empty if there is none."""
        return "; ".join(self._troubles.values())

    def trouble(self, what: str, message: str) -> None:
        """The queue does not do ``what`` it is asked (a word for it): said once for all of that,
        until it does everything again."""
        if not self._troubles:
            self.warn(message)
        self._troubles[what] = message

    def answered(self, what: str) -> None:
        """The queue does ``what`` it is asked."""
        if self._troubles.pop(what, None) is not None and not self._troubles:
            self.warn(f"{self._name} does again what it is asked: the run goes on")

    def write(self, what: Callable[[], None]) -> bool:
        """Write something down; whether the disk has taken it. That it does not is said once."""
        try:
            what()
        except OSError as error:
            if not self.unwritten:
                self.unwritten = True
                self.warn(
                    f"{self._folder} cannot be written ({error.strerror}): no job is submitted "
                    "until it can\n  hint: make room there"
                )
            return False
        if self.unwritten:
            self.unwritten = False
            self.warn(f"{self._folder} can be written again: jobs are submitted again")
        return True
