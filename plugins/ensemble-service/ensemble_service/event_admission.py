"""Admission of members' events: allow-list, sizes, rates and the clock they are held to.

A member's token stands for one queue, so a member may speak of that queue and of nothing else: of
jobs that were submitted to it, of its resources, of requests that were sent to it, and of problems.
Anything else (``call-returned``, ``stop``, events of another member's job …) is dropped and told
once. Types were checked when the message was decoded (``wire``). Where a job's files are is
believed in folders that the user shares with members; elsewhere it is told, and nobody reads there.
``member_proxy`` has one :class:`EventAdmission` for each member.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ensemble_core import Event, ExecutorLost, JobEvent, Observed, Problem, ResizeOutcome, Resources
from ensemble_service.member_jobs import MemberJob
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.rate_limits import RateLimiter
from ensemble_service.wire import clean, to_event

__all__ = ["EventAdmission"]

#: Seconds that a member's clock may be ahead of the controller's without being corrected.
_SLACK = 5.0
#: Corrections of one member's clock that are kept; after that its times are cut at the present.
_CORRECTIONS = 20
#: Events of one job, and those that are let through after that if they say how it ended.
_MOST_EVENTS, _MOST_ENDS = 10_000, 10
_ENDS = frozenset({"exception", "finish", "clean"})
#: Gauges of one member, and other people's jobs of which it tells.
_MOST_GAUGES, _MOST_STRANGERS = 1_000, 200_000
#: Problems, and rows of values, a second and at once.
_PROBLEMS, _ROWS = (1.0, 100.0), (10_000.0, 100_000.0)

#: What a start says of the job's files, and what it is kept under where it is not believed.
_PLACES, _AT_MEMBER = ("workdir", "stdout", "stderr"), "at_member"

_WHAT_TO_DO = (
    "if no plugin of that member sends it by mistake, its token is in other hands: replace it with "
    "'ensemble-server token remove' and 'token add'"
)


class EventAdmission:
    """Decides which of a member's events reach the run.

    ``jobs`` are the member's and ``resizes`` the requests that it has not answered, as its proxy
    changes them. ``elsewhere`` says whether a job is another member's. ``tell`` tells the user;
    ``ahead`` keeps, beyond this controller, by how many seconds the member's clock was ahead at
    least and is ahead now. ``shared`` are absolute folders in which the member's files may be read.
    """

    def __init__(
        self,
        member: str,
        jobs: Mapping[str, MemberJob],
        resizes: Mapping[str, object],
        *,
        elsewhere: Callable[[str], bool],
        tell: Callable[[str], None],
        ahead: Callable[[int, int], None],
        offsets: tuple[int, int] = (0, 0),
        shared: Sequence[str] = (),
    ) -> None:
        self._member = member
        self._shared = shared
        self._jobs = jobs
        self._resizes = resizes
        self._elsewhere = elsewhere
        self._tell = tell
        self._keep = ahead
        #: Whether the member's executor hears of other people's jobs.
        self.strangers = False
        self._known_strangers: set[str] = set()
        #: Whole seconds by which the member's clock was ahead at least, and is ahead now: whole, so
        #: that a time that was corrected can be turned back into the member's own without loss.
        self._least, self.offset = offsets
        self._corrections = 0
        self._paths: set[str] = set()
        self._problems, self._rows = RateLimiter(*_PROBLEMS), RateLimiter(*_ROWS)
        self._told: set[str] = set()

    # -- decisions ------------------------------------------------------------------------------

    def take(self, message: pb.Event, now: float) -> Event | None:
        """The event of a message with the time that the member gave it, ``None`` for one that is
        dropped. ``now`` is the controller's time."""
        try:
            event = to_event(message)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            self._drop("what is no event", clean(str(error), 200))
            return None
        if event.timestamp - self.offset > now + _SLACK:
            self._correct(event.timestamp, now)
        if isinstance(event, JobEvent):
            if not self._job(event):
                return None
            return self._placed(event) if event.name == "start" and event.context else event
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
            self._drop("problems faster than they can be told")
            return None
        self._drop(f"an event of type {event.type!r}, which no member may send")
        return None

    def _job(self, event: JobEvent) -> bool:
        if not event.ours:
            return self._stranger(event)
        job = self._jobs.get(event.job)
        if job is None or not job.sent:
            # Late news of a job that is over is nothing to tell of.
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

    def _placed(self, event: JobEvent) -> JobEvent:
        """A start without the paths that nobody here should read: without them, output is looked
        for where the run asked for it."""
        context = event.context
        told = {key: context[key] for key in _PLACES if context.get(key)}
        workdir = told.get("workdir", "")
        whole = {key: os.path.normpath(os.path.join(workdir, path)) for key, path in told.items()}
        shared = {key: told[key] for key, path in whole.items() if self._is_shared(path)}
        if "workdir" not in shared:
            shared = {key: whole[key] for key in shared}  # what was relative to it
        if len(shared) == len(told) and _AT_MEMBER not in context:
            return event
        others = {key: it for key, it in context.items() if key not in (_AT_MEMBER, *_PLACES)}
        kept: dict[str, Any] = {**others, **shared}
        if len(shared) < len(told):
            kept[_AT_MEMBER] = told
        return replace(event, context=kept)

    def _is_shared(self, path: str) -> bool:
        """True if it is in a folder that the user shares with members."""
        return any(path == each or path.startswith(f"{each}/") for each in self._shared)

    def _stranger(self, event: JobEvent) -> bool:
        if not self.strangers:
            self._drop("an event of somebody else's job, of which its executor does not hear")
            return False
        known = self._known_strangers
        if event.name == "clean":
            known.discard(event.job)
        elif event.job not in known:
            if len(known) >= _MOST_STRANGERS:
                self._drop(f"events of more than {_MOST_STRANGERS} of other people's jobs")
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
            self._drop("rows of values faster than they can be taken")
            return None
        return event

    def _gauges(self, event: Resources) -> Event | None:
        values = self.gauges(event.values)
        return replace(event, values=values) if values else None

    def gauges(self, values: Mapping[str, float]) -> dict[str, float]:
        """The gauges among these that the member may have."""
        admitted = {}
        for path, value in values.items():
            if path not in self._paths:
                if len(self._paths) >= _MOST_GAUGES:
                    self._drop(f"more than {_MOST_GAUGES} gauges")
                    continue
                if not path or len(path) > 200 or not path.isprintable():
                    self._drop("a gauge with a name that no gauge has", clean(path, 100))
                    continue
                self._paths.add(path)
            admitted[path] = value
        return admitted

    def _problem(self, event: Problem) -> Event | None:
        if not self._problems.take("", time.monotonic()):
            self._drop("problems faster than they can be told")
            return None
        jobs = tuple(job for job in event.jobs if job in self._jobs)
        return replace(event, message=f"member {self._member}: {clean(event.message)}", jobs=jobs)

    def _outcome(self, event: ResizeOutcome) -> Event | None:
        # An outcome that comes twice is as little to tell of as a job's late news.
        if event.request not in self._resizes:
            return None
        return replace(event, reason=clean(event.reason))

    # -- the clock ------------------------------------------------------------------------------

    def at(self, timestamp: float, now: float) -> float:
        """A time of the member's as the controller's clock has it."""
        when = timestamp - self.offset if self.offset else timestamp
        return when if when <= now + _SLACK else now

    def theirs(self, timestamp: float) -> float:
        """A time of the controller's as the member's clock had it, or a little earlier: an event
        that comes again is known by its name, one that is left out is lost."""
        return timestamp + self._least if timestamp else timestamp

    def _correct(self, timestamp: float, now: float) -> None:
        """The member's clock is further ahead than was known."""
        if self._corrections >= _CORRECTIONS:
            return
        first = not self.offset and not any(job.newest for job in self._jobs.values())
        self._corrections += 1
        self.offset = math.ceil(timestamp - now)
        if first:
            self._least = self.offset
        self._keep(self._least, self.offset)
        if "clock" not in self._told:
            self._told.add("clock")
            self._tell(
                f"the clock of member {self._member} is {self.offset} s ahead of this one: times "
                "of its events are corrected by that\n  hint: let both machines keep time by NTP"
            )

    def _drop(self, what: str, which: str = "") -> None:
        if what not in self._told:
            self._told.add(what)
            more = f" ({which})" if which else ""
            self._tell(
                f"member {self._member} sent {what}{more}: it is dropped, as is all of this kind "
                f"from now on\n  hint: {_WHAT_TO_DO}"
            )
