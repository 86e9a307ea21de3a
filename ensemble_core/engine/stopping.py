"""Stops: the run pauses, and a resume goes on where it stood.

A stop is no end: nothing is dropped, counted or told to a rule because of it. Events that come
between the stop and the controller's leaving are kept (*deferred*) and worked in by the resume,
before anything else. Jobs that the stop cancelled are requeued then: the same attempt, with a
record and statistics of its own begun anew. Had by ``engine``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ensemble_core.engine.records import JobRecord, Stop
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Cancel, Terminate
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    JobEvent,
    Observed,
    PluginEvent,
    ResizeOutcome,
    Resources,
    StopRequested,
    TimerElapsed,
)

__all__ = ["Stopping"]


#: Events that a resume works in; others tell how the queue stood meanwhile.
_DEFERRED = (JobEvent, Observed, CallReturned, CallFailed, ResizeOutcome, PluginEvent)
_PASSED_OVER = (Resources, TimerElapsed)


class Stopping:
    """Stops of the run in ``state``."""

    def __init__(self, state: State, submission: Submitter) -> None:
        self.state = state
        self._submission = submission
        #: Of the event at hand: groups with jobs that are to be handed on again.
        self._requeued: dict[str, None] = {}

    def begin(self, event: StopRequested, in_queue: Sequence[str]) -> None:
        """Stop the run, unless it has ended, with these jobs in the queue."""
        if event.then == "cancel-left":
            self._cancel_left(event, in_queue)
        elif self.state.ended is None:
            records, cancels = self.state.table.records, event.then == "cancel"
            cancel = [job for job in in_queue if cancels and records[job].outcome is None]
            self._begin(event, cancel)
            self.state.end_due = self.state.look_for_end = True

    def _cancel_left(self, event: StopRequested, left: Sequence[str]) -> None:
        """Cancel the jobs that are ``left`` in the queue, and stop the run where it has not ended
        for good. A stop that is in force stays, with the events that it deferred."""
        state = self.state
        taken_back = state.stop is not None or state.ended is state.ended_for_now
        if state.lost:  # an earlier controller's queue
            state.lost = False
            state.errors -= taken_back
        if taken_back:  # the run is under way, or was stopped, or has ended for now
            state.ended_for_now = None
            self._begin(event, left)
        elif state.ended is not None:
            state.ended = replace(state.ended, cancel=tuple(left))
            self._submission.cancelling(state.ended.cancel)
            state.out.append(Cancel(jobs=state.ended.cancel))

    def _begin(self, event: StopRequested, cancel: Sequence[str]) -> None:
        """Stop the run and cancel these jobs; those that a rule cancelled stay so."""
        state, records = self.state, self.state.table.records
        for job in cancel:
            if records[job].outcome is None:
                records[job].stopping = not records[job].cancelling
        decision = Terminate(
            exit_code=event.exit_code, cancel=tuple(cancel), reason=event.reason, stopped=True
        )
        state.ended = decision
        if state.stop is None:
            state.stop = Stop(decision)
        else:
            state.stop.decision = decision
        state.out.append(decision)

    def defers(self, event: Event) -> bool:
        """Keep an event until the resume; false for one that is to be worked in now."""
        stop = self.state.stop
        assert stop is not None
        if isinstance(event, _PASSED_OVER):
            return True
        if not isinstance(event, _DEFERRED):
            return False
        if isinstance(event, (JobEvent, Observed)):
            record = self.state.table.records.get(event.job)
            if record is None or (isinstance(event, JobEvent) and not event.ours):
                return True
            if isinstance(event, JobEvent) and event.job in stop.over:
                return True  # told twice: the resume may hand the job on under this id
            # What a controller goes by that asks the queue, and reads files on.
            if isinstance(event, Observed):
                record.count_row(event.observer, event.anew)
            else:
                record.newest = event.told_at
                if event.name == "start":
                    record.files = event.context
                elif event.name == "clean":
                    stop.over[event.job] = None
        stop.deferred.append(event)
        return True

    def take_back(self, *, final: bool = False) -> list[Event]:
        """The stop is over; the events that it deferred. With ``final`` the run ends instead:
        what the stop cancelled counts as cancelled."""
        state, stop = self.state, self.state.stop
        if stop is None:
            return []
        state.stop = None
        if final:
            for record in state.table.records.values():
                record.stopping = False
        else:
            state.ended = None
        return stop.deferred

    def swallows(self, record: JobRecord, event: JobEvent) -> bool:
        """True for an event by which a job ends that the stop cancelled: no rule hears of it."""
        name = event.name
        if record.exception is None and record.outcome is None and name == "exception":
            if event.context.get("type") != "cancel" or event.context.get("severity", 0) != 0:
                return False
            record.exception = "cancel"
        elif record.exception != "cancel":
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
        """Begin the attempt anew. It is not counted: it has been all the time."""
        state, index = self.state, record.kept
        state.silence.end(record)
        job = replace(record.job, requeued=record.job.requeued + 1)
        state.table.requeue(record, job, state.now)
        if index is not None:
            begun = index.base
            index.result = NOTHING
            index.series = None if begun is None else {k: begun[k].copy() for k in begun}
            if index.printed is not None:
                index.printed = [row for row in index.printed if row[0] != job.attempt] or None
        self._requeued[job.group] = None

    def hand_on(self) -> None:
        """Submit what was requeued, as far as limits let it go."""
        for group in self._requeued:
            self._submission.hand_over(group)
        self._requeued.clear()
