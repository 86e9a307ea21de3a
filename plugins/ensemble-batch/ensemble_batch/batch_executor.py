"""BatchExecutor: a base for executors of queues that must be polled.

One more thread than ``QueueExecutor`` has reads what jobs' wrappers have written, and one listens
to them if they report over the network. See :class:`BatchExecutor`; ``docs/executor-tutorial.md``
writes one.
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
    """A base for executors of queues that are asked: a plugin says how, and has the rest from here.

    To be overridden: :meth:`submit_batch`, :meth:`ask`, :meth:`find_batch`, :meth:`end_jobs`; where
    it helps :meth:`connect`, :meth:`wrong`, :meth:`shape`, :meth:`nodes` and :meth:`account`. These
    are called one at a time, not from the engine's thread, and may block; :meth:`command` runs a
    command for them. Each may raise :class:`CannotTake`, and is tried again for as long as it
    takes, told once; :meth:`submit_batch` also :class:`InvalidJob`. A queue that tells by itself
    has :meth:`watch`, too; the wrapper's word still counts before the queue's.

    From here: jobs gathered into batches of one :meth:`shape`, as few calls as may be; a script
    with a wrapper that makes folders, starts the tasks, keeps the time limit and writes start and
    end into the run's folder, which nodes must see; one question for all jobs, a little more often
    than each ``poll`` seconds; events in order, each once; jobs found again by a later controller.
    A job runs at most once whatever the queue does, since its wrapper claims it: so a submit whose
    answer is lost is simply made again. A job that has left no word is over when three answers in
    a row lack it, which is within ``poll`` seconds, or 6 s where that is less; one of which
    :meth:`account` knows nothing either is told as ``lost``, and does not run if it comes late.

    With ``claims = False`` jobs report over the network (``listen``), and into the run's folder if
    nobody answers; nodes need see neither. Then a submit whose answer is lost is void before it is
    made again, the queue's word ends a job at once, and where it ``explains`` an end by a signal
    waits for it.
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
            if not listens:  # the executor could not be opened: this ends at once
                self._listener.listen()

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
