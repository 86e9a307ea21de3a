"""Base class for executors of queues that must be polled.

A wrapper is a script that the queue runs for each job; it starts the job's command and reports its
start and end. ``BatchExecutor`` adds two threads to those of ``QueueExecutor``: one reads the files
that wrappers write, and one listens to wrappers that report over the network. The tutorial
``docs/executor-tutorial.md`` develops an executor with this class.
"""

from __future__ import annotations

from collections.abc import Callable

from ensemble_batch import pace
from ensemble_batch.batch_run import BatchRun
from ensemble_batch.executor import QueueExecutor
from ensemble_batch.listener import Listener
from ensemble_batch.queue_run import QueueRun
from ensemble_batch.records import Records
from ensemble_batch.report_run import ReportRun
from ensemble_batch.report_spool import ReportSpool
from ensemble_batch.spool import Spool
from ensemble_core import Emit, Run, job_environment

__all__ = ["BatchExecutor"]


class BatchExecutor(QueueExecutor):
    """Base class for executors of polled queues.

    A plugin must override :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch` and
    :meth:`end_jobs`. It can override :meth:`connect`, :meth:`wrong`, :meth:`shape`, :meth:`nodes`
    and :meth:`account`. These methods are called one at a time, never on the engine's thread, and
    may block; they run commands with :meth:`command`. Each may raise :class:`CannotTake`: the call
    is then retried until it succeeds, and the problem is reported once. :meth:`submit_batch` may
    also raise :class:`InvalidJob`. If the queue reports changes itself, override :meth:`watch` too;
    a wrapper's report still takes precedence.

    This class gathers jobs into batches of one :meth:`shape`, to save calls. Its wrapper script
    creates folders, starts the tasks and enforces the time limit. It writes each start and end to
    the run's folder, which the nodes must see. One query covers all jobs; queries are 3 s more
    frequent than ``poll`` (every 12 s if ``poll`` is 15). Events are emitted in order, each once. A
    later controller finds the jobs again.

    Each job runs at most once, whatever the queue does: its wrapper first claims the job by
    creating a file, and a second copy of the job finds this file and runs nothing. So a submission
    without a reply is simply repeated. A job whose wrapper has reported nothing is over when three
    consecutive replies of the queue omit the job. That takes at most ``poll`` seconds, or 6 s if
    that is more. If :meth:`account` has no record of the job either, the job is reported as
    ``lost``, and does not run even if it reaches the queue later.

    With ``claims = False``, jobs report over the network (``listen``), or into the run's folder if
    the controller does not answer; a node needs to reach only one of the two. Without claims, a
    submission without a reply is invalidated before it is repeated, and a job is over as soon as
    the queue reports its end. With ``explains = True``, the end of a job by a signal is reported
    only after the queue has explained it.
    """

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

    def _let_go(self) -> None:
        super()._let_go()
        if self._listener is not None:
            listens = any(t.name.endswith("listens") and t.is_alive() for t in self._threads)
            self._listener.close()
            # if not listens:  # the executor could not be opened: this ends at once
            if not listens:
                self._listener.listen()

    def _reading(self, polled: QueueRun) -> None:
        wait = pace.READ
        longest = pace.READ_LATER if self._listener is None else pace.READ_RARELY
        while True:
            with polled.lock:
                polled.lock.wait_for(lambda: polled.closed or polled.lives, 60.0)
                if polled.closed:
                    return
                wait = pace.READ if polled.read() else min(longest, wait * 1.5)
                polled.publish()
                polled.lock.wait_for(lambda: polled.closed, wait)
