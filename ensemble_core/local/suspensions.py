"""Notices when local jobs are stopped and continued by signals, such as SIGTSTP and SIGCONT.

A queue that suspends a pilot or an allocation stops this process too. It then notices the
suspension when it is continued. If the queue stops only the task of the pilot, the jobs are stopped
here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.event_recorder import EventRecorder
from ensemble_core.local.local_job import ActiveJobs, Phase
from ensemble_core.local.protocol import encode_context
from ensemble_core.local.terminator import Token

#: Seconds between checks. Reports of the kernel would need SIGCHLD on the main thread, and it
#: reports no stop of a process whose child is stopped before it calls exec (see ``is_stopped``).
_CHECK = 1.0
#: Seconds by which a check is late if this process was stopped, and not only busy.
_LATE = 0.5
_SUSPEND = encode_context("suspend", {"note": "its processes were stopped by a signal"})
_UNSUSPEND = encode_context("unsuspend")


class Suspensions:
    """Checks running jobs. A job is suspended while all its tasks are stopped.

    ``tied``: jobs are stopped and continued with the process that has started this one.
    """

    def __init__(
        self, active: ActiveJobs, log: EventRecorder, poller: Poller[Token], tied: bool
    ) -> None:
        self._tied, self._stopped = tied, False
        self._active = active
        self._log = log
        self._poller = poller
        self._checking = False
        self._checked = 0.0  # when jobs were checked last (monotonic)

    def watch(self) -> None:
        """Check jobs as long as some run."""
        if not self._checking:
            self._checking = True
            self._checked = time.monotonic()
            self._poller.at(self._checked + _CHECK, self._check)

    def catch_up(self) -> None:
        """Note the time in which this process was stopped with its jobs, if it just was."""
        if not self._checking or signal.sigtimedwait({signal.SIGCONT}, 0) is None:
            return
        now = time.monotonic()
        seconds, self._checked = now - self._checked, now
        if seconds < _CHECK + _LATE:
            return
        since = self._log.ago(seconds)
        for record in self._active.running:
            runs = record.started and record.phase is Phase.NONE and not record.ended
            if record.live and runs and record.suspended_at is None:
                record.suspended += seconds
                record.ended = since
                self._log.add(record, _SUSPEND, _UNSUSPEND)

    def _check(self) -> None:
        self.catch_up()
        self._checking = False
        if self._active.running:
            self.watch()
        if self._tied:
            self._follow_parent()
        for record in self._active.running:
            if record.live and record.started and record.phase is Phase.NONE:
                stopped = all(is_stopped(pid) for pid in record.live)
                if record.suspend(stopped, time.monotonic()):
                    self._log.add(record, _SUSPEND if stopped else _UNSUSPEND)

    def _follow_parent(self) -> None:
        stopped, before = is_stopped(os.getppid()), self._stopped
        self._stopped = stopped
        if not (stopped or before):
            return
        for record in self._active.running:
            for pid in record.live if record.started and record.phase is Phase.NONE else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process.

    A process that called vfork cannot stop before its child calls exec. It then counts as stopped
    if the child is.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
        if state != b"D":
            return state == b"T"
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            children = [int(child) for child in file.read().split()]
    except (OSError, IndexError):
        return False
    return bool(children) and all(is_stopped(child) for child in children)
