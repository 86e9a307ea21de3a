"""Pending calls (submit, cancel …) of a run to a member, resent until they are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ensemble_core import Event, Problem
from ensemble_service.event_admission import MemberJob
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.wire import MOST_IDS, in_parts

#: Maximum number of calls in flight at once.
_WINDOW = 16
#: Seconds until an unanswered call is resent. A member that was only busy then answers twice.
UNANSWERED = 60.0

Kind = Literal["submit", "cancel", "resize", "reattach", "forget", "close"]


@dataclass(slots=True)
class Waiting:
    """An unanswered call."""

    id: int
    kind: Kind
    jobs: list[str] = field(default_factory=list)
    resize: pb.Resize | None = None
    sent: bool = False
    when: float = 0.0  # time of sending (monotonic seconds)
    #: Whether this call is the proxy's own question about known jobs, not a request of the run.
    own: bool = False


class PendingCalls:
    """The unanswered calls to one member, in order."""

    def __init__(self, member: str, run: RunContext, jobs: Mapping[str, MemberJob]) -> None:
        self._member = member
        self._run = run
        #: The jobs to submit. The member's proxy updates this mapping.
        self._jobs = jobs
        self._waiting: dict[int, Waiting] = {}

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    @property
    def asking(self) -> bool:
        """True if a question of the proxy itself is unanswered."""
        return any(each.own for each in self)

    def put(self, kind: Kind, jobs: list[str] | None = None) -> Waiting:
        """Add a call to the end of the queue."""
        waiting = Waiting(self._run.number(), kind, jobs or [])
        self._waiting[waiting.id] = waiting
        return waiting

    def put_parts(self, kind: Kind, jobs: list[str], *, own: bool = False) -> None:
        """Add calls about these jobs, split into parts that fit in a message."""
        for begin in range(0, len(jobs), MOST_IDS):
            self.put(kind, jobs[begin : begin + MOST_IDS]).own = own

    def submit_first(self, jobs: Mapping[str, pb.Job]) -> None:
        """Submit these jobs before everything else, replacing the waiting submissions."""
        later = {each.id: each for each in self if each.kind != "submit"}
        self._waiting = {}
        names, begin = list(jobs), 0
        for part in in_parts(list(jobs.values())):
            self.put("submit", names[begin : begin + len(part)])
            begin += len(part)
        self._waiting.update(later)

    def withdraw(self, jobs: Collection[str]) -> None:
        """Drop these jobs from waiting submissions."""
        for waiting in list(self):
            if waiting.kind == "submit":
                waiting.jobs = [job for job in waiting.jobs if job not in jobs]
                if not waiting.jobs:
                    self.done(waiting)

    def send(self, *, own: bool) -> None:
        """Send unsent calls: with ``own``, the proxy's own questions; otherwise the run's calls."""
        under_way = sum(waiting.sent for waiting in self)
        for waiting in list(self):
            if under_way >= _WINDOW:
                return
            if not waiting.sent and waiting.own == own:
                waiting.sent, waiting.when = True, time.monotonic()
                under_way += 1
                call = self.message(waiting.id)
                _fill(call, waiting, self._jobs)
                self._run.send(pb.FromRun(call=call))

    def message(self, number: int) -> pb.Call:
        """Return a message with this call number and no content."""
        run = self._run
        return pb.Call(run=run.run, member=self._member, epoch=run.epoch, id=number)

    def sent(self, number: int) -> Waiting | None:
        """Return the sent, unanswered call with this number, if any."""
        waiting = self._waiting.get(number)
        return waiting if waiting is not None and waiting.sent else None

    def done(self, waiting: Waiting) -> None:
        """Forget a call that was answered or is no longer wanted."""
        del self._waiting[waiting.id]

    def interrupt(self) -> None:
        """Mark all calls as unsent, because they may not have arrived."""
        for waiting in self:
            waiting.sent = False

    def repeat(self, now: float) -> None:
        """Resend calls that have been unanswered for too long at time ``now`` (monotonic
        seconds).
        """
        for waiting in self:
            if waiting.sent and now - waiting.when > UNANSWERED:
                waiting.sent = False


def _fill(call: pb.Call, waiting: Waiting, jobs: Mapping[str, MemberJob]) -> None:
    """Fill in a message. Jobs in a submission count as sent from here on."""
    kind = waiting.kind
    if kind == "submit":
        for name in waiting.jobs:
            job = jobs.get(name)
            if job is not None and job.data is not None:
                job.sent = True
                call.submit.jobs.append(job.data)
        call.submit.SetInParent()
    elif kind == "cancel":
        call.cancel.jobs.extend(waiting.jobs)
        call.cancel.SetInParent()
    elif kind == "resize":
        assert waiting.resize is not None
        call.resize.CopyFrom(waiting.resize)
    elif kind == "reattach":
        for name in waiting.jobs:
            job = jobs.get(name)
            if job is not None:
                call.reattach.jobs[name] = job.newest
        call.reattach.SetInParent()
    elif kind == "forget":
        call.forget.jobs.extend(waiting.jobs)
        call.forget.SetInParent()
    else:
        call.close.SetInParent()


@dataclass(slots=True)
class RunContext:
    """A run, as its member proxies see it."""

    run: str  #: the run's name at the service: see :func:`run_name`
    epoch: int  # number of the run's controller
    number: Callable[[], int]
    send: Callable[[pb.FromRun], None]
    tell: Callable[[Sequence[Event]], None]
    clock: Callable[[], float]
    #: Called with the paths of changed gauges and the time.
    gauges: Callable[[Iterable[str], float], None]
    #: Called if a member reports that another controller has taken over the run.
    stale: Callable[[str, str], None]
    #: Returns whether a job belongs to a different member than the named one.
    elsewhere: Callable[[str, str], bool]
    #: Records, for later controllers, by how many seconds a member's clock is ahead: the smallest
    #: value so far, and the current one.
    ahead: Callable[[str, int, int], None]
    #: Absolute folders in which members' files may be read.
    shared: Sequence[str] = ()

    def warn(self, message: str) -> None:
        self.tell([Problem(self.clock(), message)])
