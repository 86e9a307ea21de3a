"""Admission of a member's events: new ones only, of its own jobs, within limits, at correct times.

Members are not trusted. An event that a member may not report is dropped with a warning.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ensemble_core import Event, ExecutorLost, JobEvent, Observed, Problem, ResizeOutcome, Resources
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.request_limits import RateLimiter
from ensemble_service.wire import clean, to_event

#: Seconds by which a member's clock may be ahead of the controller's without correction.
_SLACK = 5.0
#: Maximum number of corrections of one member's clock. After that, times in the future are replaced
#: with the current time.
_CORRECTIONS = 20
#: Maximum number of events of one job, and of additional events that report the job's end.
_MOST_EVENTS, _MOST_ENDS = 10_000, 10
_ENDS = frozenset({"exception", "finish", "clean"})
#: Maximum number of gauges of one member, and of foreign jobs that it may report.
_MOST_GAUGES, _MAX_FOREIGN_JOBS = 1_000, 200_000
#: Rate limits of problems and of rows: events per second, and burst.
_PROBLEMS, _ROWS = (1.0, 100.0), (10_000.0, 100_000.0)

#: Fields of ``start`` events that name the job's files, and the field that untrusted names are
#: moved to.
_PLACES, _AT_MEMBER = ("workdir", "stdout", "stderr"), "at_member"

_WHAT_TO_DO = (
    "if this is not a plugin's bug, the member's token was stolen: replace it with "
    "'ensemble-server token remove' and 'token add'"
)


class EventAdmission:
    """Decides which of a member's events reach the run.

    A member may report problems, its resources, events of its own jobs, and outcomes of resizes
    that the run requested.
    """

    def __init__(
        self,
        member: str,
        jobs: Mapping[str, MemberJob],  # the member's jobs; the proxy updates them
        resizes: Mapping[str, object],  # its requests without an outcome; the proxy updates them
        *,
        elsewhere: Callable[[str], bool],  # returns whether a job belongs to another member
        tell: Callable[[str], None],  # called with messages for the user
        # Stores for later controllers by how many seconds the member's clock is ahead: the smallest
        # and the newest estimate.
        ahead: Callable[[int, int], None],
        offsets: tuple[int, int] = (0, 0),  # these estimates, from an earlier controller
        shared: Sequence[str] = (),  # absolute folders; files outside are reported, but not read
    ) -> None:
        self._member = member
        self._shared = shared
        self._jobs = jobs
        self._resizes = resizes
        self._elsewhere = elsewhere
        self._tell = tell
        self._keep = ahead
        #: Whether the member's executor sees foreign jobs.
        self.sees_foreign_jobs = False
        self._known_foreign: set[str] = set()
        #: Seconds by which the member's clock is ahead: the smallest value so far, and the current
        #: one. They are whole numbers, so that a corrected time can be converted back without loss.
        self._least, self.offset = offsets
        self._corrections = 0
        self._paths: set[str] = set()
        self._problems, self._rows = RateLimiter(*_PROBLEMS), RateLimiter(*_ROWS)
        self._warned: set[str] = set()

    # -- decisions ------------------------------------------------------------------------------

    def take(self, message: pb.Event, now: float) -> Event | None:
        """Return the event of a message, or ``None`` if the event is dropped.

        The argument ``now`` is the controller's time.
        """
        try:
            event = to_event(message)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            self._drop("something that is not an event", clean(str(error), 200))
            return None
        if event.timestamp - self.offset > now + _SLACK:
            self._correct(event.timestamp, now)
        if isinstance(event, JobEvent):
            if not self._job(event):
                return None
            return (
                self._without_untrusted_paths(event)
                if event.name == "start" and event.context
                else event
            )
        if isinstance(event, Resources):
            return self._gauges(event)
        if isinstance(event, Problem):
            return self._problem(event)
        if isinstance(event, ResizeOutcome):
            return self._outcome(event)
        if isinstance(event, Observed):
            return self._row(event)
        if isinstance(event, ExecutorLost):
            if self._problems.take("", time.monotonic()):
                return replace(event, reason=clean(event.reason), hint=clean(event.hint))
            self._drop("too many problems per second")
            return None
        self._drop(f"an event of type {event.type!r}, which members may not send")
        return None

    def _job(self, event: JobEvent) -> bool:
        if not event.ours:
            return self._foreign_job(event)
        job = self._jobs.get(event.job)
        if job is None or not job.sent:
            # A late event of a finished job needs no warning.
            if job is not None or self._elsewhere(event.job):
                self._drop("an event of a job that was not submitted to it", clean(event.job, 100))
            return False
        if job.events >= _MOST_EVENTS and event.name != "clean":
            most = _MOST_EVENTS + (_MOST_ENDS if event.name in _ENDS else 0)
            if job.events >= most:
                self._drop(f"more than {_MOST_EVENTS} events of one job", clean(event.job, 100))
                return False
        job.events += 1
        return True

    def _without_untrusted_paths(self, event: JobEvent) -> JobEvent:
        """Return a start event without untrusted paths.

        The output is then expected where the run requested it.
        """
        context = event.context
        told = {key: context[key] for key in _PLACES if context.get(key)}
        workdir = told.get("workdir", "")
        whole = {key: os.path.normpath(os.path.join(workdir, path)) for key, path in told.items()}
        shared = {key: told[key] for key, path in whole.items() if self._is_shared(path)}
        if "workdir" not in shared:
            shared = {key: whole[key] for key in shared}  # relative to an untrusted folder
        if len(shared) == len(told) and _AT_MEMBER not in context:
            return event
        others = {key: it for key, it in context.items() if key not in (_AT_MEMBER, *_PLACES)}
        kept: dict[str, Any] = {**others, **shared}
        if len(shared) < len(told):
            kept[_AT_MEMBER] = told
        return replace(event, context=kept)

    def _is_shared(self, path: str) -> bool:
        """Return whether the path is in a folder that the user shares with members."""
        return any(path == each or path.startswith(f"{each}/") for each in self._shared)

    def _foreign_job(self, event: JobEvent) -> bool:
        if not self.sees_foreign_jobs:
            self._drop("an event of a foreign job, which its executor cannot see")
            return False
        known = self._known_foreign
        if event.name == "clean":
            known.discard(event.job)
        elif event.job not in known:
            if len(known) >= _MAX_FOREIGN_JOBS:
                self._drop(f"events of more than {_MAX_FOREIGN_JOBS} foreign jobs")
                return False
            known.add(event.job)
        return True

    def _row(self, event: Observed) -> Event | None:
        job = self._jobs.get(event.job)
        if job is None or not job.sent:
            if job is not None or self._elsewhere(event.job):
                self._drop("a row of a job that was not submitted to it", clean(event.job, 100))
            return None
        if not self._rows.take("", time.monotonic()):
            self._drop("too many rows of values per second")
            return None
        return event

    def _gauges(self, event: Resources) -> Event | None:
        values = self.gauges(event.values)
        return replace(event, values=values) if values else None

    def gauges(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return those of ``values`` that the member may set."""
        admitted = {}
        for path, value in values.items():
            if path not in self._paths:
                if len(self._paths) >= _MOST_GAUGES:
                    self._drop(f"more than {_MOST_GAUGES} gauges")
                    continue
                if not path or len(path) > 200 or not path.isprintable():
                    self._drop("a gauge with an invalid name", clean(path, 100))
                    continue
                self._paths.add(path)
            admitted[path] = value
        return admitted

    def _problem(self, event: Problem) -> Event | None:
        if not self._problems.take("", time.monotonic()):
            self._drop("too many problems per second")
            return None
        jobs = tuple(job for job in event.jobs if job in self._jobs)
        return replace(event, message=f"member {self._member}: {clean(event.message)}", jobs=jobs)

    def _outcome(self, event: ResizeOutcome) -> Event | None:
        # Drop a repeated outcome without a warning.
        if event.request not in self._resizes:
            return None
        return replace(event, reason=clean(event.reason))

    # -- clock ----------------------------------------------------------------------------------

    def at(self, timestamp: float, now: float) -> float:
        """Convert a member's time to the controller's clock."""
        when = timestamp - self.offset if self.offset else timestamp
        return when if when <= now + _SLACK else now

    def to_member_time(self, timestamp: float) -> float:
        """Convert a controller's time to the member's clock, rounding down.

        Rounding down may make the member repeat an event, which is recognized by its name. Rounding
        up might lose an event.
        """
        return timestamp + self._least if timestamp else timestamp

    def _correct(self, timestamp: float, now: float) -> None:
        """Increase the offset, because the member's clock is further ahead than was known."""
        if self._corrections >= _CORRECTIONS:
            return
        first = not self.offset and not any(job.newest for job in self._jobs.values())
        self._corrections += 1
        self.offset = math.ceil(timestamp - now)
        if first:
            self._least = self.offset
        self._keep(self._least, self.offset)
        if "clock" not in self._warned:
            self._warned.add("clock")
            self._tell(
                f"the clock of member {self._member} is {self.offset} s ahead of this one; the "
                "times of its events are corrected\n  hint: synchronize both clocks with NTP"
            )

    def _drop(self, what: str, which: str = "") -> None:
        if what not in self._warned:
            self._warned.add(what)
            more = f" ({which})" if which else ""
            self._tell(
                f"member {self._member} sent {what}{more}: dropped, as will be all of this "
                f"kind\n  hint: {_WHAT_TO_DO}"
            )


@dataclass(slots=True)
class MemberJob:
    """An active job. Times are by the member's clock."""

    data: pb.Job | None  # the job to send; None once an event shows that the member has the job
    newest: float = 0.0  # time of the newest event
    # The value of ``newest`` when the member restarted. The member then repeats the job's events,
    # and those up to this time are dropped.
    since: float = 0.0
    sent: bool = False
    events: int = 0  # number of received events


class MemberJobs(dict[str, MemberJob]):
    """The active jobs, by id."""

    def __init__(self) -> None:
        super().__init__()
        #: Jobs that are over, but not forgotten by the member.
        self.ended: set[str] = set()

    def end(self, name: str) -> MemberJob:
        """Remove a job that is over, and return it."""
        self.ended.add(name)
        return self.pop(name)

    def forget(self, names: Iterable[str]) -> list[str]:
        """Return those of these jobs that the member can forget now."""
        gone = [name for name in names if name in self.ended]
        self.ended.difference_update(gone)
        return gone

    def unsent(self) -> dict[str, pb.Job]:
        """Return the jobs that the member does not have, each with the data to send."""
        return {name: job.data for name, job in self.items() if not job.sent and job.data}

    def to_ask(self, asked: Collection[str]) -> list[str]:
        """Return the jobs to ask a restarted member about, except those in ``asked``.

        Events that arrive later are new, or repeated because of the question. Don't call this
        method again when only the question is resent: by then newer events may have arrived.
        """
        names = [name for name, job in self.items() if job.sent and name not in asked]
        for name in names:
            self[name].since = self[name].newest
        return names

    def moved(self) -> None:
        """Record that an agent with another folder has taken over.

        The previous agent may only be paused, and may still submit the jobs that it was sent. So
        jobs that the new agent does not know are not resubmitted.
        """
        for job in self.values():
            if job.sent:
                job.data = None

    def found(self, names: Iterable[str], known: Mapping[str, bool]) -> list[str]:
        """Update these jobs according to a restarted member's answer. Return the lost jobs.

        Jobs that the member never received become unsent again.
        """
        lost: list[str] = []
        for name in names:
            job = self.get(name)
            if job is None:
                continue
            if known.get(name):
                job.sent = True
            elif job.newest or job.data is None:
                lost.append(name)
            else:
                job.sent = False
        return lost

    def is_news(self, event: JobEvent) -> bool:
        """Update a job by its event. Return whether the event is new."""
        job = self.get(event.job)
        if job is None or event.timestamp <= job.since:
            return False
        job.newest = max(job.newest, event.timestamp)
        job.data = None
        if event.name == "clean":
            self.end(event.job)
        return True

    def take_back(self, jobs: Iterable[str], now: float, member: str) -> list[Event]:
        """Return the events of jobs that were cancelled before they were sent."""
        note = f"before it was sent to member {member}"
        context = {"type": "cancel", "severity": 0, "note": note}
        events: list[Event] = []
        for job in jobs:
            del self[job]
            events.append(JobEvent(now, job, "submit"))
            events.append(JobEvent(now, job, "exception", context))
            events.append(JobEvent(now, job, "clean"))
        return events
