"""Emits an executor's events and warnings, and reports each problem once.

Only one thread at a time may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from ensemble_core import Emit, Event, Problem, Resources


class Outlet:
    """Events and messages to emit, in order."""

    def __init__(self, name: str, clock: Callable[[], float], emit: Emit, folder: str) -> None:
        self._name = name
        self._clock = clock
        self._emit = emit
        self._folder = folder  # where the executor keeps records
        self._events: list[Event] = []
        self._troubles: dict[str, str] = {}
        self.unwritten = False  # whether writes to disk fail

    def add(self, events: Iterable[Event]) -> None:
        """Add events for the next :meth:`emit`."""
        self._events.extend(events)

    def emit(self) -> None:
        """Emit the events gathered so far."""
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    def warn(self, message: str, severity: Literal["warning", "error"] = "warning") -> None:
        """Add a message for the user."""
        self._events.append(Problem(self._clock(), message, severity))

    def gauges(self, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """Add the gauges whose values have changed."""
        changed = {path: value for path, value in now.items() if before.get(path) != value}
        if changed:
            self._events.append(Resources(self._clock(), changed))

    @property
    def current_problem(self) -> str:
        """Return the queue's current problem in words, or an empty string."""
        return "; ".join(self._troubles.values())

    def trouble(self, what: str, message: str) -> None:
        """Report that the queue does not answer requests of kind ``what``.

        Only the first problem is reported, until the queue has answered requests of every failed
        kind.
        """
        if not self._troubles:
            self.warn(message)
        self._troubles[what] = message

    def answered(self, what: str) -> None:
        """Note that the queue answers requests of kind ``what``."""
        if self._troubles.pop(what, None) is not None and not self._troubles:
            self.warn(f"{self._name} responds again; the run continues")

    def write(self, what: Callable[[], None]) -> bool:
        """Write something to disk; return whether that worked. A failure is reported once."""
        try:
            what()
        except OSError as error:
            if not self.unwritten:
                self.unwritten = True
                self.warn(
                    f"cannot write to {self._folder} ({error.strerror}): no job is submitted until "
                    "it is writable\n  hint: check the folder's permissions and free disk space"
                )
            return False
        if self.unwritten:
            self.unwritten = False
            self.warn(f"{self._folder} is writable again; submitting continues")
        return True
