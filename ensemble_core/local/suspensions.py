"""Notices when local jobs are stopped and continued by signals, such as SIGTSTP and SIGCONT."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from ensemble_core.local.event_log import EventLog
from ensemble_core.local.local_job import ActiveJobs, LocalJob, Phase
from ensemble_core.local.poller import Poller
from ensemble_core.local.protocol import encode_context
from ensemble_core.local.terminator import Token

__all__ = ["Suspensions"]

#: Seconds between checks. The kernel reports stops only by SIGCHLD, which needs the main thread.
_CHECK = 1.0
_SUSPEND = encode_context("suspend", {"note": "its processes were stopped by a signal"})
_UNSUSPEND = encode_context("unsuspend")


class Suspensions:
    """Checks running jobs. A job is suspended while all its tasks are stopped."""

    def __init__(self, active: ActiveJobs, log: EventLog, poller: Poller[Token]) -> None:
        self._active = active
        self._log = log
        self._poller = poller
        self._checking = False

    def watch(self) -> None:
        """Check jobs as long as some run."""
        if not self._checking:
            self._checking = True
            self._poller.at(time.monotonic() + _CHECK, self._check)

    def _check(self) -> None:
        self._checking = False
        if self._active.running:
            self.watch()
        for record in list(self._active.running):
            if not record.started:
                continue
            for pid in record.live:
                self._look(record, pid)
            stopped = bool(record.live) and record.stopped >= record.live
            if record.phase is Phase.NONE and record.suspend(stopped, time.monotonic()):
                self._log.add(record, _SUSPEND if stopped else _UNSUSPEND)

    def _look(self, record: LocalJob, pid: int) -> None:
        """Update the state of a task. The task is not reaped."""
        flags = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_PID, pid, flags)) is not None:
                if found.si_code == os.CLD_CONTINUED:
                    record.stopped.discard(pid)
                else:
                    record.stopped.add(pid)
