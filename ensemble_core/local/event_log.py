"""Event log: what happens to jobs, with strictly increasing times, to the ledger, then to the run.

The supervisor's loop owns one :class:`EventLog`. Events are encoded once, as the lines that both
the ledger and the controller get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ensemble_core.local.ledger import Ledger
from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.protocol import encode_context, encode_event
from ensemble_core.local.slots import Slots
from ensemble_core.model.events import Event, Problem, ResizeOutcome, Resources

__all__ = ["Deliver", "EventLog"]

#: Takes the lines of events.
Deliver = Callable[[Sequence[bytes]], None]


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
        self._occupied = slots.occupied()
        # In whole microseconds, whose text costs a tenth of a float's.
        self._last = 0 if ledger is None else int(ledger.newest * 1e6) + 1
        self._lines: list[bytes] = []

    def now(self) -> float:
        """The time for an event, later than that of any before it."""
        return self._tick() / 1e6

    def _tick(self) -> int:
        self._last = max(int(self.clock() * 1e6), self._last + 1)
        return self._last

    def tell(self, record: LocalJob, *events: str) -> None:
        """Events of a job that happen together, each as ``protocol.encode_context`` has it."""
        head, now = record.head, self._tick()
        text = ""
        for event in events:
            text += f"{head}{now // 1_000_000}.{now % 1_000_000:06d},{event}]\n"
            now += 1
        self._last = now - 1
        lines = text.encode("ascii")
        if self.ledger is not None:
            self.ledger.add(record.job.id, lines)
        if record.told:
            self._lines.append(lines)

    def tell_exception(
        self, record: LocalJob, kind: str, note: str, severity: int = 0, **more: str
    ) -> None:
        context = {"type": kind, "severity": severity, "note": note, **more}
        self.tell(record, encode_context("exception", context))

    def say(self, event: Event) -> None:
        """An event that is no job's."""
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
        occupied = self._slots.occupied()
        if occupied != self._occupied:
            self._occupied = occupied
            gauges = self._slots.gauges()
            values = {k: v for k, v in gauges.items() if self.gauges.get(k) != v}
            self.gauges = gauges
            if values:
                self.say(Resources(self.now(), values))

    def flush(self, *, telling: bool = False) -> bool:
        """Write what was told to the ledger; whether all of it is written. ``telling``: it is
        handed on next."""
        ledger = self.ledger
        if ledger is None:
            return True
        written = ledger.flush(self._last / 1e6, telling=telling)
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

    @property
    def unpublished(self) -> bool:
        """True if something was told that :meth:`publish` has not handed on."""
        return bool(self._lines)

    def publish(self) -> None:
        """Write what was told, then hand it on."""
        self.flush(telling=True)
        if self._lines:
            lines, self._lines = self._lines, []
            self.deliver(lines)
