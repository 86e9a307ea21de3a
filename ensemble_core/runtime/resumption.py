"""Reattaches to the jobs of an earlier controller, at the start of a resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ensemble_core.engine.engine import Engine
from ensemble_core.model.events import Event, JobEvent, Problem
from ensemble_core.model.jobs import JobState
from ensemble_core.runtime.executor_guard import ExecutorGuard
from ensemble_core.runtime.output_tracking import OutputTracker
from ensemble_core.runtime.queue_names import QueueNames


class Resumption:
    """Reattaches to the jobs of an earlier controller.

    First call :meth:`seek`, then :meth:`report_lost`. ``name`` is the name of the executor.
    """

    def __init__(
        self,
        engine: Engine,
        executor: ExecutorGuard,
        name: str,
        names: QueueNames,
        tracker: OutputTracker,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._guard = executor
        self._name = name
        self._names = names
        self._tracker = tracker
        self._emit = emit
        self._clock = clock
        self._jobs = engine.in_queue()
        self._stopping = {name for name, record in self._jobs if record.cancel == "stopping"}
        #: The time of the last event of each job that was in the queue, or 0 without an event.
        self._sought = {name: record.newest for name, record in self._jobs}
        self._found: Mapping[str, bool] = {}
        #: Jobs that waited in a queue that no longer exists.
        self.gone: tuple[str, ...] = ()

    def seek(self) -> tuple[str, ...]:
        """Ask the executor for the jobs. Return the jobs that have never reached its queue."""
        for _, record in self._jobs:
            self._names.learn(record.job)
        # Before asking the queue, because events of starts may arrive immediately.
        for _, record in self._jobs:
            self._tracker.resume(record.job, record.submitted, record.files, record.rows or {})
        self._found = self._reattach(self._sought)
        if self._guard.executor.queue_is_new:
            self.gone = tuple(
                name
                for name, record in self._jobs
                if record.newest and self._found.get(name) is False
                and record.state == "queued" and JobState(record.phase).waiting
                and record.cancel == "none"
            )  # fmt: skip
        return tuple(
            name
            for name, newest in self._sought.items()
            if not newest and self._found.get(name) is False
        )

    def unanswered(self) -> int:
        """Return how many jobs the executor has not mentioned. They may be in its queue."""
        return len(self._sought.keys() - self._found.keys())

    def _reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Ask the executor for jobs. A job that is missing in the answer is not submitted again."""
        if not jobs:
            return {}
        if "reattach" not in self._guard.executor.capabilities:
            message = (
                f"executor {self._name} cannot find jobs again: {len(jobs)} jobs from its queue "
                "count as lost"
            )
            self._emit((Problem(self._clock(), message),))
            return {}
        if not self._names:
            return self._guard.reattach(jobs)
        asked = {self._names.name(job): newest for job, newest in jobs.items()}
        return self._names.found(jobs, self._guard.reattach(asked))

    def report_lost(self, cancelled: Sequence[str] = (), *, resumed: bool = True) -> None:
        """Report the end of jobs that the executor no longer knows, and of the jobs in
        ``cancelled``.

        The jobs in ``cancelled`` have never reached the queue and are not submitted now. Jobs that
        waited in a queue that no longer exists are submitted again if ``resumed`` is true;
        otherwise, they are lost too.
        """
        sought, found = self._sought, self._found
        again = set(self.gone if resumed else ())
        lost = [n for n, newest in sought.items() if newest and not found.get(n) and n not in again]
        lost += [name for name, newest in sought.items() if not newest and name not in found]
        records = self._engine.state.table.records
        for name in lost:
            if name not in records:
                continue
            # A job that a stop has cancelled counts as cancelled, even if its queue no longer
            # exists.
            gone = records[name].cancel == "stopping" and name in self._stopping
            kind = "lost"
            note = f"executor {self._name} no longer knows this job; its outcome is unknown"
            queue_is_new = self._guard.executor.queue_is_new and found.get(name) is False
            if queue_is_new and "lost" not in self._guard.executor.causes:
                kind, note = "node-failure", "its queue was lost with its node"
            self._report_end(name, "cancel" if gone else kind, note)
        for name in cancelled:
            self._report_end(name, "cancel", "cancelled before it reached the queue")

    def _report_end(self, name: str, kind: str, note: str) -> None:
        context = {"type": kind, "severity": 0, "note": note}
        if self._engine.state.table.records[name].outcome is None:
            self._tracker.emit((JobEvent(self._clock(), name, "exception", context),))
        self._tracker.emit((JobEvent(self._clock(), name, "clean"),))
