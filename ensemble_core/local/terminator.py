"""Terminates all processes of a job with SIGTERM and, after a grace period, with SIGKILL.

A process gets SIGTERM only once, because many programs treat a second one as an order to abort.
Therefore process groups are signalled, each of them once: no process can fork out of reach of that.
A process that a group forks later, such as a copy that saves a checkpoint, gets no SIGTERM. Of a
job that passes signals on (``Job.forwards``), only the group of its task gets SIGTERM, as long as
the task is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.local_job import LocalJob, Phase
from ensemble_core.local.process_tree import Process, ProcessTree, pin
from ensemble_core.model.jobs import Job

#: A watched process with its job. For a task, the process has ``born`` = -1.
Token = tuple[LocalJob, Process]

#: How many rounds (read the process table, then signal new processes) follow without a short pause.
_ROUNDS = 20
#: How many seconds to wait after SIGKILL for processes other than tasks.
_GIVE_UP = 60.0
#: Clock ticks per second, the unit of ``Process.born``.
_TICKS = os.sysconf("SC_CLK_TCK")
#: Seconds between checks of processes that cannot be watched.
_LOOK_AGAIN = 0.05


class Terminator:
    """Terminates jobs. SIGKILL follows ``grace`` seconds after SIGTERM, or the job's ``grace``."""

    def __init__(
        self,
        tree: ProcessTree[LocalJob],
        poller: Poller[Token],
        grace: float,
        done: Callable[[LocalJob, str], None],
    ) -> None:
        self._tree = tree
        self._poller = poller
        self.grace = grace
        #: Called when no process of the job is left.
        self._done = done
        #: Jobs whose processes have to be searched at the end of this turn.
        self._due: dict[LocalJob, None] = {}

    def grace_of(self, job: Job) -> float:
        """Return the seconds between SIGTERM and SIGKILL for a job."""
        return self.grace if job.grace is None else job.grace

    def wait_for_end(self, record: LocalJob) -> None:
        """Wait until all processes of an inherited job have ended."""
        self._due[record] = None

    def end(self, record: LocalJob, *, signalled: bool = False) -> None:
        """Start to terminate all processes of a job, unless this has been started already.

        Set ``signalled`` if an earlier supervisor has sent SIGTERM.
        """
        if record.phase is not Phase.NONE:
            return
        record.phase = Phase.TERM
        if not signalled:
            record.termed = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
            for pid in record.live:
                self._terminate_group(record, pid)
        self._due[record] = None
        record.timers.append(
            self._poller.at(
                time.monotonic() + self.grace_of(record.job), lambda: self._kill(record)
            )
        )

    def end_now(self, record: LocalJob) -> None:
        """Start to terminate a job. If this has been started already, kill the job."""
        if record.phase is Phase.TERM:
            self._kill(record)
        else:
            self.end(record)

    def _kill(self, record: LocalJob) -> None:
        if record.over:
            return
        if record.phase is not Phase.KILL:
            record.phase = Phase.KILL
            record.since = time.monotonic()
        record.kill()
        self._due[record] = None

    def task_ended(self, record: LocalJob) -> None:
        """Note that the last task of a job that is being terminated has been reaped."""
        self._due[record] = None

    def member_ended(self, record: LocalJob, process: Process) -> None:
        """Handle the end of a process that was signalled."""
        record.signalled.pop(process.pid, None)
        # Reap the process if it is our child. Otherwise, its parent does that.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        if not record.signalled:
            self._due[record] = None

    def turn(self) -> None:
        """Find and signal the processes of jobs that are being terminated."""
        if not self._due:
            return
        hunt, self._due = self._due, {}
        for attempt in range(_ROUNDS):
            self._tree.left_behind([record for record in hunt if not record.live])
            members = self._tree.members()
            fresh = False
            for record in hunt:
                for process in members.get(record, ()):
                    # The first round signals all processes, later rounds only new ones.
                    if attempt == 0 or record.signalled.get(process.pid) != process:
                        fresh |= self._signal(record, process)
            if not fresh:
                break
        for record in hunt:
            here = [p for p in members.get(record, ()) if p not in record.spared]
            if record.live or record.signalled:
                continue
            if not here:
                self._done(record, self._survivors_note(record))
            elif record.phase is Phase.KILL and time.monotonic() - record.since > _GIVE_UP:
                record.spared.update(here)
                self._done(record, self._survivors_note(record))
            else:
                self._schedule_look(record)

    def _schedule_look(self, record: LocalJob) -> None:
        def look() -> None:
            if not record.over:
                self._due[record] = None

        record.timers.append(self._poller.at(time.monotonic() + _LOOK_AGAIN, look))

    def _survivors_note(self, record: LocalJob) -> str:
        if not record.spared:
            return ""
        pids = ", ".join(str(process.pid) for process in sorted(record.spared, key=_pid))
        return f"these processes could not be ended (no permission, or no reaction): {pids}"

    def _signal(self, record: LocalJob, process: Process) -> bool:
        """Signal a process and watch it. Return True if the process exists and is new."""
        if process in record.spared:
            return False
        known = record.signalled.get(process.pid) == process
        missed = process.group not in record.groups and process.born <= record.termed
        missed = missed and not (record.job.forwards and record.live)
        if known and record.phase is not Phase.KILL and not missed:
            return False
        # Signal 0 only checks the permission.
        number = signal.SIGKILL if record.phase is Phase.KILL else 0
        try:
            fd = pin(process)
        except OSError:
            # Without a pidfd, signal the process by its number, and check it again later.
            if missed:
                self._terminate_group(record, process.group)
            self._send(record, process, number, lambda sent: os.kill(process.pid, sent))
            self._schedule_look(record)
            return not known
        if fd is None:
            return not known
        if missed:
            self._terminate_group(record, process.group)
        there = self._send(record, process, number, lambda sent: signal.pidfd_send_signal(fd, sent))
        if there and not known:
            record.signalled[process.pid] = process
            self._poller.watch_fd(fd, (record, process))
            return True
        os.close(fd)
        return False

    def _terminate_group(self, record: LocalJob, group: int) -> None:
        """Send SIGTERM to a process group of a job.

        A process of the group exists, or is a task that has not been reaped, so no other group can
        have the same number.
        """
        record.groups.add(group)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
            os.killpg(group, signal.SIGCONT)

    def _send(
        self, record: LocalJob, process: Process, number: int, send: Callable[[int], None]
    ) -> bool:
        """Signal a process.

        Return False if it does not exist or the system does not allow the signal.
        """
        try:
            send(number)
        except ProcessLookupError:
            return False
        except PermissionError:
            record.spared.add(process)
            return False
        return True


def _pid(process: Process) -> int:
    return process.pid
