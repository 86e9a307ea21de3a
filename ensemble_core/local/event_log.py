"""What the supervisor tells: events with strictly increasing times, to the ledger, then to the run.

The supervisor's loop owns one :class:`EventLog`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from ensemble_core.local.job_record import JobRecord
from ensemble_core.local.ledger import Ledger
from ensemble_core.local.protocol import encode_event
from ensemble_core.local.slots import Slots
from ensemble_core.model.events import Event, JobEvent, Problem, ResizeOutcome, Resources

__all__ = ["Deliver", "EventLog"]

#: Takes events and the lines that they are in the ledger and on the wire.
Deliver = Callable[[Sequence[Event], Sequence[bytes]], None]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class EventLog:
    """``deliver`` hears of jobs whose record says ``told``, and of all that is no job's.

    ``failing`` says that the ledger cannot be written, so that nothing may be started.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        deliver: Deliver,
        slots: Slots,
        ledger: Ledger | None = None,
    ) -> None:
        self.clock = clock
        self.deliver = deliver
        self.ledger = ledger
        self.failing = False
        self.gauges: Mapping[str, float] = slots.gauges()
        self._slots = slots
        self._last = 0.0 if ledger is None else ledger.newest
        self._events: list[Event] = []
        self._lines: list[bytes] = []

    def now(self) -> float:
        """The time for an event, later than that of any before it."""
        self._last = max(self.clock(), math.nextafter(self._last, math.inf))
        return self._last

    def tell(
        self,
        record: JobRecord,
        name: str,
        context: Mapping[str, Any] = _NOTHING,
        *extra: object,
    ) -> None:
        """An event of a job; ``extra`` is for the ledger."""
        event = JobEvent(self.now(), record.job.id, name, context)
        text = encode_event(event, extra)
        if self.ledger is not None:
            self.ledger.add(record.job.id, text)
        if record.told:
            self._events.append(event)
            self._lines.append(text)

    def tell_exception(self, record: JobRecord, kind: str, note: str, severity: int = 0) -> None:
        self.tell(record, "exception", {"type": kind, "severity": severity, "note": note})

    def say(self, event: Event) -> None:
        """An event that is no job's."""
        self._events.append(event)
        self._lines.append(encode_event(event))

    def problem(self, message: str, level: Literal["warning", "error"] = "warning") -> None:
        self.say(Problem(self.now(), message, level))

    def answer(
        self, request: str, outcome: Literal["granted", "denied"], reason: str, again: bool
    ) -> None:
        """The outcome of a resize; ``again`` that it was decided before."""
        # Before the answer: a run that waits for nothing but that may end with it.
        self.tell_gauges()
        event = ResizeOutcome(self.now(), request, outcome, self._slots.size, reason)
        if self.ledger is not None and not again:
            self.ledger.answered(event.timestamp, request, outcome, self._slots.size, reason)
        self.say(event)

    def tell_gauges(self) -> None:
        """The gauges that changed since they were last told."""
        gauges = self._slots.gauges()
        if gauges != self.gauges:
            values = {k: v for k, v in gauges.items() if self.gauges.get(k) != v}
            self.say(Resources(self.now(), values))
            self.gauges = gauges

    def flush(self) -> bool:
        """Write what was told to the ledger; whether all of it is written."""
        ledger = self.ledger
        if ledger is None:
            return True
        written = ledger.flush(self._last)
        if written is self.failing:
            self.failing = not written
            if written:
                self.problem(f"{ledger.path} can be written again: jobs start again")
            else:
                self.problem(
                    f"{ledger.path} cannot be written ({ledger.failing}): no job is started until"
                    " it can"
                )
        return written

    def publish(self) -> None:
        """Write what was told, then hand it on."""
        self.flush()
        if self._events:
            events, self._events = self._events, []
            lines, self._lines = self._lines, []
            self.deliver(events, lines)
