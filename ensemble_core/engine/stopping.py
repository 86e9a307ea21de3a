"""Stops a run so that it can be resumed (``ensemble stop``, Ctrl-C, a time limit).

A stop changes no metric and triggers no rule. Events that arrive after it are *deferred*: they are
stored, and a resume handles them first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_core.engine.changed_jobs import recreated_job
from ensemble_core.engine.firing_records import Stop
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Cancel, Terminate
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    Observed,
    PluginEvent,
    ResizeOutcome,
    Resources,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.quick_dataclass import replace

#: Events that are deferred until the resume.
_DEFERRED = (JobEvent, Observed, CallReturned, CallFailed, ResizeOutcome, PluginEvent)
#: Exit code of a run whose queue has ended with its allocation: 128 plus SIGTERM.
_EXIT_CODE = 143
#: Types of the exceptions after which a job is requeued.
_ABSORBED = ("cancel", "interrupted")
#: Events that are dropped, because the resume will get new ones.
_DROPPED = (Resources, TimerElapsed)


class Stopping:
    """Stops a run."""

    def __init__(self, state: State, submission: Submitter) -> None:
        self.state = state
        self._submission = submission
        #: Groups whose jobs the current event has requeued.
        self._requeued: dict[str, None] = {}

    def begin(self, event: StopRequested, in_queue: Sequence[str]) -> None:
        """Stop the run, unless it has ended. ``in_queue`` lists the jobs in the queue."""
        if event.then == "cancel-left":
            self._cancel_remaining(event, in_queue)
        elif self.state.ended is None:
            records, cancels = self.state.table.records, event.then == "cancel"
            cancel = [job for job in in_queue if cancels and records[job].outcome is None]
            self._begin(event, cancel)
            self.state.end_due = self.state.end_check_due = True

    def _cancel_remaining(self, event: StopRequested, left: Sequence[str]) -> None:
        """Cancel the jobs ``left`` in the queue, and stop the run if it has not finally ended.

        A stop that is already in effect stays in effect and keeps its deferred events.
        """
        state = self.state
        taken_back = state.stop is not None or state.ended is state.resumable_end
        if state.lost:  # jobs in the queue of an earlier controller
            state.lost = False
            state.errors -= taken_back
        if taken_back:  # the run is live, stopped, or has an end that a resume can revoke
            state.resumable_end = None
            self._begin(event, left)
        elif state.ended is not None:
            state.ended = replace(state.ended, cancel=tuple(left))
            self._submission.ask_cancel(state.ended.cancel)
            state.out.append(Cancel(jobs=state.ended.cancel))

    def _begin(self, event: StopRequested, cancel: Sequence[str]) -> None:
        """Stop the run and cancel these jobs.

        Jobs that a rule has cancelled are not requeued later.
        """
        state, records = self.state, self.state.table.records
        for job in cancel:
            if records[job].outcome is None:
                records[job].change_cancel("stop")
        decision = Terminate(
            exit_code=event.exit_code, cancel=tuple(cancel), reason=event.reason, stopped=True
        )
        state.ended = decision
        state.rules.true_conditions.ended_at = state.now
        if state.stop is None:
            state.stop = Stop(decision)
        else:
            state.stop.decision = decision
        state.out.append(decision)

    def drained(self, event: ExecutorLost) -> None:
        """Stop the run, because its queue has ended with its allocation.

        If a stop is in effect, wait for no more jobs.
        """
        stop = self.state.stop
        if stop is None:
            asked = StopRequested(event.timestamp, event.reason, _EXIT_CODE, "keep")
            self.begin(asked, ())
        else:
            stop.decision = self.state.ended = replace(stop.decision, cancel=())

    def interrupted(self, record: JobRecord, event: JobEvent) -> JobEvent:
        """Requeue a job that has ended with its allocation, as if a stop had cancelled it.

        Return the event that takes effect: a job that a rule has cancelled is cancelled.
        """
        if record.cancelling:
            return replace(event, context={**event.context, "type": "cancel"})
        if (
            record.exception is None
            and record.outcome is None
            and (self.state.ended is None or self.state.stop is not None)
        ):
            record.change_cancel("stop")
        return event

    def defers(self, event: Event) -> bool:
        """Return True if the event need not be handled now: it is deferred until the resume, or
        dropped.
        """
        stop = self.state.stop
        assert stop is not None
        if isinstance(event, _DROPPED):
            return True
        if not isinstance(event, _DEFERRED):
            return False
        if isinstance(event, (JobEvent, Observed)):
            record = self.state.table.records.get(event.job)
            if record is None or (isinstance(event, JobEvent) and not event.ours):
                return True
            if isinstance(event, JobEvent) and event.job in stop.over:
                return True  # A duplicate; this id may be used again after a resume.
            # A resume needs this record to query the queue and to continue reading files.
            if isinstance(event, Observed):
                record.count_row(event.observer, event.restarted)
            else:
                record.newest = event.told_at
                if event.name == "start":
                    record.files = event.context
                elif event.name == "clean":
                    stop.over[event.job] = None
        stop.deferred.append(event)
        return True

    def take_back(self, *, final: bool = False) -> list[Event]:
        """End the stop and return the events that it deferred.

        With ``final``, the jobs that the stop has cancelled count as cancelled.
        """
        state, stop = self.state, self.state.stop
        if stop is None:
            return []
        state.stop = None
        if final:
            for record in state.table.records.values():
                record.change_cancel("end")
        else:
            state.ended = None
        return stop.deferred

    def absorbs(self, record: JobRecord, event: JobEvent) -> bool:
        """Return True for the end of a job that the stop or the end of its allocation has ended.

        Rules ignore such an end.
        """
        name = event.name
        if record.exception is None and record.outcome is None and name == "exception":
            kind = event.context.get("type")
            if kind not in _ABSORBED or event.context.get("severity", 0) != 0:
                return False
            record.exception = kind
        elif record.exception not in _ABSORBED or record.outcome is not None:
            return False
        record.newest = event.told_at
        if name == "start" and record.started is None:
            return False
        if name == "finish":
            record.finished = event.timestamp
        elif name == "clean":
            self.requeue(record)
        return True

    def requeue(self, record: JobRecord) -> None:
        """Start the attempt again. It is not counted again."""
        state, index = self.state, record.index_record
        state.silence.end(record)
        job = record.job if record.source is None else recreated_job(record.job, record.source)
        job = replace(job, requeued=job.requeued + 1)
        state.table.requeue(record, job, state.now)
        if index is not None:
            begun = index.base
            index.result = NOTHING
            index.series = None if begun is None else {k: begun[k].copy() for k in begun}
            index.recent = None if index.base_recent is None else index.base_recent.copy()
            index.withdrawn = None
            if index.printed is not None:
                index.printed = [row for row in index.printed if row[0] != job.attempt] or None
        self._requeued[job.group] = None

    def submit_requeued(self) -> None:
        """Submit the requeued jobs, as far as limits allow."""
        for group in self._requeued:
            self._submission.hand_over(group)
        self._requeued.clear()
