"""BatchExecutor: a base for executors of queues that must be polled.

One thread asks the queue and hands jobs in, another reads what jobs' wrappers have written. See
:class:`BatchExecutor`; ``docs/executor-tutorial.md`` writes one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ensemble_batch import pace
from ensemble_batch.command import QueueCommands
from ensemble_batch.hooks import QueueHooks
from ensemble_batch.inquiry import Inquiry
from ensemble_batch.job_table import JobLife
from ensemble_batch.queue_run import QueueRun, mark_of
from ensemble_batch.records import Records
from ensemble_batch.recovery import find_again
from ensemble_batch.spool import Spool
from ensemble_batch.submission import Submission
from ensemble_core import (
    Emit,
    ExecutorError,
    ExecutorLost,
    Job,
    Run,
    check_new,
    job_environment,
    raised_at,
    start_folder,
    wrong_command,
)

__all__ = ["BatchExecutor"]


class BatchExecutor(QueueHooks):
    """A base for executors of queues that are asked: a plugin says how, and has the rest from here.

    To be overridden: :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch`, :meth:`end_jobs`; where
    it helps :meth:`connect`, :meth:`wrong`, :meth:`shape`, :meth:`nodes` and :meth:`account`. These
    are called one at a time, not from the engine's thread, and may block; :meth:`command` runs a
    command for them. Each may raise an :class:`ExecutorError`: one that is ``transient`` says that
    the queue is away, slow or garbled for now, and is tried again for as long as it takes, told
    once; one with the code ``full`` that it takes no more jobs for now; any other is final.

    From here: jobs gathered into batches of one :meth:`shape`, as few calls as may be; a script
    with a wrapper that makes folders, starts the tasks, keeps the time limit and writes start and
    end into the run's folder, which nodes must see; one question for all jobs, a little more often
    than each ``poll`` seconds; events in order, each once; jobs found again by a later controller.
    A job runs at most once whatever the queue does, since its wrapper claims it: so a submit whose
    answer is lost is simply made again. A job that has left no word is over when three answers in
    a row lack it, which is within ``poll`` seconds, or 6 s where that is less; one of which
    :meth:`account` knows nothing either is told as ``lost``, and does not run if it comes late.
    """

    _polled: QueueRun | None = None
    _asked = False

    # -- opening and closing -------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        if self._polled is not None:
            raise ExecutorError(f"the executor {self.name} is open already", code="already-open")
        self._commands = QueueCommands()
        here = start_folder()
        self.connect()
        folder = os.path.abspath(run.folder)
        if run.state is not None:
            place = os.path.join(os.path.realpath(run.state), self.name)
        else:
            place = os.path.join(folder, f".{self.name}-{mark_of(run.tag)}")
        environment = {
            name: value
            for name, value in job_environment().items()
            if not (self.own_variables and name.startswith(self.own_variables))
        }
        try:
            spool = Spool(place, environment)
            records = Records(place if run.state is not None else None)
        except OSError as error:
            raise ExecutorError(
                f"the folder that jobs report to cannot be made: {place}",
                cause=error.strerror or str(error),
                hint="choose a folder that this machine and the nodes can write (--state)",
                code="no-folder",
            ) from None
        polled = QueueRun(self, run, emit, spool, records, (folder, here))
        try:
            polled.gauges = dict(polled.call(self.nodes))
        except ExecutorError as error:
            if not error.transient:
                records.close()
                raise
        self._polled = polled
        self._submission, self._inquiry = Submission(polled), Inquiry(polled)
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(polled, what), name=f"{self.name} {name}", daemon=True
            )
            for name, what in (("asks", self._asking), ("reads", self._reading))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let the queue go. Jobs in it go on; those on their way to it arrive first."""
        polled, self._polled = self._polled, None
        if polled is None:
            return
        with polled.lock:
            polled.lock.wait_for(lambda: not self._submission.waiting or polled.closed, pace.LEAVE)
            polled.closed = True
            polled.lock.notify_all()
        self._commands.kill()
        for thread in self._threads:
            thread.join()
        if not polled.lives and polled.run.state is None:
            polled.spool.remove()
        polled.records.close()

    def _opened(self) -> QueueRun:
        if self._polled is None:
            raise ExecutorError(f"the executor {self.name} is not open", code="not-open")
        return self._polled

    # -- what the run asks for -----------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        polled = self._opened()
        with polled.lock:
            polled.ids |= check_new(jobs, polled.ids)
            for job in jobs:
                self._take_in(polled, job)
            polled.publish()
            polled.lock.notify_all()

    def _take_in(self, polled: QueueRun, job: Job) -> None:
        life = polled.lives[job.id] = JobLife(job.id, {}, polled.events)
        wrong = wrong_command(job) or self.wrong(job)
        if wrong is not None:
            life.refuse("jobspec", wrong, polled.now())
            return
        try:
            place = polled.output.place(job)
        except (OSError, ValueError) as error:
            what = getattr(error, "filename", None) or job.stdout or job.stderr
            why = getattr(error, "strerror", None) or str(error)
            note = f"the output file {what} cannot be used: {why}"
            life.refuse("output", note, polled.now())
            return
        life.files = place.files
        self._submission.take(job, place)

    def cancel(self, jobs: Sequence[str]) -> None:
        polled = self._opened()
        with polled.lock:
            ours = [job for job in jobs if job in polled.lives]
            if ours:
                polled.outlet.write(lambda: polled.records.cancel(ours))
            for job in ours:
                if self._submission.withdraw(job):
                    polled.lives[job].refuse("cancel", polled.note, polled.now())
                else:
                    polled.cancel(polled.lives[job])
            polled.publish()
            polled.lock.notify_all()

    def resources(self) -> Mapping[str, float]:
        return {} if self._polled is None else dict(self._polled.gauges)

    @property
    def sees_strangers(self) -> bool:
        """Never: everybody's jobs are more than a queue should be asked for."""
        return False

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return find_again(self._opened(), jobs)

    def forget(self, jobs: Sequence[str]) -> None:
        polled = self._opened()
        with polled.lock:
            polled.outlet.write(lambda: polled.records.forget(jobs))

    # -- the two threads -----------------------------------------------------------------------

    def _guarded(self, polled: QueueRun, what: Callable[[QueueRun], None]) -> None:
        try:
            what(polled)
        except Exception as error:  # of a plugin, most likely: nobody would know
            reason = f"its thread died of {error!r} ({raised_at(_beyond_base(error))})"
            hint = "that is a defect of the plugin; jobs go on: 'ensemble resume'"
            lost = ExecutorLost(polled.now(), self.name, reason, hint)
            with polled.lock:
                polled.outlet.add((lost,))
                polled.outlet.emit()
                polled.closed = True
                polled.lock.notify_all()

    def _asking(self, polled: QueueRun) -> None:
        while True:
            with polled.lock:
                if polled.closed:
                    return
                dues = [time.monotonic() + 60.0]
                act = self._next(dues)
                if act is None:
                    polled.lock.wait(max(0.0, min(dues) - time.monotonic()))
                    continue
            act()
            with polled.lock:
                polled.publish()
                polled.lock.notify_all()

    def _next(self, dues: list[float]) -> Callable[[], None] | None:
        """The next step to take now; else ``dues`` has the time of one."""
        now = time.monotonic()
        act = self._inquiry.cancels_due(now, dues)
        if act is not None:
            return act
        # By turns: many jobs to hand in do not keep the queue from being asked, nor the reverse.
        turns = (self._submission.due, self._inquiry.due)
        for what in turns if self._asked else reversed(turns):
            act = what(now, dues)
            if act is not None:
                self._asked = what == self._inquiry.due
                return act
        return None

    def _reading(self, polled: QueueRun) -> None:
        wait = pace.READ
        while True:
            with polled.lock:
                polled.lock.wait_for(lambda: polled.closed or polled.lives, 60.0)
                if polled.closed:
                    return
                wait = pace.READ if polled.read() else min(pace.READ_LATER, wait * 1.5)
                polled.publish()
                polled.lock.wait_for(lambda: polled.closed, wait)


def _beyond_base(error: Exception) -> Exception:
    """The error without the leading frames of this package: a plugin's frame comes first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith("ensemble_batch."):
            break
        trace = trace.tb_next
    return error.with_traceback(trace)
