"""Checks events against the executor's contract: content, job ids, order and times.

Each kind of violation is reported once, as a defect of the executor or of a plugin. Wrong times, a
wrong order of events that arrive together, and a missing ``submit`` are corrected. Events of
unknown jobs are dropped, and so are events that the journal could not store and read back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_states import ATTEMPT, NOT_HANDED_OVER, TRANSITIONS
from ensemble_core.errors import author_hint
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.events import (
    Event,
    Identified,
    JobEvent,
    LookedUp,
    Observed,
    Problem,
    Requested,
    Resources,
)
from ensemble_core.model.jobs import INTERRUPTIONS, JobState
from ensemble_core.plugin.executor import Executor
from ensemble_core.quick_dataclass import replace

_E = TypeVar("_E", bound=Event)

#: By how many seconds the clocks of a queue and of this machine may differ. Times from members are
#: corrected by whole seconds, with a tolerance of 5 s.
_AHEAD = 10.0
#: If the time of an event is more than this many seconds before the job's submission, it is
#: implausible, even if clocks differ.
_DAY = 86400.0
#: Smallest time between two events of a job, in seconds.
_STEP = 1e-6
#: Order of a job's events. A fatal exception precedes the events that it causes.
#: Within an attempt, the order starts again after a ``requeue``.
_ORDER = ("submit", "validate", "depend", "alloc", "start", "exception", "finish", "free", "clean")
_SUBMIT = TRANSITIONS["submit"].once
#: Events whose times are used in calculations.
TIMED = frozenset({"submit", "start", *INTERRUPTIONS, "finish", "clean"})


class OrderCheck:
    """Checks the order and times of a run's events, and corrects them where possible."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        name: str,
        take: Callable[[Event], object],
        clock: Callable[[], float],
    ) -> None:
        #: Pass each event that is later than this time through :meth:`in_time`.
        self.latest = 0.0
        #: By how many seconds the clock of the queue is behind ours, once that is known.
        self.behind = 0.0
        self._engine = engine
        self._executor = executor
        self._name = name
        self._take = take
        self._clock = clock
        self._reported: set[str] = set()
        #: Jobs of an earlier controller.
        self._recovered = frozenset(engine.state.table.records)

    def in_time(self, event: _E) -> _E:
        """Return the event, with the current time if its time is too far in the future."""
        now = self._clock()
        self.latest = now + _AHEAD
        if event.timestamp <= self.latest:
            return event
        self._report(
            "future",
            f"{_describe(event)} is {event.timestamp - now:.0f} s in the future",
            "the current time is used instead. If the queue is on another machine, synchronize "
            "both clocks by NTP",
        )
        return _with_time(event, now)

    def in_our_time(self, event: JobEvent) -> JobEvent:
        """Return an event of a queue whose clock is behind ours, with its time by our clock."""
        return _with_time(event, min(event.reported_at + self.behind, self._clock()))

    def _compare_clocks(self, event: JobEvent, record: JobRecord) -> bool:
        """Note if the queue's clock is behind ours: a job cannot arrive before its submission.

        For a job of an earlier controller, compare the time of its last event with what the queue
        reported for it. A later submit can show that the queue's clock is further behind.
        """
        seconds = 0.0
        if event.name == "submit":
            seconds = record.submitted - event.timestamp
        elif not self.behind and event.job in self._recovered and not _is_moved(record):
            last = record.finished or record.started or record.submitted
            seconds = last - (record.newest or last)
        if not _AHEAD < seconds < _DAY:
            return False
        if not self.behind:
            words = (
                f"the clock of the queue of executor {self._name} is {seconds:.0f} s behind ours: "
                "times of jobs are corrected\n  hint: synchronize both clocks by NTP"
            )
            self._take(Problem(self._clock(), words))
        self.behind += seconds
        return True

    def keeps(self, event: JobEvent, record: JobRecord) -> bool:
        """Return True if an event of this job satisfies the contract.

        This check is needed only for the first event of a job and for events in ``TIMED``. All
        other events satisfy the contract.
        """
        name = event.name
        if name == "submit":
            return event.timestamp > record.submitted - _AHEAD
        if record.newest == 0.0:
            return name == "exception"
        time = event.timestamp
        if name == "start":
            return time >= record.waits_since and bool(record.seen & _SUBMIT)
        if name == "finish":
            return record.started is not None and time >= _changed(record)
        if name in INTERRUPTIONS:
            return (
                record.started is not None and record.outcome is None and time >= _changed(record)
            )
        if name == "clean":
            return (record.outcome is not None or record.exception is not None) and time >= (
                record.finished or record.started or record.submitted - _DAY
            )
        return time > record.submitted - _DAY

    def corrected(
        self, event: JobEvent, record: JobRecord | None, together: Sequence[Event]
    ) -> Iterator[Event]:
        """Yield the events to handle instead of an event that violates the contract.

        Handle each of them before requesting the next one. ``together`` has the events that arrived
        together with this one.
        """
        if record is None:
            if self._is_unknown(event.job):
                self._report(
                    "unknown",
                    f"{_describe(event)} concerns a job that this run never submitted",
                    "it is dropped",
                )
            else:
                yield event  # a late event, after the job
            return
        if record.state in NOT_HANDED_OVER:
            return  # a late event, after a stop has cancelled the job
        if self._is_echo(event, record):
            yield event
            return
        if self._compare_clocks(event, record):
            event = self.in_our_time(event)
        # During a stop, records do not show which events have arrived.
        if self._engine.state.stop is None:
            earlier = self._missing(event, record, together)
            if earlier:
                names = ", ".join(each.name for each in earlier)
                self._report(
                    "order",
                    f"{_describe(event)} came before {names}",
                    "they are handled in the right order",
                )
                for each in map(self.in_time, earlier):
                    ours = self.in_our_time(each) if self.behind else each
                    yield self._with_plausible_time(ours, record)
            yield from self._missing_events(event, record)
        yield self._with_plausible_time(event, record)

    def _missing_events(self, event: JobEvent, record: JobRecord) -> Iterator[Event]:
        """Yield a submit event if it is missing. Report a missing start or an unknown end."""
        name = event.name
        needs = name in _ORDER and name not in ("submit", "exception")
        if needs and not record.seen & _SUBMIT and record.exception is None:
            self._report(
                "submit",
                f"{_describe(event)} came without a submit",
                "the time at which this run decided to submit the job is used",
            )
            time, when = event.timestamp, record.submitted
            if when - _DAY < time < when:
                when = time  # the queue's clock is slightly behind ours
            yield _with_time(JobEvent(time - _STEP, event.job, "submit"), when)
        ended = record.outcome is not None or record.exception is not None
        if name in INTERRUPTIONS and record.outcome is not None:
            self._report(
                "ended", f"{_describe(event)} came after the end of the job", "it has no effect"
            )
        elif name == "finish" and record.started is None and not ended:
            self._report(
                "start", f"{_describe(event)} came without a start", "the job's duration is unknown"
            )
        elif name == "clean" and not ended:
            self._report(
                "finish",
                f"{_describe(event)} came without a finish or a fatal exception",
                "how the job ended is unknown, so it counts as failed (unknown)",
                level="error",
            )

    def _missing(
        self, event: JobEvent, record: JobRecord, together: Sequence[Event]
    ) -> list[JobEvent]:
        """Return the events that should precede ``event`` and arrived together with it.

        These are events of the same job, sorted in the normal order.
        """
        place = _ORDER.index(event.name) if event.name in _ORDER else 0
        of_job: list[JobEvent] = []
        for each in together:
            if isinstance(each, JobEvent) and each.job == event.job and each.ours:
                if each.name != "requeue":
                    of_job.append(each)
                elif any(
                    one.name == event.name and one.reported_at == event.reported_at
                    for one in of_job
                ):
                    break
                else:  # ``event`` is after this ``requeue``
                    of_job.clear()
        found = [
            each
            for each in of_job
            if each.name in _ORDER[:place]
            and each.context.get("severity", 0) == 0
            and not self._is_echo(each, record)
        ]
        return sorted(found, key=lambda each: _ORDER.index(each.name))

    @staticmethod
    def _is_echo(event: JobEvent, record: JobRecord) -> bool:
        """Return True if the job has had this event already, so that it changes nothing."""
        if event.name == "exception":
            return record.exception is not None
        if event.name in INTERRUPTIONS and record.state == "ended":
            return False
        if event.name == "requeue" and JobState(record.phase).waiting:
            return True
        step = TRANSITIONS[event.name]
        return (
            event.name not in ATTEMPT[record.state] if step.moves else bool(step.once & record.seen)
        )

    def _with_plausible_time(self, event: JobEvent, record: JobRecord) -> Event:
        """Return the event with a plausible time."""
        time, name = event.timestamp, event.name
        if name not in TIMED or self._is_echo(event, record):
            return event
        if time <= record.submitted - _DAY:
            days = (record.submitted - time) / _DAY
            self._report(
                "past",
                f"{_describe(event)} is dated {days:.0f} days before the job was submitted",
                "the current time is used instead; times are seconds since the epoch, as Run.clock "
                "returns them",
            )
            return _with_time(event, self._clock())
        floor = record.waits_since if record.seen & _SUBMIT else time
        if name in ("finish", "clean", *INTERRUPTIONS):
            floor = (name == "clean" and record.finished) or _changed(record) or floor
        if name == "submit" or time >= floor:
            return event
        self._report(
            "backwards",
            f"{_describe(event)} is {floor - time:.3g} s older than the event before it",
            "it is moved right after that event",
        )
        return _with_time(event, floor + _STEP)

    def _is_unknown(self, job: str) -> bool:
        """Return True if the run has never had a job with this id."""
        group, _, rest = job.partition("~")[0].rpartition(".")
        index = rest.partition("-")[0]
        state = self._engine.state.table.groups.get(group)
        # Python limits how many digits int() converts.
        known = index.isdecimal() and len(index) < 20
        return state is None or not known or int(index) >= state.next_index

    def _report(
        self, kind: str, what: str, done: str, *, level: Literal["warning", "error"] = "warning"
    ) -> None:
        """Report a violation of the contract. Each kind of violation is reported once."""
        if kind in self._reported:
            return
        self._reported.add(kind)
        message = (
            f"executor {self._name} violates its contract: {what}; {done}. Reported once"
            f"\n  hint: {author_hint(type(self._executor))}"
        )
        self._take(Problem(self._clock(), message, level))


def _describe(event: Event) -> str:
    return f"{event.name} of {event.job}" if isinstance(event, JobEvent) else event.type


def _changed(record: JobRecord) -> float:
    """Return the time since which a started job runs or is suspended, or 0."""
    return record.runs_since or record.suspended or 0.0


def _is_moved(record: JobRecord) -> bool:
    """Return True if the job's last event seems to be moved right after the one before it."""
    if record.finished is not None:
        return 0 < record.ran < 2 * _STEP
    return record.started is not None and 0 < record.started - record.waits_since < 2 * _STEP


def _with_time(event: _E, time: float) -> _E:
    """Return the event with another time. A job's event keeps its original time as ``reported_at``.

    ``reported_at`` is never 0, because that would mean that the job had no event.
    """
    if not isinstance(event, JobEvent):
        return replace(event, timestamp=time)
    context = {"reported_at": float(max(event.timestamp, _STEP)), **event.context}
    return replace(event, timestamp=time, context=context)


#: Latest time that is accepted, in seconds since the epoch (in the year 5138).
_LATEST = 1e11
#: Maximum length of an event, and of a string in an event that needs no closer check.
_LONGEST, _USUAL = 4 << 20, 1 << 16
#: Largest integer, and maximum depth of nesting.
_LARGEST, _DEEPEST = 1 << 64, 40
_SCALARS = frozenset({float, bool, NoneType})
#: How many kinds of malformed events are reported at most.
_MALFORMED = 100


class Admission:
    """Checks all events that come from plugins, for one run.

    Each kind of malformed event is reported once.
    """

    def __init__(
        self, executor: str, put: Callable[[Sequence[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._executor = executor
        self._put = put
        self._clock = clock
        self._reported: set[tuple[str, str]] = set()

    def admitted(self, event: Event) -> Event | None:
        """Return an event in the form in which the journal would return it.

        If the journal cannot store the event, report this and return ``None``.
        """
        if usual(event):
            return event
        found: Event | None = None
        try:
            if isinstance(event, (Requested, Identified, LookedUp)):
                raise ValueError("only Ensemble itself can send events of this type")
            found, wrong = admitted(event, self._clock())
        except Exception as error:  # an error in a plugin's class, or a RecursionError
            wrong = str(error) or type(error).__name__
        kind = type(event).__name__
        if wrong and (kind, wrong) not in self._reported and len(self._reported) < _MALFORMED:
            self._reported.add((kind, wrong))
            done = wrong if found is not None else f"{wrong}; it is dropped"
            message = (
                f"executor {self._executor} or a plugin sent a malformed event ({kind}): {done}. "
                "Reported once"
            )
            self._put((Problem(self._clock(), message, "error"),))
        return found


def usual(event: Any) -> bool:
    """Return True if an event needs no closer check."""
    kind = type(event)
    if kind is JobEvent:
        values = event.context
        if type(event.job) is not str or type(event.name) is not str or event.ours is not True:
            return False
        if event.name == "finish" and (type(values) is not dict or not _has_status(values)):
            return False
    elif kind is Observed:
        values, clock = event.values, event.clock
        if (
            type(event.job) is not str
            or type(event.observer) is not str
            or event.restarted is not False
        ):
            return False
        if type(event.unreadable) is not tuple or event.unreadable:
            return False
        if clock is not None and type(clock) is not float:
            return False
    elif kind is Resources:
        values = event.values
    else:
        return False
    time = event.timestamp
    if type(time) is not float or not -_LATEST < time < _LATEST:
        return False
    if type(values) is dict:
        return not values or _plain(values, _USUAL, 8)
    return values is NOTHING


def admitted(event: object, now: float) -> tuple[Event, str]:
    """Return the event as the journal would return it, and its defect (``""`` if it has none).

    Raises ``ValueError`` if the event cannot be stored.
    """
    if not isinstance(event, Event):
        raise ValueError(f"{type(event).__name__} is not an event")
    mended = ""
    time: object = event.timestamp
    if isinstance(time, bool) or not (isinstance(time, (int, float)) and -_LATEST < time < _LATEST):
        mended = f"invalid time of type {type(time).__name__}; the time of arrival is used"
        event = replace(event, timestamp=now)
    text = event.to_json()
    if len(text) > _LONGEST:
        raise ValueError(f"the event has {len(text) >> 20} MiB; the limit is {_LONGEST >> 20} MiB")
    again = Event.from_dict(json.loads(text))
    for name, hint in _hints(type(again)):
        value = getattr(again, name)
        if not _fits(value, hint):
            raise ValueError(f"the field {name!r} has the wrong type {type(value).__name__}")
        inner = [*value] if type(value) is tuple else [value]
        if value is NOTHING or name == "timestamp":
            continue
        if not _plain(inner, _LONGEST, _DEEPEST):
            raise ValueError(
                f"the field {name!r} contains a number that is too large, or is nested too deeply"
            )
    if isinstance(again, JobEvent) and again.name == "finish" and not _has_status(again.context):
        mended = mended or "finish without a 'status' (a wait status); the job counts as failed"
    return again, mended


def _has_status(context: Mapping[str, Any]) -> bool:
    return type(context.get("status")) is int


def _plain(values: dict[Any, Any] | list[Any], longest: int, depth: int) -> bool:
    """Return True if JSON preserves all values and they are within the limits."""
    if type(values) is dict:
        for key in values:
            if type(key) is not str:
                return False
        items: Any = values.values()
    else:
        items = values
    for value in items:
        kind = type(value)
        if kind is str:
            if len(value) > longest:
                return False
        elif kind is int:
            if not -_LARGEST < value < _LARGEST:
                return False
        elif kind not in _SCALARS and not (
            (kind is dict or kind is list) and depth and _plain(value, longest, depth - 1)
        ):
            return False
    return True


def _field_types(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls)
    return tuple((each.name, hints[each.name]) for each in fields(cls))


_hints = cast(Callable[[type[Any]], tuple[tuple[str, Any], ...]], cache(_field_types))


def _fits(value: object, hint: Any) -> bool:
    """Return True if a value from JSON has the type of the field."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        return type(value) is tuple and all(_fits(item, parts[0]) for item in value)
    if origin is not None:
        return isinstance(value, Mapping)
    return type(value) is hint or (hint is float and type(value) is int)
