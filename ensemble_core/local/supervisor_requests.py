"""Carries out a controller's requests to the supervisor: submit, cancel, resize, reattach …"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core.local.epoll_loop import Poller, PollerTimer
from ensemble_core.local.event_recorder import EventRecorder
from ensemble_core.local.job_lifecycle import JobLifecycle
from ensemble_core.local.killed_supervisor import LINES_LOST
from ensemble_core.local.ledger import LedgerJob
from ensemble_core.local.local_job import ActiveJobs, LocalJob, Phase
from ensemble_core.local.protocol import (
    decode,
    encode_context,
    encode_value,
)
from ensemble_core.local.slots import Slots
from ensemble_core.local.terminator import Token
from ensemble_core.local.waiting_jobs import Queue, Starter
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run

if TYPE_CHECKING:
    from ensemble_core.model.decisions import WhenBusy

Request = (
    tuple[Literal["submit"], Sequence[tuple[Job, Mapping[str, Any]]]]
    | tuple[Literal["cancel"], Sequence[str]]
    | tuple[Literal["signal"], Sequence[str], str]
    | tuple[Literal["resize"], str, int, "WhenBusy"]
    | tuple[Literal["forget"], Sequence[str]]
    | tuple[Literal["reattach"], Mapping[str, float], Callable[[Mapping[str, bool]], None]]
    | tuple[Literal["recall"], Sequence[str], Callable[[Sequence[str]], None]]
    | tuple[Literal["close"], Callable[[], None]]
    | tuple[Literal["drain"], str]
    | tuple[Literal["call"], Callable[[], None]]
)

#: How many submitted jobs are accepted per turn, so that a large submit does not delay the start of
#: other jobs.
_INTAKE = 500
#: How many seconds a controller that exits waits for jobs that are being killed.
_CLOSE_WAIT = 5.0

#: Events that are the same for every job.
_VALIDATE, _DEPEND = encode_context("validate"), encode_context("depend")


class RequestHandler:
    """Queues and carries out requests. Only :meth:`add` is thread-safe."""

    def __init__(
        self,
        run: Run,
        active: ActiveJobs,
        slots: Slots,
        queue: Queue,
        log: EventRecorder,
        poller: Poller[Token],
        starter: Starter,
        lifecycle: JobLifecycle,
    ) -> None:
        self._active = active
        self._slots = slots
        self._queue = queue
        self._log = log
        self._poller = poller
        self._starter = starter
        self._lifecycle = lifecycle
        self._terminator = lifecycle.terminator
        self._ledger = log.ledger
        #: Whether the journal is synced late. If not, events of waiting jobs are synced before they
        #: are sent.
        self._syncs_late = run.syncs_late
        ledger = log.ledger
        #: True if no job that the ledger has lost can be running, because of a restart.
        self.rebooted = run.syncs_late and ledger is not None and ledger.rebooted
        self._requests: deque[Request] = deque()
        #: Jobs, each with its fields as the controller has sent them.
        self._arrivals: deque[tuple[Job, Mapping[str, Any]]] = deque()
        self._leaving: list[LocalJob] = []
        self._left: Callable[[], None] | None = None
        self._last_call: PollerTimer | None = None
        self._numbers = itertools.count()
        #: Why the queue is drained; empty if it is not.
        self.drained = ""
        #: Jobs that waited when an earlier supervisor ended. They are held until a controller
        #: confirms that they are not over, because a power cut may have lost lines of the ledger,
        #: but not of the journal.
        self.held: dict[str, tuple[LocalJob, LedgerJob]] = {}

    def add(self, request: Request) -> None:
        self._requests.append(request)

    @property
    def draining(self) -> bool:
        """True if no job starts any more, because the allocation ends."""
        return bool(self.drained)

    @property
    def waiting(self) -> bool:
        """True if a request has not been carried out yet."""
        return bool(self._arrivals or self._requests)

    @property
    def accepting_jobs(self) -> bool:
        """True if some submitted jobs are not in the queue yet."""
        return bool(self._arrivals)

    def adopt(self, record: LocalJob) -> None:
        """Take over a job of an earlier supervisor that is not over."""
        record.number = next(self._numbers)
        self._active.records[record.job.id] = record

    def handle(self) -> None:
        self._accept_jobs()
        # Requests wait until earlier submits are in the queue.
        while self._requests and not self._arrivals:
            request = self._requests.popleft()
            if request[0] == "submit":
                self._arrivals.extend(request[1])
                self._accept_jobs()
            elif request[0] == "cancel":
                for name in request[1]:
                    self._cancel(name, "cancelled")
            elif request[0] == "signal":
                for name in request[1]:
                    if (record := self._active.records.get(name)) is not None:
                        self._lifecycle.signal(record, request[2])
            elif request[0] == "resize":
                self._resize(request[1], request[2], request[3])
            elif request[0] == "forget":
                self._forget(request[1])
            elif request[0] == "reattach":
                self._reattach(request[1], request[2])
            elif request[0] == "recall":
                request[2](self._recall(request[1]))
            elif request[0] == "close":
                self._close(request[1])
            elif request[0] == "drain":
                self._drain(request[1])
            else:
                request[1]()

    def _accept_jobs(self) -> None:
        for _ in range(min(_INTAKE, len(self._arrivals))):
            job, data = self._arrivals.popleft()
            known = job.id in self._active.records or (
                self._ledger is not None and self._ledger.knows(job.id)
            )
            if known and not self._accept_again(job, data):
                continue
            record = LocalJob(job, next(self._numbers))
            self._active.records[job.id] = record
            extra = () if self._ledger is None else (data,)
            submit = encode_context("submit", {"urgency": job.urgency}, *extra)
            self.wait(record, frozenset(), submit)

    def _accept_again(self, job: Job, data: Mapping[str, Any]) -> bool:
        """Handle a job that was submitted before: no job runs twice.

        This happens after a power cut, because the journal may lag behind the ledger. Return True
        if the job has never begun, and can be accepted as a new one. Otherwise, report its events,
        or, if it was a different job, because the run now decides otherwise, an end.
        """
        name = job.id
        if self._ledger is None:
            self._log.problem(f"job {name} was submitted before and does not run twice", "error")
            return False
        if self.held.pop(name, None) is not None:
            self._forget((name,))
            return True
        past = LedgerJob()
        for text in self._ledger.replay({name: 0.0}):
            past.take(decode(text.decode("ascii")))
        lost = f"job {name} was submitted before, and the journal has lost that (a power cut?)"
        if past.data == data:
            self._log.problem(f"{lost}: it does not run twice, and its record continues")
            self._reattach({name: 0.0}, lambda known: None)
        else:  # its events are not in the ledger, whose record of this name is of the other job
            note = f"{lost}: its files may be those of a different job, so it does not run"
            exception = {"type": "lost", "severity": 0, "note": note}
            self._log.add_event(JobEvent(self._log.now(), name, "submit"))
            self._log.add_event(JobEvent(self._log.now(), name, "exception", exception))
            self._log.add_event(JobEvent(self._log.now(), name, "clean"))
        return False

    def wait(self, record: LocalJob, told: Set[str], *first: str) -> None:
        """Queue a job, or end it if it can never run.

        ``told`` has the names of the events that the job has had. ``first`` has new events of the
        job, which are reported before all others.
        """
        job = record.job
        if not 0 <= job.urgency <= 31 or job.tasks < 1 or job.cores_per_task < 1:
            if first:
                self._log.add(record, *first)
            self._log.add_exception(
                record,
                "validate",
                f"urgency {job.urgency} (0 to 31), tasks {job.tasks} (1 or more) or"
                f" cores_per_task {job.cores_per_task} (1 or more) is out of range",
            )
            self._lifecycle.clean(record)
            return
        priority = encode_value("priority", "priority", job.urgency)
        if told:
            steps = {"validate": _VALIDATE, "depend": _DEPEND, "priority": priority}
            first += tuple(text for name, text in steps.items() if name not in told)
        else:
            first += (_VALIDATE, _DEPEND, priority)
        if first:
            self._log.add(record, *first)
        if self._ledger is not None and not self._syncs_late:
            self._ledger.keep()
        never = self._slots.never(job)
        if never is not None:
            _, why, hint = never
            self._log.add_exception(record, "alloc", f"{why}: {hint}")
            self._lifecycle.clean(record)
        else:
            self._queue.add(record)

    def _cancel(self, name: str, note: str) -> None:
        record = self._active.records.get(name)
        if record is None or record.reason not in ("", "task", "interrupted"):
            return
        if record not in self._active.running:
            self._log.add_exception(record, "cancel", f"{note} before it started")
            self._lifecycle.clean(record)
        else:
            self._starter.stop_waiting(record)
            self._lifecycle.cancel(record, note)

    def _recall(self, jobs: Sequence[str]) -> list[str]:
        """Drop those of these jobs that have never begun to start, and return them.

        After a crash, the ledger may still list a recalled job. It is then held, and forgotten
        because the controller does not name it.
        """
        recalled = []
        for name in jobs:
            record = self._active.records.get(name)
            if record is not None and not (record.allotted or record.inherited):
                record.over = True
                del self._active.records[name]
                recalled.append(name)
        self._forget(recalled)
        return recalled

    def _drain(self, why: str) -> None:
        """Start no more jobs, and end those that run, because the allocation ends.

        A repeated request has no effect: a queue may send its signal several times.
        """
        if self.draining:
            return
        self.drained = why
        running = list(self._active.running)
        if self._ledger is None:
            for name in list(self._active.records):
                self._cancel(name, f"cancelled: {why}")
            return
        for record in running:
            self._starter.stop_waiting(record)
            self._lifecycle.interrupt(record)
        if self._lifecycle.tied:  # the controller of pilots says what becomes of their jobs
            return
        ended, waiting = len(running), len(self._active.records) - len(self._active.running)
        self._log.problem(
            f"{why}, as at the end of an allocation: no more jobs start; running jobs get SIGTERM "
            f"and run again after a resume ({ended}), waiting jobs stay on record ({waiting})"
        )

    def _resize(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        slots = self._slots
        done = None if self._ledger is None else self._ledger.requests.get(request)
        if done is not None:  # a repeated request: the controller did not get the answer
            self._log.answer(request, "denied" if done == "denied" else "granted", "", True)
            return
        # A resize ends no job: a slot in use is kept, or is removed when its job ends.
        spared = 0
        if when_busy == "skip" and delta < 0:
            spared = max(0, -delta - max(0, slots.free))
        change = slots.resize(delta + spared)
        reason = ""
        if spared:
            reason = f"{spared} of them are in use"
        elif change != delta:
            if delta > 0:
                reason = f"--max-slots is {slots.largest}"
            else:
                reason = f"--min-slots is {slots.smallest}"
        denied = change == 0 and delta != 0
        self._log.answer(request, "denied" if denied else "granted", reason, False)

    def _forget(self, jobs: Sequence[str]) -> None:
        if self._ledger is not None:
            self._ledger.forget(name for name in jobs if name not in self._active.records)

    def _reattach(
        self, jobs: Mapping[str, float], answer: Callable[[Mapping[str, bool]], None]
    ) -> None:
        records, ledger = self._active.records, self._ledger
        self._queue_held(jobs)
        # New events must be sent and synced before old ones are sent again.
        self._log.publish()
        known = {
            name: name in records or (ledger is not None and ledger.knows(name)) for name in jobs
        }
        answer(known)
        if ledger is not None:
            wanted = {name: since for name, since in jobs.items() if known[name]}
            self._log.deliver(ledger.replay(wanted))
        for name in jobs:
            if name in records:
                records[name].reported = True

    def _queue_held(self, jobs: Mapping[str, float]) -> None:
        """Queue those held jobs that are not over according to the journal.

        ``jobs`` maps each job that is not over to the time of its last event in the journal. If
        that is later than in the ledger, lines were lost. After a power cut, such a job is unknown
        here: the controller submits it again, unless the journal shows that it has started.
        Otherwise, the job has started; it is reported as lost, so that it does not run twice. A job
        without an event in the journal and without a submit in the ledger was never submitted.
        """
        held, self.held = self.held, {}
        for name, (record, past) in held.items():
            lines_lost = past.data is None or jobs.get(name, 0.0) > past.newest
            if name not in jobs or (lines_lost and (self.rebooted or not jobs[name])):
                self._forget((name,))
                continue
            self.adopt(record)
            if lines_lost:
                self._log.add_exception(record, "lost", LINES_LOST)
                self._lifecycle.clean(record)
            else:
                self.wait(record, past.names)

    def _close(self, left: Callable[[], None]) -> None:
        """Handle the exit of the controller: kill jobs that are being terminated, and continue the
        others.
        """
        running = self._active.running
        self._leaving = [record for record in running if record.phase is not Phase.NONE]
        for record in () if self.draining else self._leaving:
            self._terminator.end_now(record)
        self._left = left
        self._last_call = self._poller.at(time.monotonic() + _CLOSE_WAIT, self._finish_close)

    def _finish_close(self) -> None:
        left, self._left = self._left, None
        self._leaving = []
        if self._last_call is not None:
            self._last_call.cancel()
        if left is not None:
            left()

    def confirm_close(self) -> None:
        """Confirm the exit of the controller once the jobs that were being terminated are over."""
        if self._left is not None and all(record.over for record in self._leaving):
            self._finish_close()
