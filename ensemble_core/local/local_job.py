"""State of a local job, from its arrival in the supervisor to its last event, ``clean``."""

from __future__ import annotations

import contextlib
import enum
import os
import signal

from ensemble_core.local.epoll_loop import PollerTimer
from ensemble_core.local.launch import Prepared
from ensemble_core.local.process_tree import Process
from ensemble_core.local.protocol import event_head
from ensemble_core.model.jobs import Job


class Phase(enum.IntEnum):
    """How far the termination of a job has gone: no signal yet, SIGTERM sent, or SIGKILL sent."""

    NONE = 0
    TERM = 1
    KILL = 2


class LocalJob:
    """A job and its processes."""

    __slots__ = (
        "allotted",
        "bypassed",
        "caught",
        "cores",
        "delay",
        "ended",
        "ends",
        "gpus",
        "groups",
        "head",
        "inherited",
        "job",
        "live",
        "need",
        "number",
        "over",
        "phase",
        "pids",
        "prepared",
        "reason",
        "reported",
        "signalled",
        "since",
        "spared",
        "started",
        "statuses",
        "suspended",
        "suspended_at",
        "termed",
        "timers",
    )

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        #: The cores, GPUs and bytes of memory that it needs.
        self.need = job.cores, job.gpus, job.memory
        #: The text with which the lines of the job's events begin.
        self.head = event_head(job.id)
        self.number = number
        self.over = False
        #: Whether the current controller receives the job's events.
        self.reported = True
        #: Whether the job's ``alloc`` has been reported.
        self.allotted = False
        #: Whether an earlier supervisor started the job. Its exit status is then unknown.
        self.inherited = False
        self.bypassed = 0
        #: The time of the next event, in microseconds, if it is not the present: 0 if it is.
        self.ended = 0
        #: The monotonic time by which the job must be over.
        self.ends: float | None = None
        self.prepared: Prepared | None = None
        self.gpus: tuple[str, ...] = ()
        #: The cores to which the tasks are bound, task by task; empty: they are not bound.
        self.cores: tuple[int, ...] = ()
        self.pids: list[int] = []
        #: Tasks that have not been reaped.
        self.live: set[int] = set()
        #: Other processes of the job that are watched and have not ended yet.
        self.signalled: dict[int, Process] = {}
        #: When SIGTERM was sent, in clock ticks since boot; -1: not by this supervisor. Processes
        #: that started later do not get it.
        self.termed = -1
        #: The process groups that have got SIGTERM.
        self.groups: set[int] = set()
        #: Processes that cannot be terminated.
        self.spared: set[Process] = set()
        #: Since when the job is suspended (monotonic), and for how long it was before. The time
        #: limit does not include that.
        self.suspended_at: float | None = None
        self.suspended = 0.0
        self.statuses: list[int] = []
        #: Whether a task with a handler for SIGTERM has failed.
        self.caught = False
        self.phase = Phase.NONE
        self.reason = ""
        self.started = False
        self.delay = 0.0
        self.since = 0.0
        self.timers: list[PollerTimer] = []

    def status(self) -> int:
        """The job's wait status, which is that of the task with the highest exit code.

        Tasks that were terminated because a signal killed another task do not count.
        """
        statuses = self.statuses
        return statuses[0] if len(statuses) == 1 else max(statuses, key=code_of)

    def suspend(self, stopped: bool, now: float) -> bool:
        """Note that the job is suspended, or runs. Return whether that is new."""
        if stopped is (self.suspended_at is not None):
            return False
        if self.suspended_at is not None:
            self.suspended += now - self.suspended_at
        self.suspended_at = now if stopped else None
        return True

    def take_suspended(self, now: float) -> float:
        """Return for how long the job was suspended since the last call."""
        seconds, self.suspended = self.suspended, 0.0
        if self.suspended_at is not None:
            seconds += now - self.suspended_at
            self.suspended_at = now
        return seconds

    def kill(self) -> None:
        """Send SIGKILL to the process groups of the live tasks.

        As long as a task has not been reaped, its process id cannot be reused, so no other process
        gets the signal.
        """
        for pid in self.live:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def stop_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


class ActiveJobs:
    """The jobs that are not over, those that hold slots, and the job of each task."""

    def __init__(self) -> None:
        self.records: dict[str, LocalJob] = {}
        self.running: dict[LocalJob, None] = {}
        self.tasks: dict[int, LocalJob] = {}


def code_of(status: int) -> int:
    """Return a wait status as a shell reports it: 128 + N after signal N."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def describe(seconds: float) -> str:
    """Format a time limit: ``600 s``."""
    return f"{seconds:g} s"
