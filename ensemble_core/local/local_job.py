"""One job in the local executor: what its thread knows of it from arrival to ``clean``."""

from __future__ import annotations

import contextlib
import enum
import os
import signal

from ensemble_core.local.launch import Prepared
from ensemble_core.local.poller import PollerTimer
from ensemble_core.local.process_tree import Process
from ensemble_core.local.protocol import event_head
from ensemble_core.model.jobs import Job

__all__ = ["ActiveJobs", "LocalJob", "Phase", "describe"]


class Phase(enum.IntEnum):
    """How far the end of a job's processes has been brought about."""

    NONE = 0
    TERM = 1
    KILL = 2


class LocalJob:
    """A job and its processes.

    ``live`` are the tasks that have not been reaped, ``signalled`` other processes of the job that
    were signalled and have not ended. ``ends`` is the monotonic time by which the job must be over.
    ``told`` says that the controller that is there now hears of the job, ``allotted`` that its
    ``alloc`` was told, and ``inherited`` that it was started by a supervisor that is gone: its
    processes are nobody's children, and its exit status cannot be known.
    """

    __slots__ = (
        "allotted",
        "bypassed",
        "delay",
        "ends",
        "gpus",
        "head",
        "inherited",
        "job",
        "live",
        "number",
        "over",
        "phase",
        "pids",
        "prepared",
        "reason",
        "signalled",
        "since",
        "spared",
        "started",
        "statuses",
        "timers",
        "told",
    )

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        #: How the lines of its events begin.
        self.head = event_head(job.id)
        self.number = number
        self.over = False
        self.told = True
        self.allotted = False
        self.inherited = False
        self.bypassed = 0
        self.ends: float | None = None
        self.prepared: Prepared | None = None
        self.gpus: tuple[str, ...] = ()
        self.pids: list[int] = []
        self.live: set[int] = set()
        self.signalled: dict[int, Process] = {}
        self.spared: set[Process] = set()
        self.statuses: list[int] = []
        self.phase = Phase.NONE
        self.reason = ""
        self.started = False
        self.delay = 0.0
        self.since = 0.0
        self.timers: list[PollerTimer] = []

    def status(self) -> int:
        """The job's wait status: that of the task which a shell would report with the highest code.

        Once a task was killed by a signal, tasks that were ended because of it do not count.
        """
        return max(self.statuses, key=_code)

    def signal(self, number: int) -> None:
        """Signal the process groups of the live tasks.

        A task that was not reaped holds its process id, so no other process can be hit.
        """
        for pid in self.live:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
                if number == signal.SIGTERM:
                    os.killpg(pid, signal.SIGCONT)

    def stop_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


class ActiveJobs:
    """Every job that is not over: all of them, those that hold slots, and whose each task is."""

    def __init__(self) -> None:
        self.records: dict[str, LocalJob] = {}
        self.running: dict[LocalJob, None] = {}
        self.tasks: dict[int, LocalJob] = {}


def _code(status: int) -> int:
    """A wait status as a shell reports it: 128 and the signal's number for a signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def describe(seconds: float) -> str:
    """A time limit in words: ``600 s``."""
    return f"{seconds:g} s"
