"""Handles what happens to a local job between its start and its last event, ``clean``."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ensemble_core.local.epoll_loop import Poller, PollerTimer
from ensemble_core.local.event_recorder import EventRecorder
from ensemble_core.local.inside_allocation import SAME_SIGNAL, SIGNAL_CODES
from ensemble_core.local.job_memory import MemoryKills, MemoryLimits
from ensemble_core.local.local_job import ActiveJobs, LocalJob, Phase, code_of, describe
from ensemble_core.local.process_tree import ProcessTree
from ensemble_core.local.protocol import encode_context, encode_value
from ensemble_core.local.slots import Slots
from ensemble_core.local.suspensions import Suspensions
from ensemble_core.local.terminator import Terminator, Token

#: Seconds between checks for dead orphans of running jobs.
_TIDY = 30.0

#: Wait statuses of a job that SIGKILL has killed, and of a shell whose command SIGKILL has killed.
_KILLED = (signal.SIGKILL, (128 + signal.SIGKILL) << 8)

#: Events that are the same for every job.
_RELEASE = encode_context("release", {"ranks": "all", "final": True})
_FREE, _CLEAN = encode_context("free"), encode_context("clean")
_INTERRUPTED = encode_context(
    "exception", {"type": "interrupted", "severity": 0, "note": "ended with its allocation"}
)


class JobLifecycle:
    """Handles all jobs of a supervisor, from their start to their last event."""

    def __init__(
        self,
        active: ActiveJobs,
        slots: Slots,
        log: EventRecorder,
        poller: Poller[Token],
        tree: ProcessTree[LocalJob],
        grace: float,
        tied: bool = False,
    ) -> None:
        #: Whether this is a pilot, where no end is reported of a job that is interrupted.
        self.tied = tied
        self._active = active
        self._slots = slots
        self._log = log
        self._poller = poller
        self._tree = tree
        self.terminator = Terminator(tree, poller, grace, self.leave)
        #: Jobs of an earlier supervisor, with the reason why the exit status cannot be known.
        self.lost: dict[LocalJob, str] = {}
        #: Jobs whose last task has exited in this turn.
        self._ended: list[LocalJob] = []
        #: Jobs whose end waits, because the allocation may be ending.
        self._held: dict[LocalJob, PollerTimer] = {}
        self._memory_kills = MemoryKills()
        self._lacked = False  # whether a kill that ended no job was reported
        self._suspensions = Suspensions(active, log, poller, tied)
        self._memory_limits = MemoryLimits(active, poller, tree, self._exceed_memory)
        self._tidying = False
        # A queue that ends a pilot may kill the processes of a job before this one.
        self._held_codes = SIGNAL_CODES | {128 + signal.SIGKILL} if tied else SIGNAL_CODES

    def started(self, record: LocalJob) -> None:
        if not self._tidying:
            self._tidying = True
            self._poller.at(time.monotonic() + _TIDY, self._tidy)
        self._suspensions.watch()
        if record.job.memory_per_task:
            self._memory_limits.watch()
        if record.job.duration > 0:
            self.limit(record, record.job.duration)
        if not record.live:
            self._finish_tasks(record)

    def limit(self, record: LocalJob, seconds: float, *, warned: bool = False) -> None:
        """Start the timer of a job's time limit, or first that of its warning."""
        now = time.monotonic()
        record.ends = now + seconds + self.terminator.grace_of(record.job)
        before = 0.0 if warned else min(record.job.warn.get("before", 0.0), seconds)
        if before:
            due = self._poller.at(now + seconds - before, lambda: self._warn(record, before))
        else:
            due = self._poller.at(now + seconds, lambda: self._time_out(record))
        record.timers.append(due)

    def _warn(self, record: LocalJob, left: float) -> None:
        self._suspensions.catch_up()
        if suspended := record.take_suspended(time.monotonic()):
            self.limit(record, left + suspended)
            return
        self.signal(record, record.job.warn["signal"])
        self.limit(record, left, warned=True)

    def signal(self, record: LocalJob, name: str) -> None:
        """Send a signal to the process groups of a job's tasks, unless the job is being ended."""
        if record.phase is not Phase.NONE or record.reason not in ("", "task"):
            return
        groups = set(record.live) if record.started else set()
        if record.inherited:
            groups = self._tree.inherited_groups(record)
        for group in groups:
            # A live process of the group exists, or its leader has not been reaped.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.Signals[f"SIG{name}"])

    def _time_out(self, record: LocalJob) -> None:
        if (record.live or record.inherited) and record.reason in ("", "task"):
            self._suspensions.catch_up()
            if suspended := record.take_suspended(time.monotonic()):
                self.limit(record, suspended, warned=True)
                return
            limit = describe(record.job.duration)
            self.end(record, "timeout", f"exceeded the time limit of {limit}")

    def _exceed_memory(self, record: LocalJob, note: str) -> None:
        if record.reason in ("", "task"):
            self.end(record, "out-of-memory", note)

    def end(self, record: LocalJob, kind: str, note: str) -> None:
        """Terminate a job for this reason, also if its own end is held."""
        record.reason = kind
        self._log.add_exception(record, kind, note)
        if not self._release(record):
            self.terminator.end(record)

    def cancel(self, record: LocalJob, note: str) -> None:
        """Cancel a job that has been started, unless it is being terminated for another reason."""
        if record.reason == "interrupted":
            record.reason = "cancel"
            self._log.add_exception(record, "cancel", note)
        elif record in self._held or record.live or not record.started:
            self.end(record, "cancel", note)

    def interrupt(self, record: LocalJob) -> None:
        """End a job because the allocation ends, unless it ends already."""
        if record.phase is not Phase.NONE or record.reason not in ("", "task"):
            return
        if record in self._ended:
            return  # its last task has exited in this turn, whose end reports that
        record.reason = "interrupted"
        if self._log.ledger is not None:
            self._log.ledger.interrupting(record.job.id)
        if not (record.started or record.pids or record.inherited):
            if self.tied and self._log.ledger is not None:
                self._log.ledger.postpone(record.job.id)
            self.leave(record)
        elif not self._release(record):
            self.terminator.end(record)

    def _release(self, record: LocalJob) -> bool:
        """Let the held end of a job take effect. Return False if it was not held."""
        timer = self._held.pop(record, None)
        if timer is None:
            return False
        timer.cancel()
        self._ended.append(record)
        return True

    def task_ended(self, record: LocalJob, pid: int) -> None:
        caught = _catches(pid) if record.reason in ("", "task") else False
        try:
            status = os.waitpid(pid, 0)[1]
        except ChildProcessError:
            status = 255 << 8
            self._log.add_exception(
                record,
                "exec",
                "other code in the supervisor took its exit status",
                cause="unknown",
            )
        record.live.discard(pid)
        if record.reason != "task" or not record.statuses:
            record.statuses.append(status)
        record.caught = record.caught or (caught and status != 0)
        if record.live:
            # Other tasks of the job may wait for this task forever.
            if os.WIFSIGNALED(status) and not record.reason and record.started:
                record.reason = "task"
                record.timers.append(
                    self._poller.at(
                        time.monotonic() + self.terminator.grace_of(record.job),
                        lambda: self._end_others(record),
                    )
                )
        elif record.started:
            self._finish_tasks(record)
        elif record.phase is not Phase.NONE:
            self.terminator.task_ended(record)

    def _end_others(self, record: LocalJob) -> None:
        """End the tasks that are left of a job of which a signal has ended one."""
        if record.live:  # without them, its end is on its way, or held
            self.terminator.end(record)

    def _finish_tasks(self, record: LocalJob) -> None:
        if record.phase is not Phase.NONE:
            self._log.add(record, *self._finish(record))
            self.terminator.task_ended(record)
        elif record.caught or code_of(record.status()) in self._held_codes:
            ended = self._log.tick()

            def release() -> None:
                self._release(record)
                record.ended = ended  # the time of the wait is not the job's

            self._held[record] = self._poller.at(time.monotonic() + SAME_SIGNAL, release)
        else:
            self._ended.append(record)

    def end_leftovers(self) -> None:
        """Terminate processes that exited jobs have left behind."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        left = self._tree.left_behind(ended)
        for record in ended:
            if record in left:
                self._log.add(record, *self._finish(record))
                record.reason = record.reason or "leftover"
                self.terminator.end(record)
            else:
                self.leave(record, "", *self._finish(record))

    def _finish(self, record: LocalJob) -> tuple[str, ...]:
        status = record.status()
        lacked = self._memory_kills.grew()
        if status in _KILLED and record.reason in ("", "task"):
            if lacked or self._memory_kills.happened():
                return (encode_context("finish", {"status": status, "cause": "memory"}),)
        elif lacked and not self._lacked:
            self._lacked = True
            self._log.problem(
                f"the kernel has killed a process for lack of memory, and {record.job.id} has just "
                f"ended with exit code {code_of(status)}: if the process was one of its children, "
                "its results may be incomplete (said once)\n"
                "  hint: request memory with 'memory_per_task', so that fewer jobs run at once"
            )
        finish = encode_value("finish", "status", status)
        if record.reason != "interrupted":
            return (finish,)
        if status == 0 or not self.tied:
            record.reason = "leftover"  # from now on, only its processes matter
        return (finish,) if status == 0 else () if self.tied else (_INTERRUPTED, finish)

    def _tidy(self) -> None:
        self._tidying = bool(self._active.running)
        if self._tidying:
            self._tree.left_behind(())
            self._poller.at(time.monotonic() + _TIDY, self._tidy)

    def leave(self, record: LocalJob, note: str = "", *first: str) -> None:
        """Release the slots of a job that has no processes, and add its last events.

        The events ``first`` come before them.
        """
        lost = self.lost.pop(record, "")
        if record.inherited:
            self._tree.forget(record.job.id)
            if not record.reason:
                self._log.add_exception(record, "lost", lost)
        if record.reason == "interrupted" and not self.tied:
            first = (_INTERRUPTED, *first)
        if note and not self._is_untold(record):
            self._log.add_exception(record, "leftover", note, severity=1)
        cores, _, memory = record.need
        del self._active.running[record]
        for pid in record.pids:
            if self._active.tasks.get(pid) is record:
                del self._active.tasks[pid]
        self._slots.give_back(cores, record.gpus, record.cores, memory)
        prepared = record.prepared
        if prepared is not None:
            prepared.close()
            for path in prepared.kept:
                _remove_if_empty(path)
        if record.started:
            first += (_RELEASE,)
        if record.allotted:
            first += (_FREE,)
        self.clean(record, *first)

    def clean(self, record: LocalJob, *first: str) -> None:
        """Mark a job as over. Add the events ``first``, and then ``clean``."""
        record.over = True
        record.stop_timers()
        name = record.job.id
        self._active.records.pop(name, None)
        if not self._is_untold(record):
            self._log.add(record, *first, _CLEAN)

    def _is_untold(self, record: LocalJob) -> bool:
        """Return whether the pilot of a job has ended it, so that its end is not its own."""
        return self.tied and record.reason == "interrupted"


def _catches(pid: int) -> bool:
    """Return whether a process that has failed, but was not reaped, had a handler for SIGTERM."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_code == os.CLD_EXITED and ended.si_status == 0:
            return False  # nearly always, and then the fifty lines below need not be read
        with open(f"/proc/{pid}/status", "rb") as file:
            for text in file:
                if text.startswith(b"SigCgt:"):
                    return bool(int(text[7:], 16) >> (signal.SIGTERM - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def _remove_if_empty(path: str) -> None:
    """Remove an output file if it is empty."""
    try:
        if os.stat(path).st_size == 0:
            os.unlink(path)
    except OSError:
        return
