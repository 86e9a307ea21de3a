"""QueueExecutor: a base for executors of queues that know how each job ended, and tell.

One thread asks the queue and hands jobs in, another listens to it. ``BatchExecutor`` is the base
for queues whose jobs need a wrapper. ``docs/executor-tutorial.md`` writes one of each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ensemble_batch import pace
from ensemble_batch.command import QueueCommands
from ensemble_batch.hooks import QueueHooks, QueueJob
from ensemble_batch.inquiry import Inquiry
from ensemble_batch.job_table import JobLife
from ensemble_batch.queue_run import QueueRun, mark_of
from ensemble_batch.records import Records
from ensemble_batch.recovery import find_again
from ensemble_batch.submission import Submission
from ensemble_core import (
    Emit,
    ExecutorError,
    ExecutorLost,
    Job,
    Run,
    check_new,
    raised_at,
    start_folder,
    wrong_command,
)

__all__ = ["QueueExecutor"]

#: What a thread does next, without the lock.
_Step = Callable[[], None]
_Steps = Callable[[float, list[float]], "_Step | None"]


class QueueExecutor(QueueHooks):
    """A base for executors of queues that run jobs themselves, and know how each ended.

    To be overridden: :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch`, :meth:`end_jobs`; for a
    queue that tells by itself :meth:`watch`; where it helps :meth:`connect`, :meth:`disconnect`,
    :meth:`wrong`, :meth:`shape`, :meth:`nodes` and :meth:`account`. All but ``watch`` are called
    one at a time, not from the engine's thread, and may block. Each may raise :class:`CannotTake`,
    and is tried again for as long as it takes, told once; :meth:`submit_batch` also
    :class:`InvalidJob`. Any other :class:`ExecutorError` is final, too.

    From here: jobs gathered into batches of one :meth:`shape`, of ``most_jobs`` at most (half as
    many after a batch was too large); a full queue tried again when a job ends; one question for
    all jobs about each ``poll`` seconds, and soon where news may have been missed; events in order,
    each once; jobs found again by a later controller; cancels repeated until they are heeded.

    The plugin makes a job run as the contract says (``Executor``): it starts ``job.command`` with
    ``batch.environment(job)``, in the workdir and into the output files of ``batch.places``, ends
    it after ``job.duration`` seconds (``exception="timeout"``), and refuses by :meth:`wrong` what
    it cannot do. Where a shell on the nodes is to do that, take :class:`BatchExecutor`.

    A job is handed in at most once if the queue keeps two rules: it never has two batches of one
    ``batch.name`` (a second ``submit_batch`` of it returns the ids of the first), and it does not
    start a job again by itself. After :class:`CannotTake` a batch is looked for by its name, and
    handed in again under the same one.

    A :class:`QueueJob` that is ``over`` with a ``status`` or an ``exception`` ends its job at once,
    whether it was asked for or told. One that three answers in a row lack, and of which
    :meth:`account` knows nothing, is ``lost``: the queue should keep ended jobs for some minutes.
    """

    _polled: QueueRun | None = None
    _asked = False
    _threads: Sequence[threading.Thread] = ()

    # -- opening and closing -------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        if self._polled is not None:
            raise ExecutorError(f"the executor {self.name} is open already", code="already-open")
        self._commands = QueueCommands(self.rate)
        here = start_folder()
        self.connect()
        try:
            self._begin(run, emit, here)
        except BaseException:
            self._let_go()
            self.disconnect()
            raise

    def _begin(self, run: Run, emit: Emit, here: str) -> None:
        folder = os.path.abspath(run.folder)
        if run.state is not None:
            place = os.path.join(os.path.realpath(run.state), self.name)
        else:
            place = os.path.join(folder, f".{self.name}-{mark_of(run.tag)}")
        try:
            if run.state is not None:
                os.makedirs(place, mode=0o700, exist_ok=True)
            records = Records(place if run.state is not None else None)
            polled = self._make_run(run, emit, place, records, (folder, here))
        except OSError as error:
            raise ExecutorError(
                f"the folder that jobs report to cannot be made: {place}",
                cause=error.strerror or str(error),
                hint="choose a folder that this machine and the nodes can write (--state)",
                code="no-folder",
            ) from None
        try:
            polled.gauges = dict(polled.call(self.nodes))
        except ExecutorError as error:
            if not error.transient:
                records.close()
                raise
        self._polled = polled
        self._inquiry = Inquiry(polled)
        self._submission = Submission(polled, self._inquiry)
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(polled, what), name=f"{self.name} {name}", daemon=True
            )
            for name, what in self._loops().items()
        ]
        for thread in self._threads:
            thread.start()

    def _make_run(
        self, run: Run, emit: Emit, place: str, records: Records, places: tuple[str, str]
    ) -> QueueRun:
        return QueueRun(self, run, emit, place, records, places)

    def _loops(self) -> dict[str, Callable[[QueueRun], None]]:
        """The loops of the executor's threads, by the names of these."""
        loops: dict[str, Callable[[QueueRun], None]] = {"asks": partial(self._acting, self._asks)}
        if self.lanes == 2:
            loops["submits"] = partial(self._acting, self._submits)
        if type(self).watch is not QueueHooks.watch:
            loops["watches"] = self._watching
        return loops

    def close(self) -> None:
        """Let the queue go. Jobs in it go on; those on their way to it arrive first."""
        polled, self._polled = self._polled, None
        if polled is None:
            return
        with polled.lock:
            polled.lock.wait_for(lambda: not self._submission.waiting or polled.closed, pace.LEAVE)
            polled.closed = True
            polled.lock.notify_all()
        self._let_go()
        try:
            for thread in self._threads:
                if not thread.name.endswith("watches"):
                    thread.join()
            self.disconnect()
            self._threads[-1].join(pace.LEAVE)  # one that watches may not heed it
        finally:
            if not polled.lives and polled.run.state is None:
                polled.remove()
            polled.records.close()

    def _let_go(self) -> None:
        """End what threads wait for, so that they end."""
        self._commands.kill()

    def _opened(self) -> QueueRun:
        if self._polled is None:
            raise ExecutorError(f"the executor {self.name} is not open", code="not-open")
        return self._polled

    # -- what the run asks for -----------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        polled = self._opened()
        with polled.lock:
            polled.sought = True  # who has jobs to find again asks for them before
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

    # -- the threads ---------------------------------------------------------------------------

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

    def _acting(
        self, steps: Callable[[float, list[float]], _Step | None], polled: QueueRun
    ) -> None:
        while True:
            with polled.lock:
                if polled.closed:
                    return
                dues = [time.monotonic() + 60.0]
                act = steps(time.monotonic(), dues)
                if act is None:
                    polled.lock.wait(max(0.0, min(dues) - time.monotonic()))
                    continue
            act()
            with polled.lock:
                polled.publish()
                polled.lock.notify_all()

    def _asks(self, now: float, dues: list[float]) -> _Step | None:
        """The next step of the thread that asks to take now; else ``dues`` has the time of one."""
        act = self._inquiry.cancels_due(now, dues)
        if act is not None:
            return act
        if self.lanes == 2:
            return self._inquiry.due(now, dues)
        # By turns: many jobs to hand in do not keep the queue from being asked, nor the reverse.
        turns = (self._submission.due, self._inquiry.due)
        for what in turns if self._asked else reversed(turns):
            act = what(now, dues)
            if act is not None:
                self._asked = what == self._inquiry.due
                return act
        return None

    def _submits(self, now: float, dues: list[float]) -> _Step | None:
        return self._submission.due(now, dues)

    def _watching(self, polled: QueueRun) -> None:
        while not polled.closed:
            told = partial(self._told, polled, [True])
            wait = pace.SOON_AGAIN
            error: ExecutorError | None = None
            try:
                self.watch(told)
            except ExecutorError as raised:
                error, wait = raised, pace.AWAY
            with polled.lock:
                if error is not None and not polled.closed:
                    polled.outlet.trouble(
                        "watch",
                        f"{self.name} does not tell of jobs: it is asked until it does\n  {error}",
                    )
                    polled.publish()
                polled.lock.wait_for(lambda: polled.closed, wait)

    def _told(self, polled: QueueRun, first: list[bool], rows: Iterable[QueueJob]) -> None:
        rows = list(rows)
        with polled.lock:
            if polled.closed:
                return
            polled.outlet.answered("watch")
            if first:  # there may have been news before it began to tell
                first.clear()
                polled.soon()
            self._inquiry.told(rows)
            polled.publish()
            polled.lock.notify_all()


def _beyond_base(error: Exception) -> Exception:
    """The error without the leading frames of this package: a plugin's frame comes first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith("ensemble_batch."):
            break
        trace = trace.tb_next
    return error.with_traceback(trace)
