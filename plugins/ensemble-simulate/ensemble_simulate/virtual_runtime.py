"""Runtime of simulations: an engine and an executor on a virtual clock.

The clock jumps from one event to the next.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ensemble_core.engine.engine import Engine
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.job_rows import row_of
from ensemble_core.model.decisions import (
    Call,
    Cancel,
    Decision,
    LookUp,
    Notify,
    Resize,
    Signal,
    Submit,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Delivered,
    Event,
    Identified,
    LookedUp,
    Signalled,
    Started,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run, VirtualExecutor
from ensemble_core.plugin.hookspecs import ActionPlugin
from ensemble_core.plugin.untrusted_code import Purpose
from ensemble_core.runtime.controller import OUT_OF_TIME, STOPPED
from ensemble_core.runtime.function_calls import Caller, order_of
from ensemble_core.runtime.identities import Identities, reuse_events
from ensemble_core.runtime.watcher import Outcome, Watcher

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ensemble_core.journal.writer import JournalWriter

#: Exit code of a run that did not end in time, or whose clock stood still.
OVERRUN = 6
#: Minimum number of events between ticks of watchers.
_TICK_EVERY = 2000
#: Maximum number of checks of the queue without progress of time. More checks mean an endless loop
#: of rules.
_MOST_AT_ONCE = 500_000


#: Function that looks up jobs (each with its group) at a time, and returns the resulting events.
LookingUp = Callable[[Sequence[tuple[Job, JobGroup | None]], float], Sequence[Event]]


def open_look_up(
    state: Path, runs: Sequence[str], ensemble: Ensemble, warn: Callable[[str], None]
) -> tuple[tuple[str, ...], Mapping[str, Any], LookingUp]:
    """Return the folders of earlier runs, the executor of the first one (``name`` and ``options``),
    and a function that looks for jobs' results in them.

    Raises :class:`EnsembleError` if a run has no results to reuse.
    """
    from ensemble_core.session.reuse_explanations import executor_of, open_earlier

    folders, earlier = open_earlier(state, runs, ensemble, warn)
    now = 0.0
    identities = Identities(lambda events: None, lambda: now, lambda: 0, earlier=earlier)

    def look_up(jobs: Sequence[tuple[Job, JobGroup | None]], time: float) -> Sequence[Event]:
        nonlocal now
        now = time
        return identities.answer(jobs)

    return folders, executor_of(folders), look_up


class VirtualRuntime:
    """One run of one ensemble on a virtual clock, with the interface of ``Runtime``.

    - ``began``, ``until``: times of the first and the last event, in seconds since the epoch
    - ``takes``: returns the seconds that a call of a function or an action takes. ``None``: the
      executor emits the outcome, so nothing is called
    - ``answers``: returns the recorded result of a call, or its error. ``None``: a function is
      called; an action is skipped and listed in ``stubbed``. An action whose record declares
      ``simulates`` is always called
    - ``purpose``: says whether code that the file names may be loaded
    - ``look_up``: looks for jobs' results in earlier runs, to reuse them

    Raises the errors of ``Runtime``. :meth:`run` also raises :class:`UsageError` if it has to call
    a function whose code may not be loaded.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        executor: VirtualExecutor,
        *,
        actions: Mapping[str, ActionPlugin],
        watchers: Sequence[Watcher] = (),
        folder: Path = Path(),
        tag: str = "simulated",
        journal: JournalWriter | None = None,
        maker: str = "",
        engine: Engine | None = None,
        began: float = 1e9,
        until: float = math.inf,
        takes: Callable[[Call], float | None] = lambda call: 0.0,
        answers: Callable[[Call], Sequence[Mapping[str, Any]] | EnsembleError | None] = (
            lambda call: None
        ),
        purpose: Purpose = "check",
        look_up: LookingUp | None = None,
    ) -> None:
        self.ensemble = ensemble
        self.tag = tag
        self.engine = engine or Engine(ensemble, shared=executor.shared)
        self.stubbed: set[str] = set()
        self._executor = executor
        self._actions = actions
        self._watchers: tuple[Watcher, ...] = ()
        #: Receivers of events.
        self._hearing: list[Watcher] = []
        for watcher in watchers:
            self.watch(watcher)
        self._began = self._now = began
        self._until = until
        limit = ensemble.limits.wall
        self._stop_at = math.inf if limit is None else began + limit
        self._takes = takes
        self._answers = answers
        self._look_up = look_up
        self._journal = journal
        if journal is not None:
            self.engine.state.table.over = []
        self._maker = maker
        self._folder = folder
        self._inbox: deque[Event] = deque()
        #: Outcomes of later calls, numbered to keep their order.
        self._returns: list[tuple[float, int, Event]] = []
        self._calls = 0
        self._asked: StopRequested | None = None
        self._leave = False
        #: Number of checks of the queue, or timers, since time last advanced.
        self._at_once = 0
        self._caller = Caller(
            ensemble,
            actions,
            self._inbox.append,
            self.clock,
            lambda: None,
            _no_record,
            purpose=purpose,
        )

    def clock(self) -> float:
        """Return the virtual time in seconds since the epoch."""
        return self._now

    def watch(self, watcher: Watcher) -> None:
        """Add a watcher of events."""
        self._watchers = (*self._watchers, watcher)
        if type(watcher).event is not Watcher.event:
            self._hearing.append(watcher)

    #: A stop ends the run for good: a simulated run cannot be resumed.
    on_stop: Final = "end"

    @property
    def ended(self) -> Terminate | None:
        """Return how the run ended or was stopped, or ``None``."""
        return self.engine.state.ended

    def stop(
        self,
        reason: str = "interrupted",
        exit_code: int = 128 + signal.SIGINT,
        *,
        end: bool = True,
    ) -> None:
        """Ask the run to end. The second call ends it immediately. Safe in a signal handler."""
        self._leave = self._leave or self._asked is not None
        self._asked = self._asked or StopRequested(self._now, reason, exit_code)

    def request(self, action: Mapping[str, Any], by: str) -> Future[tuple[Decision, ...]]:
        """Raise an error, because a simulated run accepts no requests."""
        from concurrent.futures import Future

        found: Future[tuple[Decision, ...]] = Future()
        what = f"run {self.tag} is simulated and accepts no requests"
        found.set_exception(UsageError(what, code="run-simulated"))
        return found

    def run(self) -> Outcome:
        """Run the ensemble to its end. Call it once."""
        executor, engine, inbox = self._executor, self.engine, self._inbox
        executor.open(Run(self.tag, self._folder, self.clock), inbox.extend)
        asked, told, reason = None, 0, ""
        handle = engine.handle
        noted = self._journal is not None or bool(self._hearing) or self._look_up is not None
        try:
            self._handle(Started(self._now, dict(executor.resources())))
            while True:
                while inbox and not self._leave:
                    batch = tuple(inbox)
                    inbox.clear()
                    if noted:
                        for event in batch:
                            self._handle(event)
                        continue
                    # Nearly all of a run's time is spent in this loop, so it calls only the engine.
                    for event in batch:
                        decisions = handle(event)
                        if decisions:
                            for decision in decisions:
                                self._carry_out(decision)
                if engine.state.events >= told + _TICK_EVERY:
                    told = engine.state.events
                    self._update_watchers()
                if self._asked is not None and self._asked is not asked:
                    asked = self._asked
                    inbox.append(replace(asked, timestamp=self._now))
                    continue
                if self._leave or self._is_over():
                    break
                due = self._next()
                if due > self._until or due == math.inf:
                    reason = (
                        "it did not end in time" if due < math.inf else "nothing more would happen"
                    )
                    break
                self._at_once = self._at_once + 1 if due <= self._now else 0
                if self._at_once > _MOST_AT_ONCE:
                    reason = f"the virtual time stood still at {self._now - self._began:g} s"
                    break
                self._advance(due)
        finally:
            self._update_watchers()
            executor.close()
            self._caller.close()
            self._close_journal()
        ended = engine.state.ended or Terminate(exit_code=OVERRUN, reason=reason)
        return Outcome(
            exit_code=ended.exit_code,
            reason=ended.reason,
            natural=ended.natural,
            seconds=self._now - self._began,
            report=engine.report(),
            tag=self.tag,
            over=engine.state.ended is not None,
            stopped=ended.stopped,
            left=len(engine.in_queue()),
        )

    # -- time ----------------------------------------------------------------------------------

    def _next(self) -> float:
        """Return the time of the next event; infinite without one."""
        timer, due = self.engine.next_timer(), self._executor.due()
        found = math.inf if due is None else due
        if timer is not None and timer.when < found:
            found = timer.when
        if self._returns and self._returns[0][0] < found:
            found = self._returns[0][0]
        if self._stop_at < found and self.engine.state.ended is None:
            found = self._stop_at
        return found

    def _advance(self, due: float) -> None:
        """Handle everything due at this time: first the queue, then calls, timers, and the time
        limit.
        """
        self._now = max(self._now, due)
        self._executor.advance(self._now)
        while self._returns and self._returns[0][0] <= self._now:
            self._inbox.append(heapq.heappop(self._returns)[2])
        if not self._inbox:
            timer = self.engine.next_timer()
            if timer is not None and timer.when <= self._now:
                self._at_once = 0
                self._inbox.append(TimerElapsed(self._now, timer.kind, timer.key))
        if self._stop_at <= self._now and self.engine.state.ended is None:
            self._stop_at = math.inf
            then = self.ensemble.on_stop or self._executor.on_stop
            self._inbox.append(StopRequested(self._now, OUT_OF_TIME, STOPPED, then))

    def _is_over(self) -> bool:
        ended = self.engine.state.ended
        if ended is None:
            return False
        if self.engine.state.lost or not self.engine.busy:
            return True
        if ended.stopped:
            return not self.engine.waits_for_cancelled
        return not ended.cancel and "detach" in self._executor.capabilities

    # -- events and decisions ------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if self._look_up is None:
            self._work_in(event)
            return
        for each in reuse_events(event, self.engine.state.table.records, self._now):
            self._work_in(each)

    def _work_in(self, event: Event) -> None:
        for watcher in self._hearing if type(event) is not Identified else ():
            watcher.event(event)
        decisions = self.engine.handle(event)
        if self._journal is not None:
            over = self.engine.state.table.over or []
            self._journal.append(event, decisions, [], [row_of(record) for record in over])
            over.clear()
        if decisions:
            for decision in decisions:
                self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        for watcher in self._watchers:
            watcher.decision(decision)
        if isinstance(decision, Submit):
            if decision.jobs:
                self._executor.submit(decision.jobs)
        elif isinstance(decision, Cancel):
            if decision.jobs:
                self._executor.cancel(decision.jobs)
        elif isinstance(decision, Signal):
            self._executor.signal(decision.jobs, decision.signal)
            self._inbox.append(Signalled(self._now, decision.request))
        elif isinstance(decision, LookUp):
            records = self.engine.state.table.records
            jobs = [(job, records[job.id].source) for job in decision.jobs]
            if self._look_up is not None:
                self._inbox += self._look_up(jobs, self._now)
            else:
                self._inbox.append(LookedUp(self._now, misses=tuple(job.id for job, _ in jobs)))
        elif isinstance(decision, Resize):
            self._executor.resize(decision.request, decision.delta, when_busy=decision.when_busy)
        elif isinstance(decision, Terminate):
            if decision.cancel:
                self._executor.cancel(decision.cancel)
        elif isinstance(decision, Call):
            self._call(decision)
        elif isinstance(decision, Notify):  # treated as delivered immediately
            self._inbox += [Delivered(self._now, (decision.notice,), to) for to in decision.to]

    def _call(self, call: Call) -> None:
        takes = self._takes(call)
        if takes is None:
            return
        due = self._now + takes
        outcome: Event
        stub = call.kind == "action" and not self._actions[call.name].simulates
        answer = self._answers(call) if stub or call.kind != "action" else None
        if stub and answer is None:
            self.stubbed.add(call.name)
            answer = ()
        if isinstance(answer, EnsembleError):
            outcome = CallFailed(due, call.call, str(answer))
        elif answer is not None:
            outcome = CallReturned(due, call.call, tuple(answer))
        else:
            self._caller.require(call)
            outcome = self._caller.outcome(order_of(self.engine, call))
        self._calls += 1
        if outcome.timestamp != due:
            outcome = replace(outcome, timestamp=due)
        heapq.heappush(self._returns, (due, self._calls, outcome))

    def _update_watchers(self) -> None:
        ticking = [watcher for watcher in self._watchers if watcher.wants_ticks]
        if ticking:
            report = self.engine.report()
            for watcher in ticking:
                watcher.tick(report)

    def _close_journal(self) -> None:
        if self._journal is None:
            return
        from ensemble_core.journal.snapshot_encoding import dump
        from ensemble_core.metrics.statistic_state import NoState

        if self.engine.state.events == self._journal.seq:
            with contextlib.suppress(NoState):  # readers replay the events instead
                self._journal.snapshot(self._maker, dump(self.engine))
        while not self._journal.flush(0.2) and not self._journal.failure:
            pass


def _no_record(queue_id: str, event: str) -> Mapping[str, Any]:
    return {"id": queue_id}
