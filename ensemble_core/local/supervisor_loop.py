"""Main loop of the supervisor: carries out requests, starts jobs, and reports their events.

All state belongs to the loop's thread. Other threads may only call :meth:`SupervisorLoop.post`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.event_recorder import Deliver, EventRecorder
from ensemble_core.local.job_lifecycle import JobLifecycle
from ensemble_core.local.killed_supervisor import past_records, why_lost
from ensemble_core.local.launch import Launcher
from ensemble_core.local.ledger import RETRY, Ledger, LedgerJob
from ensemble_core.local.local_job import ActiveJobs, LocalJob
from ensemble_core.local.process_tree import ProcessTree
from ensemble_core.local.slots import Slots
from ensemble_core.local.supervisor_requests import Request, RequestHandler
from ensemble_core.local.terminator import Token
from ensemble_core.local.waiting_jobs import Queue, Starter
from ensemble_core.model.events import ExecutorLost
from ensemble_core.plugin.executor import Run

if TYPE_CHECKING:  # most runs have no pilots
    from ensemble_core.local.fence import Fence

#: For how many seconds events are collected into one message while jobs wait for slots.
_GATHER = 0.002


class SupervisorLoop:
    """State of the supervisor, and the thread that owns it.

    The loop ends when no job is left and the function ``may_end`` returns True.
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
        fence: Fence | None = None,
    ) -> None:
        #: True: this loop ends at once, whatever runs.
        self.quitting = False
        self.active = ActiveJobs()
        self.poller: Poller[Token] = Poller()
        self.slots = slots
        self._may_end = may_end
        self._ledger = ledger
        self._queue = Queue()
        self._tree: ProcessTree[LocalJob] = ProcessTree(
            run.id, self.active.tasks, self.active.records.get, lambda: self.active.running
        )
        self.log = EventRecorder(run.clock, deliver, slots, ledger)
        self._launcher = Launcher(
            run, environment, folder, None if ledger is None else ledger.began
        )
        self._lifecycle = JobLifecycle(
            self.active, slots, self.log, self.poller, self._tree, grace, tied=fence is not None
        )
        self._terminator = self._lifecycle.terminator
        self._starter = Starter(
            self._launcher,
            self.poller,
            self._queue,
            slots,
            self.active,
            self.log,
            self._terminator,
            self._lifecycle.started,
            self._lifecycle.leave,
            fence,
        )
        self._requests = RequestHandler(
            run,
            self.active,
            slots,
            self._queue,
            self.log,
            self.poller,
            self._starter,
            self._lifecycle,
        )
        self._retrying = False
        self._publish_due = False
        self._next_publish = 0.0
        self._thread = threading.Thread(target=self.run, name="ensemble-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, request: Request) -> None:
        """Queue a request. Any thread may call this."""
        self._requests.add(request)
        self.poller.wake()

    def quit(self) -> None:
        """End the loop without an end of any job. Any thread may call this."""
        self.quitting = True
        self.poller.wake()

    def postpone_unspawned(self, ledger: Ledger) -> None:
        """Record that jobs whose start was in preparation when the loop ended have not started."""
        for record in self.active.running:
            if not (record.pids or record.inherited):
                ledger.postpone(record.job.id)

    def take(self, request: Request) -> None:
        """Queue a request on the loop's own thread. It is carried out in the same turn."""
        self._requests.add(request)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread ends. Return False if it has not."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.poller.close()
        self._tree.close()
        self._launcher.close()
        self.slots.close()

    @property
    def rebooted(self) -> bool:
        """True if no job that the ledger has lost can be running."""
        return self._requests.rebooted

    @property
    def busy(self) -> bool:
        """True if some jobs are not over or some requests have not been carried out."""
        return bool(self.active.records) or self.waiting

    @property
    def waiting(self) -> bool:
        """True if a request has not been carried out yet."""
        return self._requests.waiting

    @property
    def draining(self) -> bool:
        """True if no job starts any more, because the allocation ends."""
        return self._requests.draining

    @property
    def jobs(self) -> list[str]:
        """The jobs that are not over."""
        return [*self.active.records, *self._requests.held]

    # The thread.

    def run(self) -> None:
        """Run turns until no job is left and ``may_end()`` is true, or the queue is drained."""
        try:
            if self._ledger is not None:
                self._recover(self._ledger)
            while not self._is_over():
                self._turn()
            if self.draining and not self.quitting:
                self._report_drained()
        except Exception as error:  # always tell the controller that no more events will come
            import traceback

            traceback.print_exc(file=sys.stderr)
            for record in self.active.running:
                record.kill()
                for pid in record.live:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            reason = f"{type(error).__name__}: {error}"
            hint = "this is an internal error in the local executor; please report it"
            self.log.add_event(ExecutorLost(self.log.now(), "local", reason, hint))
            with contextlib.suppress(Exception):  # the error may have come from publishing
                self.log.publish()

    def _is_over(self) -> bool:
        if self.quitting:
            return True
        if self.draining:
            return not self.active.running and not self.waiting
        return not self.busy and self._may_end()

    def _report_drained(self) -> None:
        """Tell the controller that the queue has ended. Jobs that wait are in the ledger."""
        lost = ExecutorLost(self.log.now(), "local", self._requests.drained, drained=True)
        if self._ledger is None:
            hint = "without a journal, the run cannot be resumed"
            lost = ExecutorLost(self.log.now(), "local", self._requests.drained, hint)
        self.log.add_event(lost)
        self.log.publish()

    def _turn(self) -> None:
        ended = self.poller.wait(self.waiting)
        if self._queue:
            # Waiting jobs probably start on the cores that are free now. Elsewhere, this thread
            # would run on the core of another job, which cannot move away.
            cores = tuple([core for record, _ in ended for core in record.cores])
            if cores:
                self._launcher.bind(cores)
        for record, process in ended:
            if process.born < 0:
                self._lifecycle.task_ended(record, process.pid)
            else:
                self._terminator.member_ended(record, process)
        self.poller.run_timers()
        self._requests.handle()
        self._lifecycle.end_leftovers()
        self._terminator.turn()
        if not self.draining:
            self._starter.turn()
        self._launcher.unbind()
        self.slots.settle()
        self.log.add_gauges()
        self._publish()
        self._requests.confirm_close()
        if self.log.failing and not self._retrying:
            self._retrying = True
            self.poller.at(time.monotonic() + RETRY, self._retry)

    def _publish(self) -> None:
        """Publish events. While jobs wait for slots, do so only every ``_GATHER`` seconds.

        The delay does no harm, because a reaction to the events could not start a job now anyway.
        """
        if self._queue and not self._requests.accepting_jobs and self.log.unpublished:
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
        self._next_publish = 0.0  # no timer is needed: this turn publishes

    def _retry(self) -> None:
        self._retrying = False  # no timer is needed: this turn writes

    # Jobs of an earlier supervisor.

    def _recover(self, ledger: Ledger) -> None:
        if ledger.size is not None:
            self.slots.size = ledger.size
            self.slots.bound(self.slots.smallest, self.slots.largest)
        if ledger.unreadable:
            self.log.problem(
                f"{ledger.unreadable} lines of {ledger.path} are damaged and were skipped"
            )
        for record, past in past_records(ledger):
            if not record.inherited and not past.fatal:
                self._requests.held[record.job.id] = record, past
                continue
            self._requests.adopt(record)
            if record.inherited:
                self._inherit(record, past, ledger)
            else:
                self._lifecycle.clean(record)

    def _inherit(self, record: LocalJob, past: LedgerJob, ledger: Ledger) -> None:
        job = record.job
        self._lifecycle.lost[record] = why_lost(ledger, past)
        pids = () if ledger.rebooted else past.pids
        record.cores = tuple(_cores_of(pids)) if self.slots.cores else ()
        if len(record.cores) != job.cores:
            record.cores = ()  # it is not bound, or some of its tasks have ended
        record.gpus = self.slots.hold(job.cores, past.gpus, record.cores, job.memory)
        self.active.running[record] = None
        self._tree.set_inherited(job.id, record, pids, past.up)
        if past.draining and not past.fatal and "finish" not in past.names:
            record.reason = "interrupted"
            self._terminator.end(record, signalled=True)
            return
        if record.reason:
            self._terminator.end(record)
            return
        self._terminator.wait_for_end(record)
        if job.duration > 0 and past.started:
            left = past.started + job.duration - self.log.clock()
            self._lifecycle.limit(record, min(max(left, 0.0), job.duration))

    # Controllers.

    def serve(
        self,
        run: Run,
        environment: Mapping[bytes, bytes],
        folder: str,
        grace: float,
        deliver: Deliver,
    ) -> None:
        """Serve a new controller, which has not made any request about jobs yet."""
        self.log.clock = run.clock
        self.log.deliver = deliver
        self._terminator.grace = grace
        self._launcher.serve(run, environment, folder)

    def controller_left(self) -> None:
        """The controller has disconnected: from now on, write events only to the ledger."""
        self.log.publish()
        self.log.deliver = lambda lines: None
        for record in self.active.records.values():
            record.reported = False


def _cores_of(pids: Iterable[int]) -> set[int]:
    """Return the cores to which processes are bound, as far as they still run."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found |= os.sched_getaffinity(pid)
    return found
