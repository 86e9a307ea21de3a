"""Base classes for executors of queues: with wrapper scripts, and for queues that need none.

The tutorial ``docs/executor-tutorial.md`` develops an executor with each class.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from ensemble_batch import timing
from ensemble_batch.active_jobs import QueueRun
from ensemble_batch.batch_submission import Submission
from ensemble_batch.claims_and_file_reports import ClaimedRun, ClaimFolder
from ensemble_batch.command import QueueCommands
from ensemble_batch.job_events import JobLife
from ensemble_batch.network_reports import Listener, NetworkRun, ReportFolder
from ensemble_batch.queries_and_lost_jobs import Queries
from ensemble_batch.queue_hooks import QueueHooks, QueueJob
from ensemble_batch.reattach import find_again
from ensemble_batch.submission_records import Records
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

#: What a thread does next, without holding the lock.
_Step = Callable[[], None]


class QueueExecutor(QueueHooks):
    """Base class for executors of queues that run jobs themselves and know how each ended.

    A plugin must override :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch` and
    :meth:`end_jobs`, and :meth:`watch` if the queue reports changes itself. It can override
    :meth:`connect`, :meth:`disconnect`, :meth:`wrong`, :meth:`shape`, :meth:`nodes` and
    :meth:`account`.

    - They are called one at a time (with ``lanes = 2``, submissions in parallel to queries), never
      on the engine's thread. They may block. Exceptions: ``watch`` has its own thread; ``wrong``,
      ``shape`` and ``fits`` are called at any time, and must neither block nor raise.
    - The methods that use the queue may raise :class:`CannotTake`. The call is then retried until
      it succeeds, and the problem is reported once. After ``connect``, the run does not start.
      :meth:`submit_batch` may also raise :class:`InvalidJob`.

    A batch has at most ``most_jobs`` jobs of one :meth:`shape`. If the queue rejects a batch as too
    large, the next batch is half as large. If the queue is full, the executor retries when one of
    the run's jobs ends, or after 15 s.

    The plugin runs each job as the interface ``Executor`` demands:

    - It starts ``job.command`` with the variables of ``batch.environment(job)``, in the working
      folder and with the output files of ``batch.places``.
    - It ends the job after ``job.duration`` seconds (``exception="timeout"``).
    - Its method :meth:`wrong` rejects jobs that the queue cannot run.

    If starting a job requires a shell on the nodes, use :class:`BatchExecutor`.

    The executor guarantees:

    - Each event of a job is emitted once, and in order.
    - If the controller is killed, the next one finds the jobs.
    - Cancels are repeated until they take effect.
    - A job that replies of :meth:`ask` omit is ``lost`` only if :meth:`account` says that the
      queue does not know it, or after ``lost_after`` seconds of replies that list other jobs. It is
      cancelled first. While the queue lists none of the run's jobs, the executor waits.

    A job runs at most once if the queue obeys two rules:

    - It never has two batches with the same ``batch.name``: a second ``submit_batch`` returns the
      ids of the first.
    - It never restarts a job.
    """

    _polled: QueueRun | None = None
    _asked = False
    _threads: Sequence[threading.Thread] = ()

    # -- opening and closing -------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        self._commands = QueueCommands(self.rate)
        here = start_folder()
        self.connect()
        try:
            self._begin(run, emit, here)
        except BaseException:
            self._wake_threads()
            self.disconnect()
            raise

    def _begin(self, run: Run, emit: Emit, here: str) -> None:
        folder = os.path.abspath(run.folder)
        if run.state is not None:
            place = os.path.join(os.path.realpath(run.state), self.name)
        else:
            place = os.path.join(folder, f".{self.name}-{run.id}")
        try:
            if run.state is not None:
                os.makedirs(place, mode=0o700, exist_ok=True)
            records = Records(place if run.state is not None else None)
            polled = self._make_run(run, emit, place, records, (folder, here))
        except OSError as error:
            raise ExecutorError(
                f"cannot create the folder for jobs' reports: {place}",
                cause=error.strerror or str(error),
                hint="choose a folder with --state that this machine and the nodes can write to",
                code="no-folder",
            ) from None
        try:
            polled.gauges = dict(polled.call(self.nodes))
        except ExecutorError as error:
            if not error.transient:
                records.close()
                raise
        self._polled = polled
        self._queries = Queries(polled)
        self._submission = Submission(polled, self._queries)
        self._threads = [
            threading.Thread(
                target=self._run_guarded,
                args=(polled, what),
                name=f"{self.name} {name}",
                daemon=True,
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
        """Return the loops of the executor's threads, by thread name."""
        loops: dict[str, Callable[[QueueRun], None]] = {
            "asks": partial(self._step_loop, self._due_request)
        }
        if self.lanes == 2:
            loops["submits"] = partial(self._step_loop, self._submits)
        if type(self).watch is not QueueHooks.watch:
            loops["watches"] = self._watch_loop
        return loops

    def close(self) -> None:
        """Close the connection. Jobs in the queue continue.

        For at most 10 s, submissions in progress are finished, and unsent cancels are sent.
        """
        polled, self._polled = self._polled, None
        if polled is None:
            return

        def idle() -> bool:
            return not (self._submission.waiting or 0.0 in polled.cancels.values())

        with polled.lock:
            polled.lock.wait_for(lambda: idle() or polled.closed, timing.LEAVE)
            self._queries.summarise()
            polled.closed = True
            polled.lock.notify_all()
        self._wake_threads()
        try:
            for thread in self._threads:
                if not thread.name.endswith("watches"):
                    thread.join()
            self.disconnect()
            self._threads[-1].join(timing.LEAVE)  # the watching thread may not react
        finally:
            if not polled.lives and polled.run.state is None:
                polled.remove()
            polled.records.close()

    def _wake_threads(self) -> None:
        """Wake waiting threads, so that they end."""
        self._commands.kill()

    def _require_open(self) -> QueueRun:
        assert self._polled is not None
        return self._polled

    # -- what the run asks for -----------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        polled = self._require_open()
        with polled.lock:
            polled.sought = True  # a caller with jobs to find again asks for them first
            polled.ids |= check_new(jobs, polled.ids)
            for job in jobs:
                self._add_job(polled, job)
            polled.publish()
            polled.lock.notify_all()

    def _add_job(self, polled: QueueRun, job: Job) -> None:
        life = polled.lives[job.id] = JobLife(job.id, {}, polled.events)
        life.holds = job.urgency == 0
        wrong = wrong_command(job) or self.wrong(job)
        if job.warn and not self.warns:
            wrong = wrong or f"{self.name} sends no signal before the time limit: remove 'warn'"
        if job.avoid and "avoid" not in self.capabilities:
            wrong = wrong or f"{self.name} cannot keep jobs away from a node: remove 'avoid'"
        if wrong is not None:
            life.refuse("jobspec", wrong, polled.now())
            return
        try:
            place = polled.output.place(job)
        except (OSError, ValueError) as error:
            what = getattr(error, "filename", None) or job.stdout or job.stderr
            why = getattr(error, "strerror", None) or str(error)
            note = f"cannot use the output file {what}: {why}"
            life.refuse("output", note, polled.now())
            return
        life.files = place.files
        self._submission.take(job, place)

    def cancel(self, jobs: Sequence[str]) -> None:
        polled = self._require_open()
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

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        if "signal" not in self.capabilities:
            super().signal(jobs, signal)
        polled = self._require_open()
        with polled.lock:
            known = [polled.lives[job] for job in jobs if job in polled.lives]
        running = [life for life in known if "start" in life.told and not life.over]
        polled.send_signal(running, signal)

    def resources(self) -> Mapping[str, float]:
        return {} if self._polled is None else dict(self._polled.gauges)

    @property
    def sees_foreign_jobs(self) -> bool:
        """Return False: there would be too many jobs of other users to query."""
        return False

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return find_again(self._require_open(), jobs)

    def forget(self, jobs: Sequence[str]) -> None:
        polled = self._require_open()
        with polled.lock:
            polled.outlet.write(lambda: polled.records.forget(jobs))

    # -- the threads ---------------------------------------------------------------------------

    def _run_guarded(self, polled: QueueRun, what: Callable[[QueueRun], None]) -> None:
        try:
            what(polled)
        except Exception as error:  # probably a plugin's error, which would go unnoticed
            reason = f"its thread failed with {error!r} ({raised_at(_strip_frames(error))})"
            hint = "report this bug of the plugin; jobs continue: 'ensemble resume'"
            lost = ExecutorLost(polled.now(), self.name, reason, hint)
            with polled.lock:
                polled.outlet.add((lost,))
                polled.outlet.emit()
                polled.closed = True
                polled.lock.notify_all()

    def _step_loop(
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

    def _due_request(self, now: float, dues: list[float]) -> _Step | None:
        """Return the next cancel, query or (in the only lane) submission that is due.

        Otherwise, add its time to ``dues``.
        """
        act = self._queries.cancels_due(now, dues)
        if act is not None:
            return act
        if self.lanes == 2:
            return self._queries.due(now, dues)
        # Alternate, so that neither submissions nor queries starve the other.
        turns = (self._submission.due, self._queries.due)
        for what in turns if self._asked else reversed(turns):
            act = what(now, dues)
            if act is not None:
                self._asked = what == self._queries.due
                return act
        return None

    def _submits(self, now: float, dues: list[float]) -> _Step | None:
        return self._submission.due(now, dues)

    def _watch_loop(self, polled: QueueRun) -> None:
        while not polled.closed:
            report = partial(self._handle_reports, polled, [True])
            wait = timing.SOON_AGAIN
            error: ExecutorError | None = None
            try:
                self.watch(report)
            except ExecutorError as raised:
                error, wait = raised, timing.AWAY
            with polled.lock:
                if error is not None and not polled.closed:
                    polled.outlet.trouble(
                        "watch",
                        f"{self.name} reports no changes; polling it until it does\n  {error}",
                    )
                    polled.publish()
                polled.lock.wait_for(lambda: polled.closed, wait)

    def _handle_reports(
        self, polled: QueueRun, first: list[bool], rows: Iterable[QueueJob]
    ) -> None:
        rows = list(rows)
        with polled.lock:
            if polled.closed:
                return
            polled.outlet.answered("watch")
            if first:  # changes before the first report may have been missed
                first.clear()
                polled.soon()
            self._queries.handle_reports(rows)
            polled.publish()
            polled.lock.notify_all()


class BatchExecutor(QueueExecutor):
    """Base class for executors of queues such as PBS or Grid Engine.

    The queue runs a wrapper script for each job. The script creates folders, starts the tasks,
    enforces the time limit, and reports when the job starts and ends.

    A plugin must override :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch` and
    :meth:`end_jobs`. It can override :meth:`connect`, :meth:`wrong`, :meth:`shape`, :meth:`nodes`
    and :meth:`account`, and :meth:`watch` if the queue reports changes itself.

    - They are called one at a time (with ``lanes = 2``, submissions in parallel to queries), never
      on the engine's thread. They may block. Exceptions: ``watch`` has its own thread; ``wrong``,
      ``shape`` and ``fits`` are called at any time, and must neither block nor raise.
    - They run commands of the queue with :meth:`command`.
    - The methods that use the queue may raise :class:`CannotTake`. The call is then retried until
      it succeeds, and the problem is reported once. After ``connect``, the run does not start.
      :meth:`submit_batch` may also raise :class:`InvalidJob`.

    The executor guarantees:

    - Each event of a job is emitted once, and in order.
    - If the controller is killed, the next one finds the jobs.
    - With ``claims`` (the default), a job runs at most once, whatever the queue does. Its wrapper
      creates a file in the run's folder, and runs nothing if the file already exists.
    - Without ``claims``, wrappers report over the network, or through files if the controller does
      not answer.
    - A job that replies of :meth:`ask` omit is ``lost`` only if :meth:`account` says that the
      queue does not know it, or after ``lost_after`` seconds of replies that list other jobs. It is
      cancelled first. While the queue lists none of the run's jobs, the executor waits.
      With ``claims``, a lost job never runs. A late success of a lost job counts as the end of its
      next attempt, unless that has begun.
    """

    warns: ClassVar[bool] = True
    _listener: Listener | None = None

    def _make_run(
        self, run: Run, emit: Emit, place: str, records: Records, places: tuple[str, str]
    ) -> QueueRun:
        self._listener = None
        if not self.claims:
            reported = NetworkRun(self, run, emit, ReportFolder(place), records, places)
            self._listener = reported.listener
            return reported
        environment = {
            name: value
            for name, value in job_environment().items()
            if not (self.own_variables and name.startswith(self.own_variables))
        }
        return ClaimedRun(self, run, emit, ClaimFolder(place, environment), records, places)

    def _loops(self) -> dict[str, Callable[[QueueRun], None]]:
        loops = {"reads": self._reading, **super()._loops()}
        if (listener := self._listener) is not None:
            loops = {"listens": lambda _: listener.listen(), **loops}
        return loops

    def _wake_threads(self) -> None:
        super()._wake_threads()
        if self._listener is not None:
            listens = any(t.name.endswith("listens") and t.is_alive() for t in self._threads)
            self._listener.close()
            if not listens:  # the executor could not be opened: this ends at once
                self._listener.listen()

    def _reading(self, polled: QueueRun) -> None:
        wait = timing.READ
        longest = timing.READ_LATER if self._listener is None else timing.READ_RARELY
        while True:
            with polled.lock:
                polled.lock.wait_for(lambda: polled.closed or polled.lives or polled.lost, 60.0)
                if polled.closed:
                    return
                wait = timing.READ if polled.read() else min(longest, wait * 1.5)
                polled.publish()
                polled.lock.wait_for(lambda: polled.closed, wait)


def _strip_frames(error: Exception) -> Exception:
    """Remove this package's leading frames from an error, so that a plugin's frame comes first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith("ensemble_batch."):
            break
        trace = trace.tb_next
    return error.with_traceback(trace)
