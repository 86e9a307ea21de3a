"""Starts waiting local jobs when their slots are free, and retries failed spawns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.event_recorder import EventLog
from ensemble_core.local.launch import Launcher, LaunchError, SystemBusy
from ensemble_core.local.local_job import ActiveJobs, LocalJob, Phase, describe
from ensemble_core.local.process_tree import Process
from ensemble_core.local.protocol import encode_context, encode_start, encode_value
from ensemble_core.local.queue import Queue
from ensemble_core.local.slots import Slots
from ensemble_core.local.terminator import Terminator, Token
from ensemble_core.model.jobs import Job

if TYPE_CHECKING:  # most runs have no pilots
    from ensemble_core.local.fence import Fence

#: Backoff after failed spawns, in seconds: the first wait, the longest wait, and the time after
#: which the job fails.
_RETRY_FIRST, _RETRY_LONGEST, _RETRY_LIMIT = 0.02, 2.0, 600.0


#: Seconds between polls of slots that other runs hold.
_LOOK = 1.0
#: Seconds for which a run without a running job waits for other runs until it reports that.
_REPORT = 3.0


def uptime() -> float:
    """Return the seconds since boot, including the time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Starter:
    """Starts jobs."""

    def __init__(
        self,
        launcher: Launcher,
        poller: Poller[Token],
        queue: Queue,
        slots: Slots,
        active: ActiveJobs,
        log: EventLog,
        terminator: Terminator,
        started: Callable[[LocalJob], None],
        leave: Callable[[LocalJob], None],
        fence: Fence | None = None,
    ) -> None:
        self._launcher = launcher
        self._poller = poller
        self._queue = queue
        self._slots = slots
        self._active = active
        self._log = log
        self._terminator = terminator
        self._started = started  # called with each job that was started
        self._leave = leave  # called with each job that cannot be started
        self._fence = fence
        if fence is not None:
            fence.attach(poller, log)
        self._stalled: LocalJob | None = None
        #: Jobs that hold slots and will be spawned when the ledger is written.
        #: After a crash, the ledger shows which jobs may have started, so none starts twice.
        self._ready: deque[LocalJob] = deque()
        self._looking = False
        self._waits_since: float | None = None
        self._reported = False
        if slots.wake_fd >= 0:
            poller.on_ready(slots.wake_fd, slots.on_wake)

    def turn(self) -> None:
        """Start every job that may start."""
        log = self._log
        if self._stalled is not None or (log.failing and not log.flush()):
            return
        while self._stalled is None:
            try:
                self._slots.begin_choice(self._next_job)
                self._choose()
            finally:
                self._slots.end_choice(self._next_job)
            if self._slots.waiting and not self._looking:
                self._looking = True
                self._poller.at(time.monotonic() + _LOOK, self._allow_look)
            self._report_waiting()
            ready = self._ready
            if not (ready or self._fence) or not log.flush():
                return
            if self._fence is not None:
                ready = self._fence.pass_jobs(ready)
                if not ready:
                    return
            while ready and self._stalled is None:
                record = ready.popleft()
                if not record.over and record.phase is Phase.NONE:
                    self._launch(record)

    def _next_job(self) -> Job | None:
        return self._queue.head(self._slots)

    def _report_waiting(self) -> None:
        """Report once that jobs of other runs are why this run's jobs do not start."""
        if not self._slots.waiting or self._active.running:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = time.monotonic()
        elif time.monotonic() - self._waits_since > _REPORT and not self._reported:
            self._reported = True
            self._log.problem(
                "jobs wait for cores or GPUs that other runs of this user hold on this machine; "
                "to start jobs beside them, use -o pool=none"
            )

    def _allow_look(self) -> None:
        self._looking = False  # the next turn chooses

    def _choose(self) -> None:
        running = self._active.running
        now = time.monotonic()
        while True:
            entry = self._queue.choose(self._slots, running, now, self._terminator.grace_of)
            if entry is None:
                return
            record = self._active.records[entry.job.id]
            job = record.job
            record.cores = self._slots.bind(job.tasks, job.cores_per_task)
            record.gpus = self._slots.take(*record.need)
            running[record] = None
            self._ready.append(record)
            if record.allotted:  # an earlier supervisor has postponed the job
                self._about_to_spawn(record)
                continue
            record.allotted = True
            cores = record.need[0]
            if record.gpus:
                alloc = encode_context("alloc", {"cores": cores, "gpus": record.gpus})
            else:
                alloc = encode_value("alloc", "cores", cores)
            self._log.add(record, alloc)

    def _about_to_spawn(self, record: LocalJob) -> None:
        """Add to the ledger that a postponed job is about to be spawned.

        :meth:`turn` writes the ledger before the spawn, so that no later supervisor starts the job
        again.
        """
        if self._log.ledger is not None:
            self._log.ledger.about_to_spawn(record.job.id)

    def stop_waiting(self, record: LocalJob) -> None:
        """Stop retrying a job that is being terminated, so that other jobs can start."""
        if self._stalled is record:
            self._stalled = None

    def _launch(self, record: LocalJob) -> None:
        """Start the tasks of a job, or those that have not been started yet."""
        job = record.job
        try:
            if record.prepared is None:
                record.prepared = self._launcher.prepare(job, bool(self._slots.gpus))
            prepared = record.prepared
            share, width = job.gpus_per_task, job.cores_per_task
            while len(record.pids) < job.tasks:
                rank = len(record.pids)
                gpus = record.gpus[rank * share : (rank + 1) * share]
                cores = record.cores[rank * width : (rank + 1) * width]
                pid = self._launcher.spawn(job, prepared, rank, gpus, cores)
                record.pids.append(pid)
                record.live.add(pid)
                self._active.tasks[pid] = record
                self._poller.watch(pid, (record, Process(pid, -1)))
        except SystemBusy as busy:
            self._postpone(record, str(busy))
            return
        except LaunchError as error:
            self._refuse(record, error)
            return
        except Exception as error:  # an error in one job must not affect others
            self._refuse(record, LaunchError(f"{type(error).__name__}: {error}"))
            return
        prepared.close()
        record.started = True
        self._log.add(record, encode_start(prepared, uptime(), record.pids))
        self._started(record)

    def _postpone(self, record: LocalJob, why: str) -> None:
        """Retry a job later, when the system may have resources again. Other jobs wait as well."""
        now = time.monotonic()
        if not record.delay:
            record.since = now
        elif now - record.since > _RETRY_LIMIT:
            note = f"could not be started for {describe(_RETRY_LIMIT)}: {why}"
            self._refuse(record, LaunchError(note))
            return
        record.delay = min(record.delay * 2 or _RETRY_FIRST, _RETRY_LONGEST)
        self._stalled = record
        if self._log.ledger is not None and not record.pids:
            self._log.ledger.postpone(record.job.id)

        def again() -> None:
            if self._stalled is record:
                self._stalled = None
                if record.phase is Phase.NONE and not record.over:
                    if not record.pids:
                        self._about_to_spawn(record)
                    self._ready.appendleft(record)

        record.timers.append(self._poller.at(now + record.delay, again))

    def _refuse(self, record: LocalJob, error: LaunchError) -> None:
        self._log.add(
            record,
            encode_context(
                "exception",
                {"type": error.kind, "severity": 0, "note": error.note, "status": error.code << 8},
            ),
        )
        record.reason = error.kind
        if record.pids:
            self._terminator.end(record)
        else:
            self._leave(record)
