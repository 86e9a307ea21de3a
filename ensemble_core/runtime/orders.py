"""Carries out orders: the calls that follow from the engine's decisions.

If the run has a journal, an order waits until the event that caused it is written, and synced if
the effect of the order can survive a power cut. Orders to the executor run one after another on one
thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Cancel, Notify, Resize, Signal, Submit
from ensemble_core.model.events import Event, JobEvent, Problem, ResizeOutcome, Signalled
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor
from ensemble_core.quick_dataclass import dataclass
from ensemble_core.runtime.executor_guard import ExecutorGuard
from ensemble_core.runtime.function_calls import Caller, MakeCall
from ensemble_core.runtime.generator_calls import MakeSuggestion
from ensemble_core.runtime.identities import Identities, LookUpRequest


@dataclass(frozen=True, slots=True)
class Forget:
    """Order: the executor may forget these jobs, because the journal contains their end."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Order: let the queue end in order. If that fails, the event ``instead`` takes effect."""

    instead: Event


Order = (
    Drain
    | Submit
    | Cancel
    | Signal
    | Resize
    | Forget
    | MakeCall
    | MakeSuggestion
    | Notify
    | LookUpRequest
)

#: The orders of which nothing survives a power cut, if no job of the executor does.
_PASSING = (Submit, Cancel, Signal, LookUpRequest)


def lasts(order: Order) -> bool:
    """Return True if the effect of an order can survive a power cut although no job does."""
    return not isinstance(order, _PASSING)


#: Retries of submits and cancels after transient failures: for how many seconds, and the shortest
#: and the longest wait of the exponential backoff.
_RETRY_FOR, _FIRST_WAIT, _LONGEST_WAIT = 300.0, 0.2, 15.0


class Performer:
    """Carries out the orders of a run."""

    def __init__(
        self,
        guard: ExecutorGuard,
        caller: Caller,
        emit: Callable[[Sequence[Event]], None],
        clock: Callable[[], float],
        notify: Callable[[Notify], None],
        identities: Identities | None = None,
        as_submitted: Callable[[Job], Job] = lambda job: job,
    ) -> None:
        self._as_submitted = as_submitted
        self._notify = notify
        self._identities = identities
        self._guard = guard
        self._executor = guard.executor
        self._caller = caller
        self._emit = emit
        self._clock = clock
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._news = threading.Condition()
        #: Jobs that were cancelled while they were being submitted.
        self._cancelled: set[str] = set()
        self._submitting: frozenset[str] = frozenset()
        self._reported_faults: set[str] = set()
        #: True while the queue cannot be reached and calls are retried.
        self.retrying = False

    def start(self) -> None:
        """Start to carry out orders."""
        self._thread.start()

    def perform(self, order: Order) -> None:
        """Queue an order. Returns immediately; safe from any thread."""
        if isinstance(order, (MakeCall, MakeSuggestion)):
            self._caller.make(order)
            return
        if isinstance(order, Notify):
            self._notify(order)
            return
        if isinstance(order, LookUpRequest):
            if self._identities is not None:
                self._identities.look_up(order)
            return
        self._orders.put(order)
        if isinstance(order, Cancel):
            with self._news:
                self._cancelled.update(self._submitting.intersection(order.jobs))
                self._news.notify()

    def close(self) -> None:
        """Accept no more orders. :meth:`join` waits until the queued ones have been carried out."""
        self._orders.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for up to ``timeout`` seconds. Return True if all orders have been carried out."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the executor's thread -----------------------------------------------------------------

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            if isinstance(order, Submit):
                self._submit(order.jobs)
            elif isinstance(order, Cancel):
                self._cancel(order.jobs)
            elif isinstance(order, Signal):
                self._signal(order)
            elif isinstance(order, Resize):
                self._resize(order)
            elif isinstance(order, Drain):
                try:
                    with self._guard.calling("drain"):
                        self._executor.drain()
                except EnsembleError as error:
                    self._report_fault(error)
                    self._emit((order.instead,))
            elif isinstance(order, Forget):
                try:
                    with self._guard.calling("forget"):
                        self._executor.forget(order.jobs)
                except EnsembleError as error:
                    self._report_fault(error)

    def _submit(self, jobs: Sequence[Job]) -> None:
        with self._news:
            self._submitting = frozenset(job.id for job in jobs)
            self._cancelled.clear()
        left = self._fitting(jobs)
        if self._identities is not None:
            self._identities.identify(jobs)

        def submit() -> None:
            nonlocal left
            with self._news:
                gone = [job for job in left if job.id in self._cancelled]
            if gone:
                left = tuple(job for job in left if job not in gone)
                self._end(gone, "cancel", "cancelled before it reached the queue")
            if left:
                with self._guard.calling("submit"):
                    self._executor.submit(left)

        try:
            self._persist(submit, lambda: f"cannot submit {_jobs(len(left))}")
        except EnsembleError as error:  # nothing was submitted
            self._report_fault(error)
            self._end(left, "submit", str(error))
        finally:
            self._submitting = frozenset()

    def _fitting(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """Return the jobs that can be submitted, as the executor receives them.

        Report the end of the others.
        """
        fitting = []
        for job in jobs:
            try:
                fitting.append(self._as_submitted(job))
            except EnsembleError as error:
                self._end([job], "submit", str(error))
        return tuple(fitting)

    def _end(self, jobs: Sequence[Job], kind: str, note: str) -> None:
        """Report the end of jobs that have never reached the queue."""
        now = self._clock()
        context = {"type": kind, "severity": 0, "note": note}
        events: list[Event] = []
        for job in jobs:
            events.append(JobEvent(now, job.id, "exception", context))
            events.append(JobEvent(now, job.id, "clean"))
        self._emit(events)

    def _cancel(self, jobs: Sequence[str]) -> None:
        def cancel() -> None:
            with self._guard.calling("cancel"):
                self._executor.cancel(jobs)

        what = f"cannot cancel {_jobs(len(jobs))}"
        try:
            self._persist(cancel, lambda: what)
        except EnsembleError as error:
            self._emit((Problem(self._clock(), f"{what}: {error}", "error", tuple(jobs)),))

    def _signal(self, order: Signal) -> None:
        def signal() -> None:
            with self._guard.calling("signal"):
                self._executor.signal(order.jobs, order.signal)

        error = ""
        try:
            self._persist(signal, lambda: f"cannot send a signal to {_jobs(len(order.jobs))}")
        except EnsembleError as raised:
            self._report_fault(raised)
            error = str(raised)
        self._emit((Signalled(self._clock(), order.request, error),))

    def _persist(self, act: Callable[[], None], what: Callable[[], str]) -> None:
        """Call ``act``, and retry it with backoff after transient failures.

        ``what`` describes the call in messages.
        """
        wait, waited = 0.0, 0.0
        while True:
            try:
                act()
                return
            except EnsembleError as error:
                if not error.transient or waited >= _RETRY_FOR:
                    raise
                if not wait:
                    message = f"{what()}: retrying for {_RETRY_FOR:.0f} s\n  {error}"
                    self._emit((Problem(self._clock(), message),))
            wait = min(max(_FIRST_WAIT, 2 * wait), _LONGEST_WAIT)
            waited += wait
            self.retrying = True
            with self._news:
                # A cancel of one of these jobs ends the wait.
                known = len(self._cancelled)
                self._news.wait_for(lambda known=known: len(self._cancelled) > known, wait)  # type: ignore[misc]  # mypy cannot infer a bound default
            self.retrying = False

    def _resize(self, resize: Resize) -> None:
        request = resize.request
        try:
            with self._guard.calling("resize"):
                self._executor.resize(request, resize.delta, when_busy=resize.when_busy)
        except EnsembleError as error:
            outcome = ResizeOutcome(
                self._clock(),
                request,
                "undelivered" if error.transient else "denied",
                reason=error.what,
            )
            self._report_fault(error)
            self._emit((outcome,))

    def _report_fault(self, error: EnsembleError) -> None:
        """Report each defect of the executor once."""
        if error.code == "executor-fault" and error.what not in self._reported_faults:
            self._reported_faults.add(error.what)
            self._emit((Problem(self._clock(), str(error), "error"),))


def _jobs(count: int) -> str:
    return f"{count} job{'s' if count != 1 else ''}"


#: Ended jobs are passed to the executor after this number, or this time in seconds.
_FORGET_AT_ONCE, _FORGET_AFTER = 100, 1.0


class EndedJobs:
    """Ended jobs, collected for :meth:`Executor.forget`.

    The executor receives them soon, because they may occupy its queue: in Kubernetes, a finished
    job counts towards quotas until it is deleted. With a journal, they are passed on when their
    ends are on disk.
    """

    def __init__(
        self, executor: Executor, performer: Performer, journal: JournalWriter | None
    ) -> None:
        self._performer = performer
        self._journal = journal
        #: True if the executor needs to know which jobs it can forget.
        self._wanted = type(executor).forget is not Executor.forget
        self._jobs: list[str] = []
        #: When to pass the jobs on (monotonic seconds); ``None`` without jobs.
        self.due: float | None = None

    def add(self, job: str) -> None:
        """Add a job whose end was appended to the journal."""
        if not self._wanted:
            return
        self._jobs.append(job)
        if self.due is None:
            self.due = time.monotonic() + _FORGET_AFTER
        if len(self._jobs) >= _FORGET_AT_ONCE:
            self.pass_on()

    def pass_if_due(self) -> None:
        """Pass the jobs on if they have waited long enough."""
        if self.due is not None and time.monotonic() >= self.due:
            self.pass_on()

    def pass_on(self) -> None:
        """Order the executor to forget the jobs."""
        jobs, self._jobs, self.due = tuple(self._jobs), [], None
        if not jobs:
            return
        if self._journal is None:
            self._performer.perform(Forget(jobs))
        else:
            self._journal.then(lambda: self._performer.perform(Forget(jobs)))
