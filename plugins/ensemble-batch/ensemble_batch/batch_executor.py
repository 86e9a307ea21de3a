"""Base class for executors that start each job with a wrapper script, for queues such as PBS.

The tutorial ``docs/executor-tutorial.md`` develops an executor with this class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ensemble_batch import timing
from ensemble_batch.active_jobs import QueueRun
from ensemble_batch.claims_and_file_reports import BatchRun, Spool
from ensemble_batch.network_reports import Listener, ReportRun, ReportSpool
from ensemble_batch.queue_executor import QueueExecutor
from ensemble_batch.submission_records import Records
from ensemble_core import Emit, Run, job_environment


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
            reported = ReportRun(self, run, emit, ReportSpool(place), records, places)
            self._listener = reported.listener
            return reported
        environment = {
            name: value
            for name, value in job_environment().items()
            if not (self.own_variables and name.startswith(self.own_variables))
        }
        return BatchRun(self, run, emit, Spool(place, environment), records, places)

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
