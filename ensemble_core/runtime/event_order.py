"""Check of job events against the executor's contract: known jobs, in order, in time.

Most events keep the contract, which :meth:`OrderCheck.keeps` sees at a glance. Any other is
reported once of each kind, as a defect of the executor, and corrected where that cannot change how
the job ended. The engine and the journal get the corrected events, so a replay makes the same
decisions. A corrected time stays in the event's context as ``told_at``: a resume asks the executor
by it. Called by the controller, on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_steps import STEPS
from ensemble_core.errors import to_author
from ensemble_core.model.events import Event, JobEvent, Problem
from ensemble_core.plugin.executor import Executor

__all__ = ["TIMED", "OrderCheck"]

_E = TypeVar("_E", bound=Event)

#: Seconds by which the clock of a queue may be ahead of ours. Members' are corrected by whole
#: seconds, with a tolerance of 5 s.
_AHEAD = 10.0
#: Seconds before its submission at which nothing can have happened to a job, whatever the clocks.
_DAY = 86400.0
#: What lies at least between two events of a job, in seconds.
_STEP = 1e-6
#: The order of a job's events; a fatal exception comes before what it ends.
_ORDER = ("submit", "validate", "depend", "alloc", "start", "exception", "finish", "free", "clean")
_SUBMIT = STEPS["submit"].once
#: Those whose times are counted with.
TIMED = frozenset({"submit", "start", "finish", "clean"})


class OrderCheck:
    """The check of one run's events; ``take`` works in at once what is to be reported.

    No event after ``latest`` is taken before :meth:`in_time` has seen it.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        name: str,
        take: Callable[[Event], object],
        clock: Callable[[], float],
    ) -> None:
        self.latest = 0.0
        self._engine = engine
        self._executor = executor
        self._name = name
        self._take = take
        self._clock = clock
        self._reported: set[str] = set()

    def in_time(self, event: _E) -> _E:
        """The event, at the present if it lies in the future."""
        now = self._clock()
        self.latest = now + _AHEAD
        if event.timestamp <= self.latest:
            return event
        self._report(
            "future",
            f"{_named(event)} came {event.timestamp - now:.0f} s before its time",
            "it counts as of now. If the queue is on another machine, let both keep time by NTP",
        )
        return _at(event, now)

    def keeps(self, event: JobEvent, record: JobRecord) -> bool:
        """True if an event of this job needs no closer look; only the first and those in ``TIMED``
        may."""
        name = event.name
        if record.newest == 0.0 and name != "submit":
            return name == "exception"
        time = event.timestamp
        if name == "start":
            return time >= record.submitted and bool(record.seen & _SUBMIT)
        if name == "finish":
            return record.started is not None and time >= record.started
        if name == "clean":
            return (record.outcome is not None or record.exception is not None) and time >= (
                record.finished or record.started or record.submitted - _DAY
            )
        return time > record.submitted - _DAY

    def corrected(
        self, event: JobEvent, record: JobRecord | None, together: Sequence[Event]
    ) -> Iterator[Event]:
        """The events to be worked in instead of one that does not keep the contract, each once the
        one before is worked in. ``together`` are the events that came with it."""
        if record is None:
            if self._is_unknown(event.job):
                self._report(
                    "unknown",
                    f"{_named(event)} is of no job that this run has submitted",
                    "it is dropped",
                )
            else:
                yield event  # late news of a job that is over
            return
        if event.job in self._engine.state.table.groups[record.job.group].held:
            return  # it is not in the queue, or not again: late news of what a stop cancelled
        if self._is_echo(event, record):
            yield event
            return
        # While a stop is in force, records do not say what was heard.
        if self._engine.state.stop is None:
            earlier = self._missing(event, record, together)
            if earlier:
                names = ", ".join(each.name for each in earlier)
                self._report(
                    "order", f"{_named(event)} came before {names}", "they are put in order"
                )
                for each in earlier:
                    yield self._timed(self.in_time(each), record)
            yield from self._left_out(event, record)
        yield self._timed(event, record)

    def _left_out(self, event: JobEvent, record: JobRecord) -> Iterator[Event]:
        """The submit that must have been; a word about an end that is not known."""
        name = event.name
        needs = name in _ORDER and name not in ("submit", "exception")
        if needs and not record.seen & _SUBMIT and record.exception is None:
            self._report(
                "submit",
                f"{_named(event)} came without a submit",
                "it counts as submitted when this run decided it",
            )
            time, when = event.timestamp, record.submitted
            if when - _DAY < time < when:
                when = time  # by a clock that is a little behind
            yield _at(JobEvent(time - _STEP, event.job, "submit"), when)
        ended = record.outcome is not None or record.exception is not None
        if name == "finish" and record.started is None and not ended:
            self._report(
                "start", f"{_named(event)} came without a start", "its duration is not known"
            )
        elif name == "clean" and not ended:
            self._report(
                "finish",
                f"{_named(event)} came without a finish or a fatal exception",
                "how the job ended is not known, and it counts as failed (unknown)",
                level="error",
            )

    def _missing(
        self, event: JobEvent, record: JobRecord, together: Sequence[Event]
    ) -> list[JobEvent]:
        """Events of the job that came with this one, and ought to have come before it."""
        place = _ORDER.index(event.name) if event.name in _ORDER else 0
        found = [
            each
            for each in together
            if isinstance(each, JobEvent)
            and each.job == event.job
            and each.ours
            and each.name in _ORDER[:place]
            and each.context.get("severity", 0) == 0
            and not self._is_echo(each, record)
        ]
        return sorted(found, key=lambda each: _ORDER.index(each.name))

    @staticmethod
    def _is_echo(event: JobEvent, record: JobRecord) -> bool:
        """True if the job has had the event: it changes nothing."""
        if event.name == "exception":
            return record.exception is not None
        step = STEPS.get(event.name)
        return step is not None and bool(step.once & record.seen)

    def _timed(self, event: JobEvent, record: JobRecord) -> Event:
        """The event at a time that can be counted with."""
        time, name = event.timestamp, event.name
        if name not in TIMED or self._is_echo(event, record):
            return event
        if time <= record.submitted - _DAY:
            days = (record.submitted - time) / _DAY
            self._report(
                "past",
                f"{_named(event)} is dated {days:.0f} days before the job was submitted",
                "it counts as of now; times are seconds since the epoch, as Run.clock has them",
            )
            return _at(event, self._clock())
        floor = record.submitted if record.seen & _SUBMIT else time
        if name in ("finish", "clean"):
            floor = (name == "clean" and record.finished) or record.started or floor
        if name == "submit" or time >= floor:
            return event
        self._report(
            "backwards",
            f"{_named(event)} is {floor - time:.3g} s older than the event before it",
            "it counts right after that",
        )
        return _at(event, floor + _STEP)

    def _is_unknown(self, job: str) -> bool:
        """True if the run has never had a job with this id."""
        group, _, rest = job.partition("~")[0].rpartition(".")
        index = rest.partition("-")[0]
        state = self._engine.state.table.groups.get(group)
        # No index has more digits, and Python does not read any number of them.
        known = index.isdecimal() and len(index) < 20
        return state is None or not known or int(index) >= state.next_index

    def _report(
        self, kind: str, what: str, done: str, *, level: Literal["warning", "error"] = "warning"
    ) -> None:
        """Report a breach of the contract, once of each kind."""
        if kind in self._reported:
            return
        self._reported.add(kind)
        message = (
            f"executor {self._name} does not keep its contract: {what}; {done}. This is said once"
            f"\n  hint: {to_author(type(self._executor))}"
        )
        self._take(Problem(self._clock(), message, level))


def _named(event: Event) -> str:
    return f"{event.name} of {event.job}" if isinstance(event, JobEvent) else event.type


def _at(event: _E, time: float) -> _E:
    """The event at another time. One of a job has the first one in its context; 0 would say that
    nothing was heard of the job."""
    if not isinstance(event, JobEvent):
        return replace(event, timestamp=time)
    told = {"told_at": float(max(event.timestamp, _STEP)), **event.context}
    return replace(event, timestamp=time, context=told)
