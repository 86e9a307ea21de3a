"""A run at a member agent: carries out the calls of the run's controller, and collects events.

The run's folder (:class:`RunFolder`) has what the next agent needs after a restart.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from ensemble_core import (
    EnsembleError,
    Event,
    Executor,
    ExecutorError,
    ExecutorLost,
    JobEvent,
    Run,
    private_folder,
)
from ensemble_service.event_delivery import MOST, KeptEvents, Outbox
from ensemble_service.heartbeats import MemberStats
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.state_folder import write_atomically
from ensemble_service.wire import from_error, from_event, to_jobs

#: Capability of an executor that sees foreign jobs.
FOREIGN_JOBS = "strangers"
#: Prefix of the capability that names this run's folder at the member. An agent with another folder
#: does not know which jobs an earlier agent received.
HOME = "home:"
#: Fault code of an executor that can never find jobs again.
BLIND = "cannot-reattach"
#: Maximum number of remembered answers. A controller has far fewer calls in progress.
_REMEMBERED = 1_000
#: Maximum factor by which the limit on kept events may grow after an overflow.
_MOST_ROOM = 16
_log = logging.getLogger("ensemble.member")


# The controllers of a run are numbered; a controller's number is its *epoch*.
#
# The time from one opening of the executor to the next is a *life* of the run at this member. In
# each life, events are numbered from 1. A new life begins for a new controller, after a restart of
# the agent, after the executor lost its queue, and if too many events wait. A controller that sees
# a new life asks for the state of its jobs. Within a life, events are resent until acknowledged.
class HostedRun:
    """A run on this member. Calls are queued, and performed one by one on the run's own thread."""

    def __init__(
        self,
        name: str,  # the run's name: its tag and identity
        member: str,
        build: Callable[[], Executor],  # creates an executor
        folder: Path,  # of the run
        stats: MemberStats,
        *,
        answer: Callable[[pb.Answer], None],  # sends an answer
        news: Callable[[], None],  # called if events are ready to be sent
        # Called after a call that leaves the run closed. Makes the agent forget the run and returns
        # true, or returns false if another call for the run is waiting.
        over: Callable[[HostedRun], bool],
    ) -> None:
        self.name = name
        self._member = member
        self._build = build
        self._folder = RunFolder(folder)
        self._stats = stats
        self._answer = answer
        self._news = news
        self._over = over
        self._calls: queue.SimpleQueue[pb.Call | Callable[[], object] | None] = queue.SimpleQueue()
        #: The current life: its events and its executor. Without an executor, no events are added.
        self.outbox = Outbox("")
        self._kept = KeptEvents(folder / "unacknowledged")
        #: Held while events are added, so that they are numbered in order.
        self._adding = threading.Lock()
        self._executor: Executor | None = None
        #: Whether the life must end because the queue or events were lost.
        self._broken = False
        self._draining = False
        #: Set when the queue has ended, after :meth:`drain`.
        self.drained = threading.Event()
        #: Additional events to keep after an overflow, because the executor will repeat the lost
        #: ones.
        self._room = 1
        self._home = ""
        self._answers: OrderedDict[int, pb.Answer] = OrderedDict()
        #: Jobs that this life received or found again, and those among them that are not over.
        self._handed: set[str] = set()
        self._active: set[str] = set()
        self._newest = 0.0
        self._wall, self._monotonic = time.time(), time.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"run {name}", daemon=True)
        self._thread.start()

    # -- called by the agent -------------------------------------------------------------------

    def take(self, call: pb.Call) -> None:
        """Queue a call."""
        self._calls.put(call)

    @property
    def idle(self) -> bool:
        """True if no call is waiting."""
        return self._calls.empty()

    def acknowledge(self, life: str, number: int) -> None:
        """Drop the events of this life up to this number, because the run has received them."""
        outbox = self.outbox
        if life == outbox.life:
            outbox.acknowledge(number)
            self._kept.acknowledge(life, outbox.first - 1)
            self._news()

    def disconnected(self) -> None:
        """Stop sending, because the service is unreachable."""
        self.outbox.stop()

    def batch(self) -> pb.Batch | None:
        """Return the next events to send; ``None`` if nothing can be sent."""
        outbox = self.outbox
        taken = outbox.take()
        if taken is None:
            return None
        first, events = taken
        return pb.Batch(
            run=self.name, member=self._member, life=outbox.life, first=first, events=events
        )

    def drain(self) -> None:
        """Let the queue end if it ends with the agent's allocation. Then set ``drained``."""
        self._calls.put(self._drain)

    def leave(self, timeout: float) -> None:
        """Close the executor because the agent stops. Jobs continue if the executor can detach from
        them.
        """
        self._calls.put(self._end_life)
        self._calls.put(None)
        self._thread.join(timeout)

    # -- the run's thread ----------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            try:
                if not isinstance(call, pb.Call):
                    call()
                    continue
                self._perform(call)
            except Exception:  # this thread must survive: nothing else performs the next call
                _log.exception("run %s: a call failed", self.name)
            if self._executor is None and self._over(self):
                return

    def _perform(self, call: pb.Call) -> None:
        what = call.WhichOneof("what")
        if not call.epoch:
            self._cancel_for_service(call)
            return
        answer = pb.Answer(run=call.run, member=call.member, epoch=call.epoch, id=call.id)
        refusal = self._refusal(call, what)
        if refusal is not None:
            answer.fault.CopyFrom(refusal)
            self._answer(answer)
            return
        if what == "open":
            self._open(call.epoch, answer)
            return
        known = self._answers.get(call.id)
        if known is not None:
            self._answer(known)
            return
        try:
            self._handle_call(what or "", call, answer)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if self._broken and what not in ("close", "reattach"):
                # The queue was lost, so the call is repeated when it is back.
                answer.fault.CopyFrom(self._not_open())
                self._answer(answer)
                return
            if not isinstance(error, EnsembleError):
                _log.exception("run %s: %s failed", self.name, what)
            answer.fault.CopyFrom(from_error(error))
            # The events may be incomplete, so the next ``reattach`` starts another life.
            self._broken = self._broken or (what == "reattach" and answer.fault.code != BLIND)
        self._answers[call.id] = answer
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        self._answer(answer)

    def _refusal(self, call: pb.Call, what: str | None) -> pb.Fault | None:
        if call.epoch < self._folder.epoch:
            message = f"another controller has run {self.name}"
            return pb.Fault(message=message, code="stale")
        if what == "open" and self._draining:
            return pb.Fault(message=f"member {self._member} is stopping", code="away")
        if what == "open" or (what == "close" and self._executor is None):
            return None
        if self._executor is None or call.epoch > self._folder.epoch:
            return self._not_open()
        return None

    def _not_open(self) -> pb.Fault:
        message = f"run {self.name} is not open here"
        return pb.Fault(message=message, code="not-open", transient=True)

    def _handle_call(self, what: str, call: pb.Call, answer: pb.Answer) -> None:
        executor = self._executor
        if what == "close":
            failed = self._end_life()
            self._kept.clear()
            if failed is not None:
                raise failed
            answer.done.SetInParent()
            return
        assert executor is not None
        if what == "submit":
            jobs = [job for job in to_jobs(call.submit.jobs) if job.id not in self._handed]
            names = [job.id for job in jobs]
            if jobs:
                # Record the jobs before the submission, because their first events may come during
                # it.
                self._handed.update(names)
                self._active.update(names)
                try:
                    executor.submit(jobs)
                except BaseException:
                    self._handed.difference_update(names)
                    self._active.difference_update(names)
                    raise
            answer.done.SetInParent()
        elif what == "cancel":
            executor.cancel(list(call.cancel.jobs))
            answer.done.SetInParent()
        elif what == "resize":
            resize = call.resize
            when_busy = cast(Any, resize.when_busy or "wait")
            executor.resize(resize.request, resize.delta, when_busy=when_busy)
            answer.done.SetInParent()
        elif what == "reattach":
            jobs_of: Mapping[str, float] = dict(call.reattach.jobs)
            if "reattach" not in executor.capabilities:
                raise ExecutorError(
                    f"executor {type(executor).__name__} cannot find the jobs of an earlier "
                    "controller",
                    code=BLIND,
                )
            self._active.update(jobs_of)
            found = executor.reattach(jobs_of)
            known = [job for job, there in found.items() if there]
            self._handed.update(known)
            self._active.difference_update(job for job in jobs_of if not found.get(job))
            answer.found.jobs.update(found)
            if executor.queue_is_new:
                gone = {job: found.get(job) for job in jobs_of if jobs_of[job] and job not in known}
                answer.found.jobs.update(dict.fromkeys(gone, True))
                self._end_with_queue(gone)
            answer.found.SetInParent()
        elif what == "forget":
            jobs_over = list(call.forget.jobs)
            executor.forget(jobs_over)
            self._handed.difference_update(jobs_over)
            answer.done.SetInParent()
        else:
            raise ExecutorError(
                "unknown request from the run's controller: update ensemble-service at this member",
                code="unknown-call",
            )

    def _end_with_queue(self, gone: Mapping[str, bool | None]) -> None:
        """Report the ends of jobs whose queue no longer exists, as the queue could not.

        The run submits those again that had not started (``False``).
        """
        now = self._clock()
        events: list[Event] = []
        for job, found in gone.items():
            kind = "interrupted" if found is False else "node-failure"
            context = {"type": kind, "severity": 0, "note": "its queue was lost with its node"}
            events += [JobEvent(now, job, "exception", context), JobEvent(now, job, "clean")]
        self._emit(self.outbox, events)

    def _cancel_for_service(self, call: pb.Call) -> None:
        """Carry out a request of the service itself, made by a person. Only cancels are allowed."""
        if self._executor is None or call.WhichOneof("what") != "cancel":
            return
        jobs = list(call.cancel.jobs) or list(self._active)
        try:
            self._executor.cancel(jobs)
        except (Exception, SystemExit) as error:  # no caller waits for an answer
            _log.warning("run %s: cannot cancel jobs: %s", self.name, error)

    def _drain(self) -> None:
        self._draining = True
        if self._executor is None or not self._executor.drains:
            self.drained.set()
            return
        try:
            self._executor.drain()
        except (Exception, SystemExit) as error:  # the agent exits now
            _log.warning("run %s: its queue cannot end in order: %s", self.name, error)
            self.drained.set()

    # -- lives ---------------------------------------------------------------------------------

    def _open(self, epoch: int, answer: pb.Answer) -> None:
        """Open the run: continue the current life, or begin another."""
        opened = pb.Opened()
        try:
            if epoch > self._folder.epoch or self._executor is None or self._broken:
                self._end_life()
                if epoch > self._folder.epoch:
                    self._folder.begin_epoch(epoch)
                    # The previous controller may have journaled these events, and no event may come
                    # twice.
                    self._kept.clear()
                self._begin_life()
            self._report_opened(opened)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if not isinstance(error, EnsembleError):
                _log.exception("cannot open run %s", self.name)
            answer.fault.CopyFrom(from_error(error))
            self._answer(answer)
            return
        answer.opened.CopyFrom(opened)
        self._answer(answer)
        # Do this last: before the answer, the run does not know this life.
        self.outbox.rewind()
        self._news()

    def _report_opened(self, opened: pb.Opened) -> None:
        executor = self._executor
        assert executor is not None
        opened.life, opened.kept_from = self.outbox.life, self.outbox.first
        foreign = (FOREIGN_JOBS,) if executor.sees_foreign_jobs else ()
        home = (HOME + self._home,) if self._home else ()
        opened.capabilities.extend((*sorted(executor.capabilities), *foreign, *home))
        gauges = dict(executor.resources())
        opened.resources.update(gauges)
        self._stats.gauges(gauges)

    def _begin_life(self) -> None:
        outbox = Outbox(secrets.token_hex(8), MOST * self._room)
        executor = self._build()
        output, state = self._folder.path / "output", self._folder.path / "executor"
        try:
            private_folder(output)
        except OSError as error:
            raise ExecutorError(
                f"cannot create the run's folder {output}",
                cause=error.strerror or str(error),
                hint="start the member with another --state",
                code="no-folder",
            ) from None
        self._home = self._folder.name()
        outbox.add(self._kept.begin(outbox.life))
        self.outbox, self._broken = outbox, False
        self._answers.clear()
        self._handed, self._active = set(), set()
        self._wall, self._monotonic = max(time.time(), self._newest), time.monotonic()
        # Two members may share a machine or a queue; keep their jobs apart.
        tag = f"{self.name.rpartition('.')[0] or self.name}.{self._member.replace('/', '.')}"
        ident = sha256(f"{self.name} {self._member}".encode()).hexdigest()[:16]
        run = Run(tag, output, self._clock, state, ident)
        executor.open(run, lambda events: self._emit(outbox, events))
        self._executor = executor
        _log.info("run %s is open (epoch %d)", self.name, self._folder.epoch)

    def _end_life(self) -> Exception | SystemExit | None:
        """Close the executor. Return the error if that failed."""
        executor, self._executor = self._executor, None
        self.outbox = Outbox("")  # drop what it emits from here on
        self._kept.close()
        self._stats.leave(self.name)
        if executor is None:
            return None
        failed: Exception | SystemExit | None = None
        try:
            executor.close()
        except (Exception, SystemExit) as error:  # it is closed now
            _log.warning("run %s: the executor was closed with an error: %s", self.name, error)
            failed = error
        with contextlib.suppress(OSError):
            (self._folder.path / "output").rmdir()  # remove it if it is empty
        _log.info("run %s is closed", self.name)
        return failed

    def _emit(self, outbox: Outbox, events: Sequence[Event]) -> None:
        """Take events from the executor, on any of its threads."""
        if outbox is not self.outbox:
            return
        messages, sent = [], []
        for event in events:
            self._newest = max(self._newest, event.timestamp)
            if isinstance(event, JobEvent):
                if event.name == "clean":
                    self._active.discard(event.job)
            elif isinstance(event, ExecutorLost):
                self._broken = True
                self.drained.set()
            try:
                messages.append(from_event(event))
            except (TypeError, ValueError) as error:
                _log.error("run %s: cannot send an event: %r: %s", self.name, event, error)
            else:
                sent.append(event)
        self._stats.add(self.name, sent)
        with self._adding:
            if outbox is self.outbox:
                self._kept.add(outbox.end, sent, messages)
            added = outbox.add(messages)
        if not added:
            _log.error(
                "run %s: too many unsent events were dropped; when the run connects again, it "
                "looks for its jobs",
                self.name,
            )
            self.outbox, self._broken = Outbox(""), True
            self._room = min(self._room * 2, _MOST_ROOM)
            self._calls.put(self._overflow)
        self._news()

    def _overflow(self) -> None:
        """End the life because its events overflowed, so that the run must find its jobs again.

        A connected run learns of this from an answer that belongs to no call.
        """
        if self._broken and not self.outbox.life:
            self._end_life()
            self._answer(pb.Answer(run=self.name, member=self._member, epoch=self._folder.epoch))

    def _clock(self) -> float:
        return self._wall + (time.monotonic() - self._monotonic)


class RunFolder:
    """A member agent's folder for one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Number of the run's newest controller; 0 if unknown. Calls of earlier ones are rejected.
        try:
            self.epoch = int((path / "epoch").read_text("ascii"))
        except (OSError, ValueError):
            self.epoch = 0

    def name(self) -> str:
        """Return the folder's permanent, random name; empty if it cannot be written.

        If the name changes, another agent has replaced the previous one, and may not know its jobs.
        """
        path = self.path / "home"
        with contextlib.suppress(OSError, ValueError):
            if name := path.read_text("ascii").strip():
                return name
        name = secrets.token_hex(8)
        try:
            write_atomically(path, name.encode("ascii"))
        except OSError:
            return ""
        return name

    def begin_epoch(self, epoch: int) -> None:
        """Record an epoch durably before acting on it.

        Otherwise a restarted agent could carry out a call of an earlier controller.
        """
        path = self.path / "epoch"
        try:
            write_atomically(path, str(epoch).encode("ascii"))
        except OSError as error:
            raise ExecutorError(
                f"the member cannot write {path}",
                cause=error.strerror or str(error),
                code="no-state",
                transient=True,
            ) from None
        self.epoch = epoch
