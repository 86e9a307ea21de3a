"""Controller: the loop that connects the engine with the executor, the journal and the display.

Nothing slow may happen on its thread: slow calls are made on other threads.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ensemble_core.engine.engine import Engine
from ensemble_core.errors import ExecutorError
from ensemble_core.journal.job_rows import row_of
from ensemble_core.journal.reader import JournalError
from ensemble_core.journal.run_store import new_tag
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import (
    Call,
    Cancel,
    Decision,
    Fired,
    Log,
    LookUp,
    Notify,
    Resize,
    Signal,
    Submit,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    Delivered,
    Event,
    ExecutorLost,
    Identified,
    JobEvent,
    Observed,
    PlainEvents,
    Problem,
    Resumed,
    Started,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor, Run, new_run_id
from ensemble_core.plugin.hookspecs import ActionPlugin, ObserverPlugin
from ensemble_core.quick_dataclass import replace
from ensemble_core.runtime.discard import Discarder
from ensemble_core.runtime.environment_wrapper import Environments
from ensemble_core.runtime.event_check import TIMED, Admission, OrderCheck, usual
from ensemble_core.runtime.executor_guard import ExecutorGuard
from ensemble_core.runtime.function_calls import Caller, order_of
from ensemble_core.runtime.identities import (
    Identities,
    LookUpRequest,
    Unit,
    reuse_events,
    uses_job_files,
)
from ensemble_core.runtime.orders import Drain, EndedJobs, Order, Performer, lasts
from ensemble_core.runtime.output_limit import OutputLimit
from ensemble_core.runtime.output_tracking import OutputTracker
from ensemble_core.runtime.queue_names import QueueNames
from ensemble_core.runtime.required_outputs import OutputCheck
from ensemble_core.runtime.resumption import Resumption
from ensemble_core.runtime.shutdown import Shutdown
from ensemble_core.runtime.snapshot_schedule import Snapshots
from ensemble_core.runtime.state_queries import StateQueries
from ensemble_core.runtime.watcher import Outcome, Watcher

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ensemble_core.journal.reusable_jobs import EarlierJobs
    from ensemble_core.runtime.notifications import Notifier

__all__ = ["OUT_OF_TIME", "STOPPED", "Outcome", "Runtime", "Watcher"]

#: Exit code of a run that was stopped by a command or by the time limit.
STOPPED = 5
#: Reason in the outcome of a run that ``limits.wall`` has stopped.
OUT_OF_TIME = "time limit reached (wall)"

_T = TypeVar("_T")

_TICK = 0.2
#: Longest time that the loop waits, because the system rejects very long waits.
_LONGEST_WAIT = 3600.0
#: How many seconds to wait for an order that is being carried out by a lost queue.
_LOST_GRACE = 5.0
#: How many seconds an ended run waits for the delivery of its last messages.
_DELIVERY_GRACE = 10.0
#: How many seconds an ended run waits for checks of input files.
_CHECKS_GRACE = 30.0
#: By how many seconds this machine's clock may be behind the last event of the run.
_CLOCK_SLACK = 2.0


class Runtime:
    """One run of one ensemble on one executor.

    - ``folder``: for the output of jobs for which no output file is given.
    - ``maker``: the versions of Ensemble, Python and plugins; only the same versions can read the
      run's snapshots.
    - ``state``: a folder for the executor's data, next to the journal.
    - ``engine``: for a resumed run, the engine that was restored from the journal.
    - ``run_id``: the run's identity; by default a new one.
    - ``wall``: the number of seconds after which the run is stopped (default: the file's limit).
    - ``functions``: functions of a Python program, in addition to those under ``custom:``.
    - ``earlier``: the jobs of earlier runs (``--reuse``), if they have been read already.

    Raises :class:`UsageError` if the ensemble's functions cannot be loaded. :meth:`run` raises
    :class:`ExecutorError` if the executor cannot be opened. In both cases, nothing was submitted.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        executor: Executor,
        *,
        actions: Mapping[str, ActionPlugin],
        observers: Mapping[str, ObserverPlugin],
        watchers: Sequence[Watcher] = (),
        folder: Path,
        tag: str | None = None,
        run_id: str | None = None,
        name: str = "local",
        journal: JournalWriter | None = None,
        maker: str = "",
        state: Path | None = None,
        engine: Engine | None = None,
        wall: float | None = None,
        functions: Mapping[str, Callable[..., object]] = NOTHING,
        earlier: EarlierJobs | None = None,
    ) -> None:
        self.ensemble = ensemble
        self.tag = tag or new_tag(ensemble.name)
        self._run_id = run_id or new_run_id()
        self.engine = engine or Engine(ensemble, shared=executor.shared)
        self._journal = journal
        if journal is not None:
            self.engine.state.table.over = []
        self._snapshots = Snapshots(journal, self.engine, maker, self._warn) if journal else None
        self._state = state
        self._stop_first: StopRequested | None = None
        #: Number of jobs that the executor did not mention when a stop cancelled all others.
        self._unanswered = 0
        self._wall_limit = ensemble.limits.wall if wall is None else wall
        self._stop_at: float | None = None
        #: True if the run had ended and continues, because its file was changed or because of the
        #: request ``reopened_by``.
        self.reopened = False
        self.reopened_by: Mapping[str, Any] = NOTHING
        self._names = QueueNames()
        self._environments = Environments(ensemble.environments)
        self._executor = executor
        self._watchers = tuple(watchers)
        self._ticking = [watcher for watcher in watchers if watcher.wants_ticks]
        self._folder = folder
        self._name = name
        self._inbox: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self._leave = False
        self._inquiries = StateQueries(self.engine, self.tag, lambda: self._inbox.put(()))
        self._asked: StopRequested | None = None
        self._begun = False
        # The time of the run never goes back, even if the system clock was set back.
        self._wall = max(time.time(), self.engine.state.now)
        self._behind = self._wall - time.time()
        self._monotonic = time.monotonic()
        self._caller = Caller(
            ensemble,
            actions,
            lambda event: self.emit((event,)),
            self.clock,
            lambda: executor.handle,
            executor.journal_record,
            functions,
            "" if journal is None else str(journal.path.parent.absolute()),
            purpose="run",
        )
        self._guard = ExecutorGuard(executor, name, self.emit, self.clock)
        self._notifier: Notifier | None = None
        self._identities: Identities | None = None
        if journal is not None or ensemble.reuse:
            self._identities = Identities(
                self._enqueue,
                self.clock,
                lambda: self._queued - self._taken,
                put_later=self._enqueue_later,
                folders=ensemble.reuse,
                earlier=earlier,
                reused_from=self.engine.state.table.reused_from,
                files=bool(ensemble.reuse) and uses_job_files(ensemble),
            )
        self._performer = Performer(
            self._guard,
            self._caller,
            self.emit,
            self.clock,
            lambda notice: self._notifier.send(notice) if self._notifier else None,
            self._identities,
            self._as_submitted,
        )
        self._ended_jobs = EndedJobs(executor, self._performer, journal)
        self._shutdown = Shutdown(
            self.engine,
            self._performer,
            journal,
            self._names,
            detaches="detach" in executor.capabilities,
            patience=ensemble.limits.stop,
            report=self._report_silence,
            warn=self._warn,
        )
        self._admission = Admission(name, self._enqueue, self.clock)
        self._order = OrderCheck(self.engine, executor, name, self._handle, self.clock)
        self._records = self.engine.state.table.records
        #: The events that arrived together with the current one.
        self._together: Sequence[Event] = ()
        self._lock = threading.Lock()
        #: Events that are put into the inbox together with the next ones.
        self._later: list[Event] = []
        self._queued = 0
        self._taken = 0
        self._tracker = OutputTracker(
            self._enqueue, self.clock, observers, lambda: self._queued - self._taken
        )
        self._outputs = OutputCheck(self._tracker.emit)
        self._discarder = Discarder(self._enqueue, self._warn)
        self._output_limit: OutputLimit | None = None
        if (most := ensemble.limits.output) is not None:
            self._output_limit = OutputLimit(
                most, self._outputs.emit, self.clock, observers, live=executor.live_output
            )
            self._watchers = (*self._watchers, self._output_limit)

    def clock(self) -> float:
        """Return the time in seconds since the epoch.

        Changes of the system clock have no effect on it.
        """
        return self._wall + (time.monotonic() - self._monotonic)

    def _as_submitted(self, job: Job) -> Job:
        """Return a job as the executor receives it.

        Raises :class:`EnsembleError` if the job's options, as filled in, do not fit.
        """
        group = self.ensemble.groups.get(job.group)
        if job.options and (group is None or job.options is not group.options):
            self.ensemble.binder.options(job.options)
        return self._environments.given(job)

    def _enqueue(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self._later and not isinstance(events, Unit):
                events = [*self._later, *events]
                self._later = []
            self._queued += len(events)
            self._inbox.put(events)

    def _enqueue_later(self, events: Sequence[Event]) -> None:
        """Put events into the inbox before the next ones, without a wakeup of the engine's thread.

        Submitted jobs soon have events, which take these along. If the controller is killed before,
        these events are lost, and later runs cannot reuse the jobs.
        """
        with self._lock:
            self._later += events

    def emit(self, events: Sequence[Event]) -> None:
        """Pass events to the run. Safe from any thread."""
        if type(events) is not PlainEvents and not all(map(usual, events)):
            events = [
                each for event in events if (each := self._admission.admitted(event)) is not None
            ]
        if self._environments:
            events = self._environments.explained(events)
        if self._names:
            events = self._names.ours(events)
        self._outputs.emit(events)

    @property
    def on_stop(self) -> Literal["end", "cancel", "keep"]:
        """The effect of a stop on the jobs, as defined by the file or by the executor.

        A run without a journal cannot be resumed, so a stop ends it.
        """
        if self._journal is None:
            return "end"
        chosen = self.ensemble.on_stop or self._executor.on_stop
        return chosen if {"detach", "reattach"} <= self._executor.capabilities else "cancel"

    @property
    def drains(self) -> bool:
        """True if the queue ends with this process, and jobs in it can run after a resume."""
        return self._journal is not None and self._executor.drains

    def stop(
        self,
        reason: str = "interrupted",
        exit_code: int = 130,
        *,
        end: bool = False,
        drain: bool = False,
    ) -> None:
        """Request that the run stops, so that it can be resumed.

        With ``end``, request that it ends. With ``drain``, the allocation of this process may be
        ending: if the queue ends with it, the run stops when the queue has ended.

        After a second call, the run exits without waiting. Safe from any thread and from a signal
        handler.
        """
        asked = StopRequested(self.clock(), reason, exit_code, "end" if end else self.on_stop)
        ended = self.ended
        if self._asked is not None or ended is not None:
            stopping = ended.stopped if ended is not None else self._asked and not self._asked.ends
            if not (end and stopping):
                self._leave = True
        if drain and self._asked is None and ended is None and self._begun and self.drains:
            self._asked = asked
            self._performer.perform(Drain(asked))
            return
        if self._asked is None or end:
            self._asked = asked
        # Do not call _enqueue: in a signal handler, its lock may be held already.
        self._inbox.put((asked,))

    @property
    def ended(self) -> Terminate | None:
        """The decision by which this controller ended or stopped the run, or ``None``."""
        return self.engine.state.ended if self._begun else None

    def query(self, function: Callable[[Engine], _T]) -> _T:
        """Call a function with the engine, between two events. It must be quick and change nothing.

        Safe from any thread except the run's own thread.
        """
        return self._inquiries.query(function)

    def request(self, action: Mapping[str, Any], by: str) -> Future[tuple[Decision, ...]]:
        """Request an action from the live run (see :class:`Requested`).

        The future receives the decisions, or :class:`UsageError` if the request is invalid. Safe
        from any thread. Example: ``runtime.request({"name": "submit", "label": "sim"},
        "alice").result()``.
        """
        return self._inquiries.request(
            action, by, self.clock, lambda event: tuple(self._handle(event))
        )

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the ensemble to its end. Call this once."""
        try:
            return self._run(time.monotonic())
        finally:
            self._inquiries.close()

    def _run(self, began: float) -> Outcome:
        failed: str | None = None
        if self._wall_limit is not None:
            self._stop_at = began + self._wall_limit
        self._make_folder()
        try:
            actions = (
                each
                for rule in self.ensemble.rules
                for action in rule.actions
                for each in action.flat()
            )
            resizes = any(action.resizes for action in actions)
            late = self._journal is not None and not self._executor.survives_power_cut
            run = Run(self.tag, self._folder, self.clock, self._state, self._run_id, resizes, late)
            self._guard.open(run, self.emit)
        except BaseException:
            self._remove_folder()
            raise
        self._performer.start()
        if self._journal is not None:
            self._journal.perform = self._performer.perform
            self._journal.on_failure = self._report_journal
            if not self._executor.survives_power_cut:  # some know it once they are open
                self._journal.sync_late(lasts)
        try:
            self._begin()
            self._begun = True
            if self.engine.state.rules.watches_foreign and not self._executor.sees_foreign_jobs:
                self._warn(
                    f"executor {self._name} cannot see other users' jobs here: rules with "
                    "'scope: queue' see only this run's jobs"
                )
            self._loop()
            self._await_deliveries()
            self._await_checks()
        finally:
            self._ended_jobs.pass_on()
            if self._journal is not None and self._snapshots is not None:
                self._snapshots.last()
                self._wait_for_journal(self._journal)
            self._performer.close()
            self._wait_for_orders()
            failed = self._guard.close(lambda: self._leave)
            if self._output_limit is not None:
                self._output_limit.close()
            self._outputs.close()
            self._tracker.close()
            self._caller.close()
            if not self.engine.busy:  # jobs that outlive the run may still write there
                self._remove_folder()
        ended = self.engine.state.ended
        assert ended is not None
        problems = [*self._last_problems()]
        if failed is not None:
            problems.append(Problem(self.clock(), failed, "error"))
        for problem in problems:  # the run has had its last event: only watchers receive them
            for watcher in self._watchers:
                watcher.event(problem)
                watcher.decision(Log(message=problem.message, level=problem.level))
        return Outcome(
            exit_code=ended.exit_code or int(failed is not None),
            reason=ended.reason,
            natural=ended.natural,
            seconds=time.monotonic() - began,
            report=self.engine.report(),
            tag=self.tag,
            over=not ended.stopped
            and not self._shutdown.resumable_end
            and not (self.engine.busy and (self._leave or self._shutdown.gave_up)),
            stopped=ended.stopped and not self._shutdown.resumable_end and not self._leave,
            left=len(self.engine.in_queue()) + self._unanswered,
        )

    def stop_first(self, asked: StopRequested) -> None:
        """Make :meth:`run` stop the run immediately, before anything is submitted."""
        self._stop_first = replace(asked, timestamp=self.clock())

    def _begin(self) -> None:
        """Handle this controller's first event, which says that the run begins or is resumed."""
        if self._output_limit is not None:
            self._output_limit.resume(record for _, record in self.engine.in_queue())
        first = self._stop_first
        if not self.engine.state.events:
            self._handle(first or Started(self.clock(), self._guard.resources()))
            return
        earlier = Resumption(
            self.engine, self._guard, self._name, self._names, self._tracker, self.emit, self.clock
        )
        for _, record in self.engine.in_queue():
            self._outputs.resume(record.job, record.files)
            self._environments.learn(record.job)
            self._discarder.expect([record.job])
        absent = earlier.seek()
        # After `seek`, so that a cancel does not call the executor at the same time.
        if first is not None:
            self._handle(first)
            self._begun = True  # a signal from now on concerns a run that is being stopped
            if not first.ends:
                self._unanswered = earlier.unanswered()
                earlier.report_lost(cancelled=absent, resumed=False)
                return
        self._repeat_stop()
        # Use the time of the last event, because later events with their own times will follow.
        now, gauges = self.engine.state.now, self._guard.resources()
        asked = self.reopened_by
        self._handle(Resumed(now, gauges, absent, self.reopened, earlier.gone, asked, self.clock()))
        earlier.report_lost()
        if self._behind > _CLOCK_SLACK:
            self._warn(
                f"this machine's clock is {self._behind:.0f} s behind the newest event of this "
                "run; its time continues from that event"
            )

    def _repeat_stop(self) -> None:
        """Handle a stop again that an earlier controller carried out, but could not write."""
        journal = self._journal
        if journal is None or not journal.stop_mark.exists():
            return
        if self.engine.state.ended is None:
            reason = "stopped without space for the journal"
            self._handle(StopRequested(self.engine.state.now, reason, STOPPED, "cancel"))
        journal.then(lambda: journal.stop_mark.unlink(missing_ok=True))

    def _wait_for_journal(self, journal: JournalWriter) -> None:
        """Flush the journal, so that pending decisions are carried out.

        A second Ctrl-C skips the wait.
        """
        while not journal.flush(0.2):
            if self._leave or journal.failure:
                return

    def _report_journal(self, error: JournalError | None) -> None:
        """Report that the journal cannot be written, or that it can be written again.

        Called on the journal's writing thread.
        """
        if error is not None and error.code == "broken":
            # No more decisions can be carried out, so stop. A resume can continue.
            hint = "'ensemble resume' continues from the journal"
            self.emit((ExecutorLost(self.clock(), self._name, str(error), hint),))
        elif error is None:
            self._warn("the journal is writable again: the run continues")
        else:
            self._warn(f"{error}\n  nothing is submitted or cancelled until it is writable again")

    def _warn(self, message: str) -> None:
        self.emit((Problem(self.clock(), message),))

    def _wait_for_orders(self) -> None:
        """Wait until all orders have been carried out.

        Give up if the user insists, or if the queue is lost or silent, because a call to it may
        never return.
        """
        deadline = time.monotonic() + _LOST_GRACE
        while not self._leave and not self._performer.join(_TICK):
            if (self.engine.state.lost or self._shutdown.gave_up) and time.monotonic() > deadline:
                return

    def _loop(self) -> None:
        last_tick, dirty = 0.0, True
        while not self._is_over():
            now = time.monotonic()
            if self._ticking and dirty and now - last_tick >= _TICK:
                last_tick, dirty = now, False
                report = self.engine.report()
                for watcher in self._ticking:
                    watcher.tick(report)
            timeout = self._shutdown.limit(self._wait_seconds())
            if self._ticking and dirty:
                timeout = min(_TICK, timeout if timeout is not None else _TICK)
            try:
                events = self._inbox.get(timeout=timeout)
            except queue.Empty:
                events = ()
            self._inquiries.answer()
            self._shutdown.heard(events)
            self._together = events
            if isinstance(events, Unit):
                dirty = True
                self._taken += len(events)
                self._handle_unit(events)
                events = ()
            for event in events:
                dirty = True
                self._taken += 1
                self._handle(event)
                if self._leave:
                    if self.engine.state.ended is None and self._asked is not None:
                        # The request is still in the inbox: leave the jobs as they are.
                        asked = self._asked
                        self._handle(asked if asked.ends else replace(asked, then="keep"))
                    return
            dirty = self._handle_timer() or dirty
            self._ended_jobs.pass_if_due()

    def _await_deliveries(self) -> None:
        """Wait for some time until the last messages are delivered. Report those that are not.

        A resume sends undelivered messages again.
        """
        notices = self.engine.state.notices
        if not notices or self._notifier is None:
            return
        self._notifier.send_now()
        deadline = time.monotonic() + _DELIVERY_GRACE
        while notices and not self._leave and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._together = self._inbox.get(timeout=left)
                self._inquiries.answer()
                self._taken += len(self._together)
                for event in () if isinstance(self._together, Unit) else self._together:
                    self._handle(event)
        late: dict[str, list[str]] = {}
        for sent in () if self._leave else notices.values():
            for address in sent.to:
                late.setdefault(address, []).append(sent.notice)
        ended = self.engine.state.ended
        later = self._shutdown.resumable_end or (ended and ended.stopped)
        again = self._journal is not None and later
        for address, of in late.items():
            why = f"it took more than {_DELIVERY_GRACE:g} s at the end of the run"
            if again:
                message = f"a resume will send the message to {address} again: {why}"
                self._handle(Problem(self.clock(), message))
            else:
                self._handle(Delivered(self.clock(), tuple(of), address, why))

    def _await_checks(self) -> None:
        """Wait for some time until the inputs of successful jobs have been checked.

        A job without such a check in the journal cannot be reused.
        """
        if self._identities is None or self._leave:
            return
        self._identities.close(_CHECKS_GRACE)
        self._enqueue(())  # what waits for the next events
        while not self._inbox.empty():
            events = self._inbox.get()
            for event in () if isinstance(events, Unit) else events:
                if type(event) is Identified:
                    self._handle(event)

    def _last_problems(self) -> Iterator[Problem]:
        """Yield what the executor has reported since the last event of the run."""
        while not self._inbox.empty():
            for event in self._inbox.get():
                if type(event) is Problem:
                    yield event

    def _is_over(self) -> bool:
        ended = self.engine.state.ended
        if ended is None:
            return False
        self._outputs.hurry()
        stopped = self._asked is not None or self._stop_first is not None
        self._leave = self._leave or self._shutdown.is_journal_stuck(ended, stopped=stopped)
        return self._leave or self._shutdown.is_over(ended)

    def _report_silence(self, count: str, shown: str) -> None:
        hint = (
            "check the queue yourself: this run has no journal, so it cannot be resumed"
            if self._journal is None
            else f"'ensemble resume {self.tag}' asks the queue for them"
        )
        self._handle(
            Problem(
                self.clock(),
                f"executor {self._name} has reported nothing about {count} for "
                f"{self.ensemble.limits.stop:g} s (limits.stop): {shown} may still be in its "
                f"queue\n  hint: {hint}",
            )
        )

    def _wait_seconds(self) -> float | None:
        timer = self.engine.next_timer()
        waits = [] if timer is None else [timer.when - self.clock()]
        if self._stop_at is not None:
            waits.append(self._stop_at - time.monotonic())
        if self._ended_jobs.due is not None:
            waits.append(self._ended_jobs.due - time.monotonic())
        return min(max(0.0, min(waits)), _LONGEST_WAIT) if waits else None

    def _handle_timer(self) -> bool:
        """Pass a timer that is due to the engine, and stop the run at its limit.

        Return True if a timer was due.
        """
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self._stop_at = None
            if self._asked is None and self.engine.state.ended is None:
                self.stop(OUT_OF_TIME, STOPPED)
        timer = self.engine.next_timer()
        now = self.clock()
        if timer is not None and timer.when <= now:
            self._handle(TimerElapsed(now, timer.kind, timer.key))
            return True
        return False

    def _handle_unit(self, unit: Unit) -> None:
        """Handle an answer and the events of reused jobs.

        The journal stores all of them or none.
        """
        journal = self._journal
        with contextlib.nullcontext() if journal is None else journal.transaction():
            for event in unit:
                for each in reuse_events(event, self._records, self.clock()):
                    self._handle(each, checked=True)

    def _handle(self, event: Event, *, checked: bool = False) -> Sequence[Decision]:
        """Pass an event to the engine, carry out its decisions, and return them.

        Unless the event is ``checked``, first check it against the executor's contract.
        """
        ours = type(event) is JobEvent and event.ours
        if not ours and not self.engine.concerns(event):
            return ()
        if type(event) is Observed and not usual(event):  # from a plugin's observer
            row = self._admission.admitted(event)
            if row is None:
                return ()
            event = row
        if event.timestamp > self._order.latest:
            event = self._order.in_time(event)
        record = None
        if ours and type(event) is JobEvent:
            record = self._records.get(event.job)
            if self._order.behind and not checked:
                event = self._order.in_our_time(event)
            if not checked and (
                record is None
                or (
                    (event.name in TIMED or not record.newest)
                    and not self._order.keeps(event, record)
                )
            ):
                return [
                    decision
                    for each in self._order.corrected(event, record, self._together)
                    for decision in self._handle(each, checked=True)
                ]
            if (
                record is not None
                and record.job.discard
                and event.name == "clean"
                and self._discarder.holds(event, record, self.engine.state.stop)
            ):
                return []
        if type(event) is not Identified:  # watchers do not need this event
            for watcher in self._watchers:
                watcher.event(event)
        # Before the decisions, which may give the job another name in the queue.
        ended = (
            self._names.name(event.job)
            if type(event) is JobEvent and event.name == "clean" and event.ours
            else ""
        )
        decisions = self.engine.handle(event)
        orders = self._orders_of(decisions) if decisions else []
        journal = self._journal
        if journal is None or self._snapshots is None:
            for order in orders:
                self._performer.perform(order)
        else:
            over = self.engine.state.table.over
            rows = [row_of(record) for record in over] if over else ()
            if over:
                over.clear()
            # When this event is written, the journal's writer passes the orders on.
            journal.append(event, decisions, orders, rows)
            self._snapshots.count()
        if ended:
            if record is None or record.reused is None:
                self._ended_jobs.add(ended)
            if record is not None and self._identities is not None:
                self._identities.ended(record)
        return decisions

    def _orders_of(self, decisions: Sequence[Decision]) -> list[Order]:
        """Return the orders that carry out these decisions when they are written."""
        orders: list[Order] = []
        for decision in decisions:
            for watcher in self._watchers:
                watcher.decision(decision)
            if type(decision) is Fired:  # at every firing, and never an order
                continue
            if isinstance(decision, Submit) and decision.jobs:
                self._tracker.expect(decision.jobs, self._records)
                self._outputs.expect(decision.jobs)
                self._discarder.expect(decision.jobs)
                if self._identities is not None and self._journal is not None:
                    self._identities.expect(decision.jobs, self._records)
                jobs = self._names.given(decision.jobs)
                orders.append(
                    decision if jobs is decision.jobs else replace(decision, jobs=tuple(jobs))
                )
            elif isinstance(decision, LookUp):
                looked = ((job, self._records[job.id].source) for job in decision.jobs)
                orders.append(LookUpRequest(tuple(looked)))
            elif isinstance(decision, Resize):
                orders.append(decision)
            elif isinstance(decision, (Cancel, Signal)) and decision.jobs:
                if self._names:
                    decision = replace(decision, jobs=self._names.names(decision.jobs))
                orders.append(decision)
            elif isinstance(decision, Terminate) and decision.cancel:
                orders.append(Cancel(jobs=self._names.names(decision.cancel)))
            elif isinstance(decision, Call):
                orders.append(order_of(self.engine, decision))
            elif isinstance(decision, Notify):
                if self._notifier is None:
                    from ensemble_core.runtime.notifications import Notifier

                    self._notifier = Notifier(self.tag, self._enqueue, self.clock)
                orders.append(decision)
        return orders

    # -- the folder ----------------------------------------------------------------------------

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExecutorError(
                f"cannot create the folder for the jobs' output: {self._folder}",
                cause=os.strerror(error.errno) if error.errno else str(error),
                hint="choose another folder with --output",
                code="no-folder",
            ) from None

    def _remove_folder(self) -> None:
        """Remove the folder for output if it is empty."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()
