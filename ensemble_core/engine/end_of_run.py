"""End of a run: when it is over, with which exit code and for which reason, and how it is stopped.

A stop (``ensemble stop``, Ctrl-C, a time limit, the end of the queue's allocation) is an end that a
resume revokes. It changes no metric and triggers no rule. Events that arrive after it are
*deferred*: they are stored, and a resume handles them first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ensemble_core.engine.changed_jobs import recreated_job
from ensemble_core.engine.firing_records import Stop
from ensemble_core.engine.job_record import BY_OTHERS, JobRecord
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Cancel, Log, Terminate
from ensemble_core.model.ensemble import amount
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


class EndOfRun:
    """Ends the run by a decision, or if nothing more can happen."""

    def __init__(self, state: State, submission: Submitter) -> None:
        self._state = state
        self._submission = submission

    def end(self, decision: Terminate) -> None:
        """End the run with this decision."""
        state = self._state
        held = self._submission.forget_held(state.held())
        reused = self._submission.reused(decision.cancel)
        self._submission.ask_cancel(reused)
        if held or state.attempts or reused:
            known = {*held, *state.attempts, *reused}
            left = tuple(job for job in decision.cancel if job not in known)
            decision = replace(decision, cancel=left)
        lost = [*state.attempts.values(), *(record.index for record in held.values())]
        state.attempts.clear()
        for index in lost:
            if index.record.job.id not in state.table.records:
                state.table.close(index.record, done=False)
        self._submission.ask_cancel(decision.cancel)
        self._end(decision)

    def lose(self, reason: str) -> None:
        """End the run because its queue is lost. Held jobs stay held for a resume."""
        self._state.resumable_end = Terminate(exit_code=1, reason=reason)
        self._end(self._state.resumable_end)

    def _end(self, decision: Terminate) -> None:
        state = self._state
        state.ended = decision
        state.rules.true_conditions.ended_at = state.now
        state.end_due = state.end_check_due = True
        state.rules.index.touched.clear()
        for index in (*state.dropped, *(record.index for record in state.withdrawn)):
            if index.record.job.id not in state.table.records:
                state.table.close(index.record, done=False)
        state.dropped.clear()
        state.withdrawn.clear()
        state.out.append(decision)

    def end_if_over(self) -> None:
        """End the run if nothing more can happen."""
        state = self._state
        state.end_check_due = False
        held = state.only_held
        if (state.table.records and not held) or state.awaits_answers() or state.attempts:
            return
        if (state.resizes or state.retries) and state.rules.waits_for_resize():
            return
        if state.rules.waits_for_time(state.now, shared=state.shared):
            return
        if state.rules.true_conditions.pending:
            self._report_wait()
            return
        if held:
            self._end_by_limit()
            return
        faults = [each.name for each in state.generators.values() if each.fault is not None]
        if faults:
            self._end_by_fault(faults)
            return
        failed = state.errors or state.failures
        self.end(Terminate(exit_code=1 if failed else 0, reason=self._end_reason(), natural=True))

    def _report_wait(self) -> None:
        """Say once for which rule the run waits, although no job is left."""
        state = self._state
        found = state.rules.true_conditions.first()
        if found is None or found.reported:
            return
        found.reported = True
        rule, since = found.state.rule, state.now if found.one.since is None else found.one.since
        left = max(0.0, since + rule.lasts - state.now)
        message = (
            f"no job is left; the run waits {left:.0f} s for rule {rule.id!r}: its condition is "
            f"true, and has to be true for {rule.spec.get('for', rule.lasts)}"
        )
        state.out.append(Log(rule=rule.id, message=message, level="info"))

    def _end_by_limit(self) -> None:
        """End the run because a limit holds all remaining jobs.

        A resume with a higher limit submits these jobs.
        """
        state = self._state
        state.resumable_end = Terminate(exit_code=4, reason=self._held_reason(), natural=True)
        self._end(state.resumable_end)

    def _end_by_fault(self, names: list[str]) -> None:
        """End the run because generators failed. A resume builds them again."""
        state = self._state
        which = f"generator{'s' * (len(names) > 1)} {', '.join(names)}"
        reason = f"{which} failed; {self._end_reason()}"
        state.resumable_end = Terminate(exit_code=1, reason=reason, natural=True)
        self._end(state.resumable_end)

    def _held_reason(self) -> str:
        """Describe how many jobs each limit holds, and how much more these jobs need."""
        state = self._state
        budget = state.table.budget
        assert budget is not None
        held = state.table.held_jobs()
        groups = Counter(job.group for job in held)
        if len(groups) == 1:
            named = f"of {held[0].group}"
        else:
            named = "(" + ", ".join(f"{name} {number}" for name, number in groups.items()) + ")"
        parts = []
        needed = budget.needed(held, state.now)
        for name, raised in budget.raised(held, state.now).items():
            used, _ = budget.use(name, state.now)
            least, known = needed[name]
            more = "at least " if not known else ""
            parts.append(
                f"limits.{name} is {amount(budget.limits[name])}, {amount(used)} used; they "
                f"need {more}{amount(max(0.0, least - used))} more: set limits.{name} to "
                f"{amount(raised)}"
            )
        jobs = "1 job" if len(held) == 1 else f"{len(held)} jobs"
        reason = f"only held jobs are left: {jobs} {named}; " + "; ".join(parts)
        return f"{reason}; {self._end_reason()}" if state.errors or state.failures else reason

    def _end_reason(self) -> str:
        failures, errors = self._state.unhandled_failures, self._state.errors
        reasons = []
        if failures:
            jobs, them = ("1 job", "it") if failures == 1 else (f"{failures} jobs", "them")
            reasons.append(f"{jobs} failed and no rule handled {them}")
        if self._state.unhandled_cancels:
            reasons.append(_cancels_text(self._state.unhandled_cancels))
        if errors:
            reasons.append("1 error" if errors == 1 else f"{errors} errors")
        return "; ".join(reasons) or "nothing more can happen"


def _cancels_text(cancels: Mapping[str, int]) -> str:
    """Describe how many jobs were cancelled by others, and by whom if that is known.

    ``cancels`` are the numbers of jobs by canceller.
    """
    total = sum(cancels.values())
    known = {who: number for who, number in cancels.items() if who != BY_OTHERS}
    if known == {**cancels} and len(known) == 1:
        named = f" ({next(iter(known))})"
    elif known:
        named = f" ({', '.join(f'{who} {known[who]}' for who in sorted(known))})"
    else:
        named = ""
    jobs, them = ("1 job was", "it") if total == 1 else (f"{total} jobs were", "them")
    return f"{jobs} cancelled by others{named} and no rule handled {them}"


# -- stops -------------------------------------------------------------------------------------

#: Events that are deferred until the resume.
_DEFERRED = (JobEvent, Observed, CallReturned, CallFailed, ResizeOutcome, PluginEvent)
#: Exit code of a run whose queue has ended with its allocation: 128 plus SIGTERM.
_QUEUE_ENDED_CODE = 143
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
            asked = StopRequested(event.timestamp, event.reason, _QUEUE_ENDED_CODE, "keep")
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
                record.newest = event.reported_at
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
        record.newest = event.reported_at
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
        state.silent_jobs.end(record)
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
