"""The local executor's thread: takes requests, starts jobs, sees them end, tells of it.

One turn of :meth:`Loop.run` handles what has happened (processes ended, timers, requests), starts
what may start, and hands all events of the turn to the run in one call. All state here belongs to
this thread; :meth:`Loop.post` is the only way in.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from ensemble_core.builtin.local_census import Census, Process
from ensemble_core.builtin.local_launch import Busy, Launcher, LaunchError
from ensemble_core.builtin.local_queue import Queue
from ensemble_core.builtin.local_reap import Reaper, Token
from ensemble_core.builtin.local_record import Phase, Record, describe
from ensemble_core.builtin.local_slots import Slots
from ensemble_core.builtin.local_watch import Watcher
from ensemble_core.events import Event, ExecutorLost, JobEvent, ResizeOutcome, Resources
from ensemble_core.executor import Emit, Run
from ensemble_core.jobs import Job

__all__ = ["Loop", "Request"]

Request = (
    tuple[Literal["submit"], Sequence[Job]]
    | tuple[Literal["cancel"], Sequence[str]]
    | tuple[Literal["resize"], str, int]
    | tuple[Literal["close"]]
)

#: Jobs taken in per turn, so that a large submit does not hold up those that could start.
_INTAKE = 500
#: Seconds between looks for dead orphans of jobs that go on running.
_TIDY = 30.0
#: Seconds between tries to start a process while the system refuses: first, longest, and the time
#: after which the job fails.
_RETRY_FIRST, _RETRY_LONGEST, _RETRY_LIMIT = 0.02, 2.0, 600.0

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_RELEASE: Mapping[str, Any] = MappingProxyType({"ranks": "all", "final": True})


class Loop:
    """The state of the executor and the thread that owns it. ``ids`` are the jobs that are not
    over; the submitting thread adds to it, this one takes away."""

    def __init__(
        self,
        run: Run,
        emit: Emit,
        slots: Slots,
        grace: float,
        environment: Mapping[bytes, bytes],
        folder: str,
    ) -> None:
        self._run = run
        self._hand_over = emit
        self._slots = slots
        self._grace = grace
        self._environment = environment
        self._folder = folder
        self.ids: set[str] = set()
        self.lost = False
        self._requests: deque[Request] = deque()
        self._arrivals: deque[Job] = deque()
        self._watcher: Watcher[Token] = Watcher()
        self._queue = Queue()
        self._records: dict[str, Record] = {}
        self._running: dict[Record, None] = {}
        self._tasks: dict[int, Record] = {}
        self._census: Census[Record] = Census(
            run.tag, self._tasks, self._records.get, lambda: self._running
        )
        self._reaper = Reaper(self._census, self._watcher, grace, self._leave)
        self._ended: list[Record] = []
        self._stalled: Record | None = None
        self._events: list[Event] = []
        self._numbers = itertools.count()
        self._closing = False
        self._tidying = False
        self._gauges = slots.gauges()
        self._launcher: Launcher | None = None
        self._thread = threading.Thread(target=self._main, name="ensemble-local", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, request: Request) -> None:
        """Ask for something. Callable from any thread."""
        self._requests.append(request)
        self._watcher.wake()

    def join(self) -> None:
        """Wait for the thread's end and give back its descriptors."""
        self._thread.join()
        self._watcher.close()
        self._census.close()

    def abandon(self) -> None:
        """Give back what the constructor took, where :meth:`start` could not be called."""
        self._watcher.close()
        self._census.close()

    @property
    def gauges(self) -> Mapping[str, float]:
        """The gauges as they were last told; replaced, never changed."""
        return self._gauges

    # The thread.

    def _main(self) -> None:
        try:
            self._launcher = Launcher(self._run, self._environment, self._folder)
            while not (self._closing and not self._running):
                self._turn()
        except Exception as error:  # whatever it was, the run must hear that no event will come
            self.lost = True
            for record in self._running:
                record.signal(signal.SIGKILL)
                for pid in record.live:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            if not self._closing:
                reason = f"{type(error).__name__}: {error}"
                hint = "this is a fault of the local executor; please report it"
                self._hand_over([ExecutorLost(self._run.clock(), "local", reason, hint)])
        finally:
            if self._launcher is not None:
                self._launcher.close()

    def _turn(self) -> None:
        for record, process in self._watcher.wait(bool(self._arrivals)):
            if process.born < 0:
                self._task_ended(record, process.pid)
            else:
                self._reaper.member_ended(record, process)
        self._watcher.ring()
        self._handle_requests()
        self._look_behind()
        self._reaper.turn()
        if not self._closing:
            self._start_jobs()
            self._tell_gauges()
            if self._events:
                events, self._events = self._events, []
                self._hand_over(events)
        self._events.clear()

    def _tell_gauges(self) -> None:
        gauges = self._slots.gauges()
        if gauges != self._gauges:
            values = {k: v for k, v in gauges.items() if self._gauges.get(k) != v}
            self._events.append(Resources(self._run.clock(), values))
            self._gauges = gauges

    def _tell(self, record: Record, name: str, context: Mapping[str, Any] = _NOTHING) -> None:
        self._events.append(JobEvent(self._run.clock(), record.job.id, name, context))

    def _except(self, record: Record, kind: str, note: str, severity: int = 0) -> None:
        self._tell(record, "exception", {"type": kind, "severity": severity, "note": note})

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
                    self._cancel(name)
            elif request[0] == "resize":
                self._resize(request[1], request[2])
            else:
                self._close()
        if self._requests and any(request[0] == "close" for request in self._requests):
            self._close()

    def _take_in(self) -> None:
        for _ in range(min(_INTAKE, len(self._arrivals))):
            job = self._arrivals.popleft()
            record = Record(job, next(self._numbers))
            self._records[job.id] = record
            self._tell(record, "submit", {"urgency": job.urgency})
            if not 0 <= job.urgency <= 31 or job.tasks < 1 or job.cores_per_task < 1:
                self._except(
                    record,
                    "validate",
                    f"urgency {job.urgency} (0 to 31), tasks {job.tasks} (1 or more) or"
                    f" cores_per_task {job.cores_per_task} (1 or more) is out of range",
                )
                self._clean(record)
                continue
            self._tell(record, "validate")
            self._tell(record, "depend")
            self._tell(record, "priority", {"priority": job.urgency})
            never = self._slots.never(job)
            if never is not None:
                self._except(record, "alloc", never)
                self._clean(record)
            else:
                self._queue.add(record)

    def _cancel(self, name: str) -> None:
        record = self._records.get(name)
        if record is None or record.reason not in ("", "task"):
            return
        if record not in self._running:
            self._except(record, "cancel", "cancelled while it waited")
            self._clean(record)
        elif record.live or not record.started:
            self._end(record, "cancel", "cancelled")

    def _resize(self, request: str, delta: int) -> None:
        slots = self._slots
        change = slots.resize(delta)
        reason = ""
        if change != delta:
            if delta > 0:
                reason = f"--max-slots is {slots.largest}"
            else:
                reason = f"--min-slots is {slots.smallest}"
        # Before the answer: a run that waits for nothing but that may end with it.
        self._tell_gauges()
        self._events.append(
            ResizeOutcome(
                self._run.clock(),
                request,
                "denied" if change == 0 and delta != 0 else "granted",
                slots.size,
                reason,
            )
        )

    def _close(self) -> None:
        self._closing = True
        self._requests.clear()
        self._arrivals.clear()
        for record in list(self._running):
            if record is self._stalled:
                self._stalled = None
            self._reaper.end_now(record)

    # Starting.

    def _start_jobs(self) -> None:
        while self._stalled is None:
            entry = self._queue.choose(self._slots, self._running, time.monotonic(), self._grace)
            if entry is None:
                return
            record = self._records[entry.job.id]
            job = record.job
            record.gpus = self._slots.take(job.cores, job.gpus)
            self._running[record] = None
            self._tell(
                record,
                "alloc",
                {"cores": job.cores, "gpus": record.gpus} if job.gpus else {"cores": job.cores},
            )
            if not self._tidying:
                self._tidying = True
                self._watcher.at(time.monotonic() + _TIDY, self._tidy)
            self._launch(record)

    def _launch(self, record: Record) -> None:
        """Start the tasks of a job, or those that are still to be started."""
        launcher = self._launcher
        assert launcher is not None
        job = record.job
        try:
            if record.prepared is None:
                record.prepared = launcher.prepare(job, bool(self._slots.gpus))
            prepared = record.prepared
            share = job.gpus_per_task
            while len(record.pids) < job.tasks:
                rank = len(record.pids)
                gpus = record.gpus[rank * share : (rank + 1) * share]
                pid = launcher.spawn(job, prepared, rank, gpus)
                record.pids.append(pid)
                record.live.add(pid)
                self._tasks[pid] = record
                self._watcher.watch(pid, (record, Process(pid, -1)))
        except Busy as busy:
            self._retry(record, str(busy))
            return
        except LaunchError as error:
            self._refuse(record, error)
            return
        except Exception as error:  # one job's launch must never end the others
            self._refuse(record, LaunchError(f"{type(error).__name__}: {error}"))
            return
        prepared.close()
        record.started = True
        self._tell(
            record,
            "start",
            {"workdir": prepared.workdir, "stdout": prepared.stdout, "stderr": prepared.stderr},
        )
        if job.duration > 0:
            now = time.monotonic()
            record.ends = now + job.duration + self._grace
            record.timers.append(
                self._watcher.at(now + job.duration, lambda: self._time_out(record))
            )
        if not record.live:
            self._tasks_over(record)

    def _retry(self, record: Record, why: str) -> None:
        """Wait until the system has processes and descriptors again. Others wait as well."""
        now = time.monotonic()
        if not record.delay:
            record.since = now
        elif now - record.since > _RETRY_LIMIT:
            note = f"the system refused to start it for {describe(_RETRY_LIMIT)}: {why}"
            self._refuse(record, LaunchError(note))
            return
        record.delay = min(record.delay * 2 or _RETRY_FIRST, _RETRY_LONGEST)
        self._stalled = record

        def again() -> None:
            if self._stalled is record:
                self._stalled = None
                if record.phase is Phase.NONE:
                    self._launch(record)

        record.timers.append(self._watcher.at(now + record.delay, again))

    def _refuse(self, record: Record, error: LaunchError) -> None:
        self._tell(
            record,
            "exception",
            {"type": error.kind, "severity": 0, "note": error.note, "status": error.code << 8},
        )
        record.reason = error.kind
        if record.pids:
            self._reaper.end(record)
        else:
            self._leave(record)

    # Ending.

    def _time_out(self, record: Record) -> None:
        if record.live and record.reason in ("", "task"):
            limit = describe(record.job.duration)
            self._end(record, "timeout", f"the time limit of {limit} has passed")

    def _end(self, record: Record, kind: str, note: str) -> None:
        record.reason = kind
        self._except(record, kind, note)
        if self._stalled is record:
            self._stalled = None
        self._reaper.end(record)

    def _task_ended(self, record: Record, pid: int) -> None:
        try:
            status = os.waitpid(pid, 0)[1]
        except ChildProcessError:
            status = 255 << 8
            self._except(
                record,
                "exec",
                "its exit status was taken by other code in this process: a function that waits"
                " for any child, or that ignores SIGCHLD",
            )
        record.live.discard(pid)
        if record.reason != "task" or not record.statuses:
            record.statuses.append(status)
        if record.live:
            # The other tasks may be waiting for this one, without an end.
            if os.WIFSIGNALED(status) and not record.reason and record.started:
                record.reason = "task"
                record.timers.append(
                    self._watcher.at(
                        time.monotonic() + self._grace, lambda: self._reaper.end(record)
                    )
                )
        elif record.started:
            self._tasks_over(record)
        elif record.phase is not Phase.NONE:
            self._reaper.task_ended(record)

    def _tasks_over(self, record: Record) -> None:
        self._tell(record, "finish", {"status": record.status()})
        if record.phase is Phase.NONE:
            self._ended.append(record)
        else:
            self._reaper.task_ended(record)

    def _look_behind(self) -> None:
        """End what jobs that are over by themselves have left running."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        left = self._census.left_behind(ended)
        for record in ended:
            if record in left:
                record.reason = record.reason or "leftover"
                self._reaper.end(record)
            else:
                self._leave(record)

    def _tidy(self) -> None:
        self._tidying = bool(self._running)
        if self._tidying:
            self._census.left_behind(())
            self._watcher.at(time.monotonic() + _TIDY, self._tidy)

    def _leave(self, record: Record, note: str = "") -> None:
        """Nothing of this job runs any more: free what it held."""
        if note:
            self._except(record, "leftover", note, severity=1)
        job = record.job
        del self._running[record]
        for pid in record.pids:
            if self._tasks.get(pid) is record:
                del self._tasks[pid]
        self._slots.give_back(job.cores, record.gpus)
        prepared = record.prepared
        if prepared is not None:
            prepared.close()
            for path in prepared.kept:
                _remove_if_empty(path)
        if record.started:
            self._tell(record, "release", _RELEASE)
        self._tell(record, "free")
        self._clean(record)

    def _clean(self, record: Record) -> None:
        record.over = True
        record.stop_timers()
        name = record.job.id
        self._records.pop(name, None)
        self.ids.discard(name)
        self._tell(record, "clean")


def _remove_if_empty(path: str) -> None:
    """A run of a million silent jobs does not leave two million empty files."""
    try:
        if os.stat(path).st_size == 0:
            os.unlink(path)
    except OSError:
        return
