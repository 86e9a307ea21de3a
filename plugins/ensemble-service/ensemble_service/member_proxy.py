"""Member proxy: the object in a run's controller that represents one member.

Callers must hold the lock of the executor ``remote``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from ensemble_core import (
    Event,
    ExecutorError,
    ExecutorLost,
    JobEvent,
    Problem,
    ResizeOutcome,
    Resources,
)
from ensemble_service.event_admission import EventAdmission, MemberJob, MemberJobs
from ensemble_service.event_delivery import KEPT, Inbox, origin_of
from ensemble_service.hosted_run import BLIND, FOREIGN_JOBS, HOME
from ensemble_service.pending_calls import UNANSWERED, Kind, PendingCalls, RunContext, Waiting
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.request_limits import RateLimiter
from ensemble_service.run_members import Absence
from ensemble_service.wire import clean, in_parts, to_error

__all__ = ["MemberProxy", "RunContext"]

#: Seconds until a member that has not joined the run is asked again.
_AGAIN = 2.0
#: Rate limit of gauge updates that are passed on immediately: per second, and burst.
_GAUGE_RATE = (20.0, 200.0)
#: Maximum number of capabilities of one member.
_MOST_CAPABILITIES = 100


# When a new life begins at the member (see hosted_run), the proxy first asks which jobs the member
# knows. Until the answer, it keeps all other calls. Jobs that never arrived are resubmitted. Jobs
# that had arrived, but are unknown now, are reported as lost. The member repeats the events of its
# jobs; ``MemberJobs`` drops those that have arrived before.
class MemberProxy:
    """One member, as a run's controller sees it.

    Calls (submit, cancel …) are sent in order and resent until they are answered. The member
    carries out each call once.
    """

    def __init__(self, name: str, run: RunContext, offsets: tuple[int, int] = (0, 0)) -> None:
        self.name = name
        self._run = run
        #: Whether the member is connected. ``state`` says whether it has also joined the run.
        self.present = False
        self.state: Literal["away", "opening", "asking", "open"] = "away"
        #: Why the last attempt to open the member failed.
        self.refusal: ExecutorError | None = None
        self._told_refusal = ""
        #: The error that the member reported when the run left it.
        self.left_badly: ExecutorError | None = None
        self.capabilities: frozenset[str] = frozenset()
        self.gauges: dict[str, float] = {}
        self.jobs = MemberJobs()
        #: The member's answers about the run's jobs, until they are fetched.
        self.found: dict[str, bool] = {}
        #: Whether the member is unable to find out whether a job arrived.
        self.blind = False
        #: The folder of the run at the member.
        self._home = ""
        self._inbox = Inbox()
        self._absence = Absence(name, run.tell, run.clock)
        self._opening = 0
        self._calls = PendingCalls(name, run, self.jobs)
        #: Resize requests that have no outcome yet.
        self._resizes: dict[str, pb.Resize] = {}
        self._admission = EventAdmission(
            name,
            self.jobs,
            self._resizes,
            elsewhere=partial(run.elsewhere, name),
            tell=run.warn,
            ahead=partial(run.ahead, name),
            offsets=offsets,
            shared=run.shared,
        )
        #: Changed gauges that :meth:`tick` will pass on.
        self._untold: set[str] = set()
        self._gauge_turns = RateLimiter(*_GAUGE_RATE)
        #: Whether the member reports that another controller has taken over the run.
        self.disowned = False
        #: When to retry what failed.
        self._again: float | None = None

    @property
    def open(self) -> bool:
        return self.state == "open"

    @property
    def opened(self) -> bool:
        """True if the member has ever joined the run."""
        return self._inbox.life is not None

    @property
    def sees_foreign_jobs(self) -> bool:
        return FOREIGN_JOBS in self.capabilities

    def waits(self, kind: Kind) -> bool:
        """Return whether a call of this kind is unanswered."""
        return any(each.kind == kind and not each.own for each in self._calls)

    # -- requests of the run -------------------------------------------------------------------

    def submit(self, messages: Sequence[pb.Job], names: Sequence[str]) -> None:
        """Submit jobs to the member, or keep them until the member is connected."""
        begin = 0
        for part in in_parts(messages):
            ids = list(names[begin : begin + len(part)])
            begin += len(part)
            for job, data in zip(ids, part, strict=True):
                self.jobs[job] = MemberJob(data)
            self._calls.put("submit", ids)
        self._absence.holds_up(names)
        self._pump()

    def cancel(self, jobs: Iterable[str]) -> None:
        """Cancel the given jobs that the member has; ignore other members' jobs.

        Jobs that were never sent are dropped.
        """
        mine = [job for job in jobs if job in self.jobs]
        unsent = {job for job in mine if not self.jobs[job].sent}
        if unsent:
            self._calls.withdraw(unsent)
            self._run.tell(self.jobs.take_back(unsent, self._run.clock(), self.name))
        rest = [job for job in mine if job not in unsent]
        self._calls.put_parts("cancel", rest)
        self._pump()

    def resize(self, request: str, delta: int, when_busy: str) -> None:
        """Request another size. The outcome arrives as an event."""
        resize = pb.Resize(request=request, delta=delta, when_busy=when_busy)
        self._resizes[request] = resize
        self._calls.put("resize").resize = resize
        self._pump()

    def reattach(self, jobs: Mapping[str, float]) -> None:
        """Ask the member which of these jobs of an earlier controller it knows.

        The answer arrives in ``found``.
        """
        for job, newest in jobs.items():
            newest = self._admission.to_member_time(newest)
            self.jobs[job] = MemberJob(None, newest, newest, sent=True)
        self._calls.put_parts("reattach", list(jobs))
        self._pump()

    def forget(self, jobs: Sequence[str]) -> None:
        """Let the member forget its jobs among these."""
        self._calls.put_parts("forget", self.jobs.forget(jobs))
        self._pump()

    def close(self) -> None:
        """Leave the run."""
        if self.present and (self.opened or self.state != "away"):
            self._calls.put("close")
            self._pump()

    # -- sending -------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send the calls that can be sent."""
        if self.state in ("open", "asking"):
            self._calls.send(own=self.state == "asking")

    def ask_to_open(self) -> None:
        """Ask the member to join the run, or announce a reconnection.

        Waiting calls are sent after the member's answer.
        """
        self.state = "opening"
        self._again = time.monotonic() + UNANSWERED
        self._opening = self._run.number()
        call = self._calls.message(self._opening)
        call.open.SetInParent()
        self._run.send(pb.FromRun(call=call))

    # -- connection ----------------------------------------------------------------------------

    def connected(self) -> None:
        """Handle the member's connection."""
        self.present = True
        self._absence.end()
        self.ask_to_open()

    def disconnected(self, now: float) -> None:
        """Handle the loss of the member or the service at time ``now`` (monotonic seconds)."""
        self.present = False
        self._absence.begin(now)
        self._interrupt()

    def _interrupt(self) -> None:
        self.state, self._again = "away", None
        self._calls.interrupt()

    def tick(self, now: float) -> None:
        """Do what is due at time ``now`` (monotonic seconds): acknowledge, retry, report
        absences.
        """
        if self._untold:
            paths, self._untold = self._untold, set()
            self._run.gauges(paths, self._run.clock())
        if self.state != "away":
            self._acknowledge(now)
        if self._again is not None and now >= self._again and self.present:
            self._again = None
            if self.state in ("away", "opening"):
                self.ask_to_open()
        self._calls.repeat(now)
        self._pump()
        self._absence.tick(now, self.jobs, self.opened)

    def is_group_away(self, group: str) -> bool:
        """Return whether the run considers this group away because the member is."""
        return self._absence.of_group(group, self.present)

    # -- answers -------------------------------------------------------------------------------

    def answered(self, answer: pb.Answer, now: float) -> None:
        """Handle an answer received at time ``now`` (monotonic seconds)."""
        what = answer.WhichOneof("what")
        if answer.id == self._opening and self.state == "opening":
            if what == "opened":
                self._on_opened(answer.opened)
            elif what == "fault":
                self._on_open_failure(answer.fault, now)
            return
        if not answer.id and what is None:
            # The member had to begin another life.
            if self.state != "away":
                self._interrupt()
                self.ask_to_open()
            return
        waiting = self._calls.sent(answer.id)
        if waiting is None:
            return
        if what == "fault" and self._must_repeat(waiting, answer.fault, now):
            return
        self._calls.done(waiting)
        if what == "fault":
            self._refused(waiting, answer.fault)
        elif what == "found" and waiting.kind == "reattach":
            self._has_found(waiting, answer.found.jobs)
        if waiting.own and not self._calls.asking:
            self._resubmit_missing()
        self._pump()

    def _must_repeat(self, waiting: Waiting, fault: pb.Fault, now: float) -> bool:
        """Return whether a fault only means that the call must be repeated. If so, prepare the
        repetition.
        """
        code = fault.code
        if code == "stale":
            self._disown(fault, now)
            return True
        if code == "away":
            waiting.sent = False  # resent when the member is back
            return True
        if waiting.kind == "reattach" and code not in (BLIND, "not-open"):
            # The member's queue cannot be reached, so the state of its jobs is unknown now.
            self._interrupt()
            self._on_open_failure(fault, now)
            return True
        if code == "not-open":
            waiting.sent = False
            # If several calls were in flight, only the first of their answers gets here.
            self._interrupt()
            self.ask_to_open()
            return True
        return False

    def _refused(self, waiting: Waiting, fault: pb.Fault) -> None:
        error = to_error(fault, self.name)
        now = self._run.clock()
        if waiting.kind == "submit":
            self._end_jobs(
                [job for job in waiting.jobs if job in self.jobs and not self.jobs[job].newest],
                "submit",
                str(error),
            )
        elif waiting.kind == "cancel":
            message = f"cannot cancel {len(waiting.jobs)} jobs: {error}"
            self._run.tell([Problem(now, message, "error", tuple(waiting.jobs))])
        elif waiting.kind == "resize":
            assert waiting.resize is not None
            request = waiting.resize.request
            self._resizes.pop(request, None)
            outcome: Literal["undelivered", "denied"] = (
                "undelivered" if error.transient else "denied"
            )
            self._run.tell([ResizeOutcome(now, request, outcome, reason=error.what)])
        elif waiting.kind == "reattach":
            self._report_unknown(waiting, error)
        elif waiting.kind == "close":
            self.left_badly = error

    def _report_unknown(self, waiting: Waiting, error: ExecutorError) -> None:
        """Report that the state of these jobs cannot be determined.

        The jobs may have arrived, so none of them is resubmitted.
        """
        self._run.warn(str(error))
        if waiting.own:
            self._end_jobs([job for job in waiting.jobs if job in self.jobs], "lost", str(error))
            return
        self.blind = True
        for job in waiting.jobs:
            self.jobs.pop(job, None)

    def _end_jobs(self, jobs: Iterable[str], kind: str, note: str) -> None:
        """Report these jobs as over and ignore their later events."""
        now = self._run.clock()
        context = {"type": kind, "severity": 0, "note": note}
        events: list[Event] = []
        for job in jobs:
            known = self.jobs.end(job)
            when = max(now, self._admission.at(known.newest, now))
            events.append(JobEvent(when, job, "exception", context))
            events.append(JobEvent(when, job, "clean"))
        if events:
            self._run.tell(events)

    # -- lives ---------------------------------------------------------------------------------

    def _on_open_failure(self, fault: pb.Fault, now: float) -> None:
        if fault.code == "stale":
            self._disown(fault, now)
            return
        self.state = "away"
        if fault.code == "away":
            return
        error = to_error(fault, self.name)
        if (self.opened or self.jobs) and str(error) != self._told_refusal:
            self._told_refusal = str(error)
            self._run.warn(str(error))
        self.refusal = error
        self._again = now + _AGAIN

    def _disown(self, fault: pb.Fault, now: float) -> None:
        """Handle a member that reports that it obeys another controller.

        Send it no requests, but keep asking it to join.
        """
        self._interrupt()
        self._again = now + _AGAIN
        if not self.disowned:
            self.disowned = True
            self._run.stale(self.name, clean(fault.message))

    def _queue_lost(self, event: ExecutorLost) -> None:
        """Handle the loss of the member's queue.

        The member is repeatedly asked to begin another life, until the queue is back. Then the
        member reports its jobs. The run and the other members continue meanwhile.
        """
        hint = f"\n  hint: {event.hint}" if event.hint else ""
        self._run.warn(
            f"executor {clean(event.executor, 100)} of member {self.name} lost its queue: "
            f"{event.reason}; requests to this member wait until the queue is back{hint}"
        )
        self._interrupt()
        self._again = time.monotonic() + _AGAIN

    def _on_opened(self, opened: pb.Opened) -> None:
        self.refusal, self._told_refusal = None, ""
        self._again, self.disowned = None, False
        capabilities = [clean(name, 300) for name in opened.capabilities[:_MOST_CAPABILITIES]]
        homes = [name for name in capabilities if name.startswith(HOME)]
        self.capabilities = frozenset(capabilities).difference(homes)
        self._admission.sees_foreign_jobs = self.sees_foreign_jobs
        earlier = self._inbox.life
        self._gauges(self._admission.gauges(opened.resources), self._run.clock())
        self._inbox.begin(opened.life, opened.kept_from)
        if earlier != opened.life:
            home = homes[0] if homes else ""
            if self._home and home != self._home:
                self.jobs.moved()
            self._home = home or self._home
            for waiting in [each for each in self._calls if each.own]:
                self._calls.done(waiting)
            if earlier is not None:
                self._query_jobs()
                self._repeat_resizes()
        # Within a life, the question about jobs keeps its id, so that events are replayed only
        # once.
        self.state = "asking" if self._calls.asking else "open"
        self._pump()

    def _query_jobs(self) -> None:
        """After a restart of the member, ask which of our jobs it knows."""
        asked = {job for each in self._calls if each.kind == "reattach" for job in each.jobs}
        self._calls.put_parts("reattach", self.jobs.to_ask(asked), own=True)

    def _repeat_resizes(self) -> None:
        """After a restart of the member, repeat unanswered resize requests.

        If the member has already carried out a request, it reports the outcome and does not repeat
        it.
        """
        asked = {each.resize.request for each in self._calls if each.resize is not None}
        for request, resize in self._resizes.items():
            if request not in asked:
                self._calls.put("resize").resize = resize

    def _has_found(self, waiting: Waiting, found: Mapping[str, bool]) -> None:
        if not waiting.own:
            self.found.update({job: bool(found.get(job)) for job in waiting.jobs})
            for name in waiting.jobs:
                if not found.get(name):
                    self.jobs.pop(name, None)
            return
        note = f"member {self.name} no longer knows this job, so its outcome is unknown"
        self._end_jobs(self.jobs.found(waiting.jobs, found), "lost", note)

    def _resubmit_missing(self) -> None:
        """Resubmit the jobs that the member never received, before all other waiting calls."""
        self._calls.submit_first(self.jobs.unsent())
        self.state = "open"

    # -- events --------------------------------------------------------------------------------

    def received(self, batch: pb.Batch) -> None:
        """Handle a batch of events."""
        new = self._inbox.new(batch.life, batch.first, batch.events)
        if new is None:
            # Earlier events are missing. The member will resend them with these.
            if self.state == "open":
                self._interrupt()
                self.ask_to_open()
            return
        events: list[Event] = []
        now, admission = self._run.clock(), self._admission
        for message in new:
            event = admission.take(message, now)
            if event is None or (
                isinstance(event, JobEvent) and event.ours and not self.jobs.is_news(event)
            ):
                continue
            if isinstance(event, KEPT):
                origin = origin_of(message)
                if origin is not None and self._inbox.is_repeated(*origin):
                    continue
            when = event.timestamp
            if when > now or admission.offset:
                when = admission.at(when, now)
                event = replace(event, timestamp=when)
            if isinstance(event, (Resources, ExecutorLost)):
                if events:
                    self._run.tell(events)
                    events = []
                if isinstance(event, Resources):
                    self._gauges(event.values, when)
                else:
                    self._queue_lost(event)
                continue
            if isinstance(event, ResizeOutcome):
                self._resizes.pop(event.request, None)
            events.append(event)
        if events:
            self._run.tell(events)
        if self.state != "away":
            self._acknowledge()

    def _acknowledge(self, now: float | None = None) -> None:
        number = self._inbox.to_acknowledge(now)
        if number is not None:
            life = self._inbox.life or ""
            ack = pb.Ack(run=self._run.run, member=self.name, life=life, seq=number)
            self._run.send(pb.FromRun(ack=ack))

    def _gauges(self, values: Mapping[str, float], when: float) -> None:
        changed = [path for path, value in values.items() if self.gauges.get(path) != value]
        self.gauges.update(values)
        if changed and self._gauge_turns.take("", time.monotonic()):
            self._untold.difference_update(changed)
            self._run.gauges(changed, when)
        else:
            self._untold.update(changed)
