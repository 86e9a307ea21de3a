"""Queue of waiting local jobs: chooses which job starts next, and starts it when slots are free.

Jobs start by urgency, then first in, first out. If the first job does not fit yet, some later jobs
may overtake it:

- If every running job has a time limit, it is known when the first job will fit at the latest. A
  later job may start if it does not delay the first job (EASY backfill).
- Otherwise, only a limited number of jobs may overtake the first job (``BYPASS_FACTOR`` for each
  core, at least ``BYPASS_LEAST``).

Failed spawns are retried.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.event_recorder import EventRecorder
from ensemble_core.local.launch import Launcher, LaunchError, SystemBusy
from ensemble_core.local.local_job import ActiveJobs, LocalJob, Phase, describe
from ensemble_core.local.process_tree import Process
from ensemble_core.local.protocol import encode_context, encode_start, encode_value
from ensemble_core.local.slots import Slots
from ensemble_core.local.terminator import Terminator, Token
from ensemble_core.model.jobs import Job

if TYPE_CHECKING:
    from ensemble_core.local.fence import Fence


BYPASS_FACTOR = 2
BYPASS_LEAST = 8
#: How many jobs in each line are checked for a short time limit.
BACKFILL_DEPTH = 100


class Waiting(Protocol):
    """A job in the queue. If ``over`` is true (it was cancelled), it is not started."""

    job: Job
    need: tuple[int, int, int]  # cores, GPUs and bytes of memory
    number: int
    over: bool
    bypassed: int


class Holder(Protocol):
    """A running job. ``ends`` is the monotonic time by which it must be over, or ``None``."""

    need: tuple[int, int, int]
    ends: float | None


_Shape = tuple[int, int, int, int]


class Queue:
    """The waiting jobs. Each call of :meth:`choose` returns a job that may start.

    Jobs with urgency 0 are held, as in Flux: they wait until they are cancelled.
    """

    def __init__(self) -> None:
        #: The cost of a choice depends on the number of shapes, and not of jobs.
        self._lines: dict[_Shape, deque[Waiting]] = {}

    def __bool__(self) -> bool:
        """Return True if a job waits that is not held."""
        return bool(self._lines)

    def add(self, entry: Waiting) -> None:
        job = entry.job
        if job.urgency == 0:
            return
        shape = (-job.urgency, *entry.need)
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = deque()
        line.append(entry)

    def _heads(self, slots: Slots) -> list[tuple[int, int, _Shape]]:
        """Return the first job of each line, in order, without those that need more slots than
        exist.
        """
        heads: list[tuple[int, int, _Shape]] = []
        for shape, line in list(self._lines.items()):
            while line and line[0].over:
                line.popleft()
            if line and shape[1] <= slots.size:
                heads.append((shape[0], line[0].number, shape))
            elif not line:
                del self._lines[shape]
        heads.sort()
        return heads

    def head(self, slots: Slots) -> Job | None:
        """Return the next job, or ``None`` if no job waits."""
        heads = self._heads(slots)
        return self._lines[heads[0][2]][0].job if heads else None

    def choose(
        self, slots: Slots, running: Iterable[Holder], now: float, grace: Callable[[Job], float]
    ) -> Waiting | None:
        """Remove and return a job that may start now, or return ``None``.

        ``grace`` returns how long a job may exceed its time limit.
        """
        lines = self._lines
        if not lines or slots.used >= slots.size:
            return None
        heads = self._heads(slots)
        if not heads:
            return None
        head_shape = heads[0][2]
        head = lines[head_shape][0]
        if slots.fits(*head_shape[1:]):
            return lines[head_shape].popleft()
        if len(heads) == 1:
            return None
        plan = _reservation(head, slots, running)
        bounded = plan is None and head.bypassed >= max(BYPASS_LEAST, BYPASS_FACTOR * slots.size)
        for _, _, shape in heads[1:]:
            line = lines[shape]
            if not slots.fits(*shape[1:]):
                continue
            if plan is not None:
                moment, spare = plan
                if all(part <= left for part, left in zip(shape[1:], spare, strict=True)):
                    return line.popleft()
                entry = _take_short(line, moment - now, grace)
                if entry is not None:
                    return entry
            elif not bounded:
                head.bypassed += 1
                return line.popleft()
        return None


def _take_short(line: deque[Waiting], left: float, grace: Callable[[Job], float]) -> Waiting | None:
    """Remove and return the first job that is over within ``left`` seconds, or return ``None``.

    Only the first few jobs in the line are checked.
    """
    for place, entry in enumerate(itertools.islice(line, BACKFILL_DEPTH)):
        job = entry.job
        if not entry.over and job.duration > 0 and job.duration + grace(job) <= left:
            del line[place]
            return entry
    return None


def _reservation(
    head: Waiting, slots: Slots, running: Iterable[Holder]
) -> tuple[float, tuple[float, ...]] | None:
    """Return the latest time at which the head can start, and the cores, GPUs and bytes of memory
    that it leaves free then.

    Return ``None`` if a running job has no time limit.
    """
    ends: list[tuple[float, tuple[int, ...]]] = []
    for holder in running:
        if holder.ends is None:
            return None
        ends.append((holder.ends, holder.need))
    ends.sort()
    memory = math.inf if slots.memory is None else slots.memory - slots.used_memory
    free: tuple[float, ...] = slots.size - slots.used, len(slots.free_gpus), memory
    need = head.need
    for moment, more in ends:
        free = tuple(map(sum, zip(free, more, strict=True)))
        if all(part <= left for part, left in zip(need, free, strict=True)):
            return moment, tuple(left - part for part, left in zip(need, free, strict=True))
    return None


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
        log: EventRecorder,
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
