"""The supervisor's loop: takes requests, starts jobs, sees them end, tells of it.

One turn of :meth:`SupervisorLoop.run` handles what has happened (processes ended, timers,
requests), starts what may start, and hands all events of the turn on in one call. All state here
belongs to the thread that runs it; :meth:`SupervisorLoop.post` is the only way in from another.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Literal

from ensemble_core.local.event_log import Deliver, EventLog
from ensemble_core.local.job_record import ActiveJobs, JobRecord, Phase, describe
from ensemble_core.local.launch import Launcher
from ensemble_core.local.ledger import RETRY, Ledger, LedgerJob
from ensemble_core.local.poller import Poller, Timer
from ensemble_core.local.process_tree import ProcessTree
from ensemble_core.local.protocol import encode_context, encode_job, encode_value
from ensemble_core.local.queue import Queue
from ensemble_core.local.recovery import past_records, why_lost
from ensemble_core.local.slots import Slots
from ensemble_core.local.starter import Starter
from ensemble_core.local.terminator import Terminator, Token
from ensemble_core.model.decisions import WhenBusy
from ensemble_core.model.events import ExecutorLost
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run

__all__ = ["Request", "SupervisorLoop"]

Request = (
    tuple[Literal["submit"], Sequence[Job]]
    | tuple[Literal["cancel"], Sequence[str]]
    | tuple[Literal["resize"], str, int, WhenBusy]
    | tuple[Literal["forget"], Sequence[str]]
    | tuple[Literal["reattach"], Mapping[str, float], Callable[[Mapping[str, bool]], None]]
    | tuple[Literal["close"], Callable[[], None]]
    | tuple[Literal["end"], str]
    | tuple[Literal["call"], Callable[[], None]]
)

#: Jobs taken in per turn, so that a large submit does not hold up those that could start.
_INTAKE = 500
#: Seconds between looks for dead orphans of jobs that go on running.
_TIDY = 30.0
#: Seconds for which events are gathered into one message while slots are what jobs wait for.
_GATHER = 0.002
#: Seconds for which one who leaves waits for jobs that are being killed.
_CLOSE_WAIT = 5.0

#: Events that are the same for each job.
_VALIDATE, _DEPEND = encode_context("validate"), encode_context("depend")
_RELEASE = encode_context("release", {"ranks": "all", "final": True})
_FREE, _CLEAN = encode_context("free"), encode_context("clean")


class SupervisorLoop:
    """The state of the supervisor and the thread that owns it.

    ``may_end`` is asked whenever no job is left. ``faulty`` says that the loop broke down.
    """

    def __init__(
        self,
        run: Run,
        deliver: Deliver,
        slots: Slots,
        grace: float,
        environment: Mapping[bytes, bytes],
        folder: str,
        may_end: Callable[[], bool],
        ledger: Ledger | None = None,
    ) -> None:
        self.active = ActiveJobs()
        self.faulty = False
        self.poller: Poller[Token] = Poller()
        self.slots = slots
        self._may_end = may_end
        self._ledger = ledger
        self._requests: deque[Request] = deque()
        self._arrivals: deque[Job] = deque()
        self._queue = Queue()
        self._tree: ProcessTree[JobRecord] = ProcessTree(
            run.tag, self.active.tasks, self.active.records.get, lambda: self.active.running
        )
        self.log = EventLog(run.clock, deliver, slots, ledger)
        self._terminator = Terminator(self._tree, self.poller, grace, self._leave)
        self._launcher = Launcher(
            run, environment, folder, None if ledger is None else ledger.began
        )
        self._starter = Starter(
            self._launcher,
            self.poller,
            self._queue,
            slots,
            self.active,
            self.log,
            self._terminator,
            self._started,
            self._leave,
        )
        self._ended: list[JobRecord] = []
        self._lost: dict[JobRecord, str] = {}
        self._leaving: list[JobRecord] = []
        self._left: Callable[[], None] | None = None
        self._last_call: Timer | None = None
        self._numbers = itertools.count()
        self._tidying = False
        self._retrying = False
        self._publish_due = False
        self._next_publish = 0.0
        self._thread = threading.Thread(target=self.run, name="ensemble-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, request: Request) -> None:
        """Ask for something. Callable from any thread."""
        self._requests.append(request)
        self.poller.wake()

    def take(self, request: Request) -> None:
        """:meth:`post` for those that the loop itself calls: it comes in the same turn."""
        self._requests.append(request)

    def join(self) -> None:
        """Wait for the thread's end and give back its descriptors."""
        self._thread.join()
        self.close()

    def close(self) -> None:
        self.poller.close()
        self._tree.close()
        self._launcher.close()

    @property
    def busy(self) -> bool:
        """Whether there are jobs that are not over, or requests."""
        return bool(self.active.records) or self.waiting

    @property
    def waiting(self) -> bool:
        """Whether something was asked for that is not worked in yet."""
        return bool(self._arrivals or self._requests)

    # The thread.

    def run(self) -> None:
        """Turn until no job is left and ``may_end`` says so."""
        try:
            if self._ledger is not None:
                self._recover(self._ledger)
            while self.busy or not self._may_end():
                self._turn()
        except Exception as error:  # whatever it was, the run must hear that no event will come
            self.faulty = True
            traceback.print_exc(file=sys.stderr)
            for record in self.active.running:
                record.signal(signal.SIGKILL)
                for pid in record.live:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            reason = f"{type(error).__name__}: {error}"
            hint = "this is a fault of the local executor; please report it"
            self.log.say(ExecutorLost(self.log.now(), "local", reason, hint))
            with contextlib.suppress(Exception):  # it may be the way out that broke
                self.log.publish()

    def _turn(self) -> None:
        for record, process in self.poller.wait(self.waiting):
            if process.born < 0:
                self._task_ended(record, process.pid)
            else:
                self._terminator.member_ended(record, process)
        self.poller.ring()
        self._handle_requests()
        self._look_behind()
        self._terminator.turn()
        self._starter.turn()
        self.log.tell_gauges()
        self._publish()
        if self._left is not None and all(record.over for record in self._leaving):
            self._gone()
        if self.log.failing and not self._retrying:
            self._retrying = True
            self.poller.at(time.monotonic() + RETRY, self._retry)

    def _publish(self) -> None:
        """Hand on what was told, unless it can wait for more: while jobs wait for slots, nothing
        that the controller could answer would start one sooner."""
        if self._queue and not self._arrivals and self.log.unpublished:
            now = time.monotonic()
            if now < self._next_publish:
                if not self._publish_due:
                    self._publish_due = True
                    self.poller.at(self._next_publish, self._publish_now)
                return
            self._next_publish = now + _GATHER
        self.log.publish()

    def _publish_now(self) -> None:
        self._publish_due = False
        self._next_publish = 0.0  # the turn itself does

    def _retry(self) -> None:
        self._retrying = False  # the turn itself tries

    # What an earlier supervisor left.

    def _recover(self, ledger: Ledger) -> None:
        if ledger.size is not None:
            self.slots.size = ledger.size
            self.slots.bound(self.slots.smallest, self.slots.largest)
        if ledger.unreadable:
            self.log.problem(
                f"{ledger.unreadable} lines of {ledger.path} are damaged and were passed over"
            )
        for record, past in past_records(ledger):
            record.number = next(self._numbers)
            self.active.records[record.job.id] = record
            if record.inherited:
                self._attend(record, past, ledger)
            elif past.fatal:
                self._clean(record)
            else:
                self._wait(record, past.names)

    def _attend(self, record: JobRecord, past: LedgerJob, ledger: Ledger) -> None:
        job = record.job
        self._lost[record] = why_lost(ledger, past)
        record.gpus = self.slots.hold(job.cores, past.gpus)
        self.active.running[record] = None
        pids = () if ledger.rebooted else past.pids
        self._tree.set_inherited(job.id, record, pids, past.up)
        if record.reason:
            self._terminator.end(record)
            return
        self._terminator.attend(record)
        if job.duration > 0 and past.started:
            left = past.started + job.duration - self.log.clock()
            self._limit(record, min(max(left, 0.0), job.duration))

    # Requests.

    def _handle_requests(self) -> None:
        self._take_in()
        # A request never overtakes the jobs that were submitted before it.
        while self._requests and not self._arrivals:
            request = self._requests.popleft()
            if request[0] == "submit":
                self._arrivals.extend(request[1])
                self._take_in()
            elif request[0] == "cancel":
                for name in request[1]:
                    self._cancel(name, "cancelled")
            elif request[0] == "resize":
                self._resize(request[1], request[2], request[3])
            elif request[0] == "forget":
                self._forget(request[1])
            elif request[0] == "reattach":
                self._reattach(request[1], request[2])
            elif request[0] == "close":
                self._close(request[1])
            elif request[0] == "end":
                self._cancel_all(request[1])
            else:
                request[1]()

    def _take_in(self) -> None:
        for _ in range(min(_INTAKE, len(self._arrivals))):
            job = self._arrivals.popleft()
            if job.id in self.active.records or (
                self._ledger is not None and self._ledger.knows(job.id)
            ):
                message = f"job {job.id} was submitted before: it is not run a second time"
                self.log.problem(message, "error")
                continue
            record = JobRecord(job, next(self._numbers))
            self.active.records[job.id] = record
            extra = () if self._ledger is None else (encode_job(job),)
            submit = encode_context("submit", {"urgency": job.urgency}, *extra)
            self._wait(record, frozenset(), submit)

    def _wait(self, record: JobRecord, told: Set[str], *first: str) -> None:
        """Put a job into the queue, unless it can never run; ``told`` are its events so far, and
        ``first`` those that are to be told before others."""
        job = record.job
        if not 0 <= job.urgency <= 31 or job.tasks < 1 or job.cores_per_task < 1:
            if first:
                self.log.tell(record, *first)
            self.log.tell_exception(
                record,
                "validate",
                f"urgency {job.urgency} (0 to 31), tasks {job.tasks} (1 or more) or"
                f" cores_per_task {job.cores_per_task} (1 or more) is out of range",
            )
            self._clean(record)
            return
        priority = encode_value("priority", "priority", job.urgency)
        if told:
            steps = {"validate": _VALIDATE, "depend": _DEPEND, "priority": priority}
            first += tuple(text for name, text in steps.items() if name not in told)
        else:
            first += (_VALIDATE, _DEPEND, priority)
        if first:
            self.log.tell(record, *first)
        never = self.slots.never(job)
        if never is not None:
            self.log.tell_exception(record, "alloc", never)
            self._clean(record)
        else:
            self._queue.add(record)

    def _cancel(self, name: str, note: str) -> None:
        record = self.active.records.get(name)
        if record is None or record.reason not in ("", "task"):
            return
        if record not in self.active.running:
            self.log.tell_exception(record, "cancel", f"{note} while it waited")
            self._clean(record)
        elif record.live or not record.started:
            self._end(record, "cancel", note)

    def _cancel_all(self, note: str) -> None:
        """Asked a second time, it waits for no grace."""
        for name, record in list(self.active.records.items()):
            if record.phase is Phase.NONE:
                self._cancel(name, note)
            else:
                self._terminator.end_now(record)

    def _resize(self, request: str, delta: int, when_busy: WhenBusy) -> None:
        slots = self.slots
        done = None if self._ledger is None else self._ledger.requests.get(request)
        if done is not None:  # asked by a controller that did not live to hear the answer
            self.log.answer(request, "denied" if done == "denied" else "granted", "", True)
            return
        # A slot in use goes when its job ends, or stays; no job is ended for it.
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
        self.log.answer(request, "denied" if denied else "granted", reason, False)

    def _forget(self, jobs: Sequence[str]) -> None:
        if self._ledger is not None:
            self._ledger.forget(name for name in jobs if name not in self.active.records)

    def _reattach(
        self, jobs: Mapping[str, float], answer: Callable[[Mapping[str, bool]], None]
    ) -> None:
        self.log.publish()  # what is told from here on is newer than what is told again
        records, ledger = self.active.records, self._ledger
        known = {
            name: name in records or (ledger is not None and ledger.knows(name)) for name in jobs
        }
        answer(known)
        if ledger is not None:
            wanted = {name: since for name, since in jobs.items() if known[name]}
            self.log.deliver(list(ledger.replay(wanted)))
        for name in jobs:
            if name in records:
                records[name].told = True

    def _close(self, left: Callable[[], None]) -> None:
        """The controller leaves: what is being ended is killed at once, the rest goes on."""
        running = self.active.running
        self._leaving = [record for record in running if record.phase is not Phase.NONE]
        for record in self._leaving:
            self._terminator.end_now(record)
        self._left = left
        self._last_call = self.poller.at(time.monotonic() + _CLOSE_WAIT, self._gone)

    def _gone(self) -> None:
        left, self._left = self._left, None
        self._leaving = []
        if self._last_call is not None:
            self._last_call.cancel()
        if left is not None:
            left()

    def serve(
        self,
        run: Run,
        environment: Mapping[bytes, bytes],
        folder: str,
        grace: float,
        deliver: Deliver,
    ) -> None:
        """Another controller drives the run from now on, and has not asked for any job yet."""
        self.log.clock = run.clock
        self.log.deliver = deliver
        self._terminator.grace = grace
        self._launcher.serve(run, environment, folder)

    def controller_gone(self) -> None:
        """The controller is gone: nobody hears of any job."""
        self.log.publish()
        self.log.deliver = lambda lines: None
        for record in self.active.records.values():
            record.told = False

    # Running.

    def _started(self, record: JobRecord) -> None:
        if not self._tidying:
            self._tidying = True
            self.poller.at(time.monotonic() + _TIDY, self._tidy)
        if record.job.duration > 0:
            self._limit(record, record.job.duration)
        if not record.live:
            self._tasks_over(record)

    def _limit(self, record: JobRecord, seconds: float) -> None:
        now = time.monotonic()
        record.ends = now + seconds + self._terminator.grace
        record.timers.append(self.poller.at(now + seconds, lambda: self._time_out(record)))

    # Ending.

    def _time_out(self, record: JobRecord) -> None:
        if (record.live or record.inherited) and record.reason in ("", "task"):
            limit = describe(record.job.duration)
            self._end(record, "timeout", f"the time limit of {limit} has passed")

    def _end(self, record: JobRecord, kind: str, note: str) -> None:
        record.reason = kind
        self.log.tell_exception(record, kind, note)
        self._starter.stop_waiting(record)
        self._terminator.end(record)

    def _task_ended(self, record: JobRecord, pid: int) -> None:
        try:
            status = os.waitpid(pid, 0)[1]
        except ChildProcessError:
            status = 255 << 8
            self.log.tell_exception(
                record,
                "exec",
                "its exit status was taken by other code",
            )
        record.live.discard(pid)
        if record.reason != "task" or not record.statuses:
            record.statuses.append(status)
        if record.live:
            # The other tasks may be waiting for this one, without an end.
            if os.WIFSIGNALED(status) and not record.reason and record.started:
                record.reason = "task"
                record.timers.append(
                    self.poller.at(
                        time.monotonic() + self._terminator.grace,
                        lambda: self._terminator.end(record),
                    )
                )
        elif record.started:
            self._tasks_over(record)
        elif record.phase is not Phase.NONE:
            self._terminator.task_ended(record)

    def _tasks_over(self, record: JobRecord) -> None:
        if record.phase is Phase.NONE:
            self._ended.append(record)
        else:
            self.log.tell(record, _finish(record))
            self._terminator.task_ended(record)

    def _look_behind(self) -> None:
        """End what jobs that are over by themselves have left running."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        left = self._tree.left_behind(ended)
        for record in ended:
            if record in left:
                self.log.tell(record, _finish(record))
                record.reason = record.reason or "leftover"
                self._terminator.end(record)
            else:
                self._leave(record, "", _finish(record))

    def _tidy(self) -> None:
        self._tidying = bool(self.active.running)
        if self._tidying:
            self._tree.left_behind(())
            self.poller.at(time.monotonic() + _TIDY, self._tidy)

    def _leave(self, record: JobRecord, note: str = "", *first: str) -> None:
        """Nothing of this job runs any more: free what it held. ``first`` are its events before."""
        lost = self._lost.pop(record, "")
        if record.inherited:
            self._tree.forget(record.job.id)
            if not record.reason:
                self.log.tell_exception(record, "lost", lost)
        if note:
            self.log.tell_exception(record, "leftover", note, severity=1)
        job = record.job
        del self.active.running[record]
        for pid in record.pids:
            if self.active.tasks.get(pid) is record:
                del self.active.tasks[pid]
        self.slots.give_back(job.cores, record.gpus)
        prepared = record.prepared
        if prepared is not None:
            prepared.close()
            for path in prepared.kept:
                _remove_if_empty(path)
        if record.started:
            first += (_RELEASE,)
        if record.allotted:
            first += (_FREE,)
        self._clean(record, *first)

    def _clean(self, record: JobRecord, *first: str) -> None:
        """A job is over; ``first`` are its events before that."""
        record.over = True
        record.stop_timers()
        name = record.job.id
        self.active.records.pop(name, None)
        self.log.tell(record, *first, _CLEAN)


def _finish(record: JobRecord) -> str:
    return encode_value("finish", "status", record.status())


def _remove_if_empty(path: str) -> None:
    """A run of a million silent jobs does not leave two million empty files."""
    try:
        if os.stat(path).st_size == 0:
            os.unlink(path)
    except OSError:
        return
