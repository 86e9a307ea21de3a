"""Timestamps events of local jobs, and sends them to a file (ledger) and to the controller.

Timestamps strictly increase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ensemble_core.local.ledger import Ledger
from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.protocol import encode_context, encode_event
from ensemble_core.local.slots import Slots
from ensemble_core.model.events import Event, Problem, ResizeOutcome, Resources

#: Function that sends lines with events to the controller.
Deliver = Callable[[Sequence[bytes]], None]


class EventRecorder:
    """Log of the events of one supervisor's jobs."""

    def __init__(
        self,
        clock: Callable[[], float],
        deliver: Deliver,
        slots: Slots,
        ledger: Ledger | None = None,
    ) -> None:
        self.clock = clock
        #: For events of jobs that the controller knows (``LocalJob.reported``), and of no job.
        self.deliver = deliver
        self.ledger = ledger
        #: True while the ledger cannot be written. No job may start then.
        self.failing = False
        self.gauges: Mapping[str, float] = slots.gauges()
        self._slots = slots
        self._occupied = slots.occupied()
        # Time in whole microseconds, because formatting a float takes ten times as long.
        self._last = 0 if ledger is None else int(ledger.newest * 1e6) + 1
        self._lines: list[bytes] = []

    def now(self) -> float:
        """Return the time for a new event. It is later than the times of all earlier events."""
        return self.tick() / 1e6

    def tick(self) -> int:
        """Return the time for a new event, in microseconds."""
        self._last = max(int(self.clock() * 1e6), self._last + 1)
        return self._last

    def ago(self, seconds: float) -> int:
        """Return an earlier time in microseconds, but none before the last event."""
        return max(int((self.clock() - seconds) * 1e6), self._last + 1)

    def add(self, record: LocalJob, *events: str) -> None:
        """Add simultaneous events of a job, encoded by ``protocol.encode_context``."""
        head, now = record.head, self.tick()
        text = ""
        if record.ended:
            time, record.ended = record.ended, 0
            stamp = str(time)
            text = f"{head}{stamp[:-6]}.{stamp[-6:]},{events[0]}]\n"
            now, events = now + 1, events[1:]
        for event in events:
            stamp = str(now)
            text += f"{head}{stamp[:-6]}.{stamp[-6:]},{event}]\n"
            now += 1
        self._last = now - 1
        lines = text.encode("ascii")
        if self.ledger is not None:
            self.ledger.add(record.job.id, lines)
        if record.reported:
            self._lines.append(lines)

    def add_exception(
        self, record: LocalJob, kind: str, note: str, severity: int = 0, **more: str
    ) -> None:
        context = {"type": kind, "severity": severity, "note": note, **more}
        self.add(record, encode_context("exception", context))

    def add_event(self, event: Event) -> None:
        """Add an event that belongs to no job."""
        self._lines.append(encode_event(event))

    def problem(self, message: str, level: Literal["warning", "error"] = "warning") -> None:
        self.add_event(Problem(self.now(), message, level))

    def answer(
        self, request: str, outcome: Literal["granted", "denied"], reason: str, again: bool
    ) -> None:
        """Add the outcome of a resize. With ``again``, the request has been answered before."""
        # Add the gauges before the answer, because the answer may end the run.
        self.add_gauges()
        event = ResizeOutcome(self.now(), request, outcome, self._slots.size, reason)
        if self.ledger is not None and not again:
            self.ledger.answered(event.timestamp, request, outcome, self._slots.size, reason)
        self.add_event(event)

    def add_gauges(self) -> None:
        """Add the gauges that have changed since the last call."""
        occupied = self._slots.occupied()
        if occupied != self._occupied:
            self._occupied = occupied
            gauges = self._slots.gauges()
            values = {k: v for k, v in gauges.items() if self.gauges.get(k) != v}
            self.gauges = gauges
            if values:
                self.add_event(Resources(self.now(), values))

    def flush(self, *, publishing: bool = False) -> bool:
        """Write new events to the ledger. Return True if all events have been written.

        Set ``publishing`` if the events are then sent to the controller.
        """
        ledger = self.ledger
        if ledger is None:
            return True
        written = ledger.flush(self._last / 1e6, publishing=publishing)
        if written is self.failing:
            self.failing = not written
            if written:
                self.problem(f"{ledger.path} can be written again: waiting jobs can start now")
            else:
                self.problem(
                    f"cannot write {ledger.path} ({ledger.failing}): no job starts until this works"
                )
        return written

    @property
    def unpublished(self) -> bool:
        """True if :meth:`publish` has events to send."""
        return bool(self._lines)

    def publish(self) -> None:
        """Write new events to the ledger, then send them to the controller."""
        self.flush(publishing=True)
        if self._lines:
            lines, self._lines = self._lines, []
            self.deliver(lines)
