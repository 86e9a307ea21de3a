"""Pending calls of a run to a member: sent in order, and sent again until they are answered.

``member_proxy`` has one :class:`PendingCalls` for its member.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ensemble_service.member_jobs import MemberJob
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.run_context import RunContext
from ensemble_service.wire import MOST_IDS, in_parts

__all__ = ["UNANSWERED", "Kind", "PendingCalls", "Waiting"]

#: Calls that may wait for their answers at once.
_WINDOW = 16
#: Seconds after which a call that was not answered is made again: a member that is busy with it
#: answers it once, and twice.
UNANSWERED = 60.0

Kind = Literal["submit", "cancel", "resize", "reattach", "forget", "close"]


@dataclass(slots=True)
class Waiting:
    """A call that has not been answered yet."""

    id: int
    kind: Kind
    jobs: list[str] = field(default_factory=list)
    resize: pb.Resize | None = None
    sent: bool = False
    when: float = 0.0
    #: A question of the proxy itself, and not of the run: which jobs another life knows.
    own: bool = False


class PendingCalls:
    """Calls to one member. ``jobs`` are the member's, as its proxy changes them."""

    def __init__(self, member: str, run: RunContext, jobs: Mapping[str, MemberJob]) -> None:
        self._member = member
        self._run = run
        self._jobs = jobs
        self._waiting: dict[int, Waiting] = {}

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    @property
    def asking(self) -> bool:
        """True if a question of the proxy itself is not answered yet."""
        return any(each.own for each in self)

    def put(self, kind: Kind, jobs: list[str] | None = None) -> Waiting:
        """Add a call, to be sent after all others."""
        waiting = Waiting(self._run.number(), kind, jobs or [])
        self._waiting[waiting.id] = waiting
        return waiting

    def put_parts(self, kind: Kind, jobs: list[str], *, own: bool = False) -> None:
        """Add calls about so many jobs, as many as that takes."""
        for begin in range(0, len(jobs), MOST_IDS):
            self.put(kind, jobs[begin : begin + MOST_IDS]).own = own

    def submit_first(self, jobs: Mapping[str, pb.Job]) -> None:
        """Submit these jobs before all else that waits, instead of what was to be submitted."""
        later = {each.id: each for each in self if each.kind != "submit"}
        self._waiting = {}
        names, begin = list(jobs), 0
        for part in in_parts(list(jobs.values())):
            self.put("submit", names[begin : begin + len(part)])
            begin += len(part)
        self._waiting.update(later)

    def withdraw(self, jobs: Collection[str]) -> None:
        """Do not submit these jobs."""
        for waiting in list(self):
            if waiting.kind == "submit":
                waiting.jobs = [job for job in waiting.jobs if job not in jobs]
                if not waiting.jobs:
                    self.done(waiting)

    def send(self, *, own: bool) -> None:
        """Send what may be sent: the proxy's own questions, or all others."""
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
        """A call of this number that says nothing yet."""
        run = self._run
        return pb.Call(run=run.run, member=self._member, epoch=run.epoch, id=number)

    def sent(self, number: int) -> Waiting | None:
        """The call of this number, if it was sent and is not answered."""
        waiting = self._waiting.get(number)
        return waiting if waiting is not None and waiting.sent else None

    def done(self, waiting: Waiting) -> None:
        """Forget a call: it was answered, or is not wanted any more."""
        del self._waiting[waiting.id]

    def interrupt(self) -> None:
        """Have all of them sent again: what was sent may not have arrived."""
        for waiting in self:
            waiting.sent = False

    def repeat(self, now: float) -> None:
        """Have those sent again that were not answered for long; ``now`` is monotonic, in s."""
        for waiting in self:
            if waiting.sent and now - waiting.when > UNANSWERED:
                waiting.sent = False


def _fill(call: pb.Call, waiting: Waiting, jobs: Mapping[str, MemberJob]) -> None:
    """Write into a message what is asked. Jobs that are submitted count as sent from here on."""
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
