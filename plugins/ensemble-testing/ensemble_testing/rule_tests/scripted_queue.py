"""Executor that replays the job events scripted in a rule test.

Jobs start, print and end only when the test says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar

from ensemble_core.engine.at_once import AT_ONCE
from ensemble_core.engine.state import State
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call, WhenBusy
from ensemble_core.model.ensemble import amount
from ensemble_core.model.events import Event, JobEvent, LookedUp, Observed
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Emit, Run, VirtualExecutor
from ensemble_testing.rule_tests.decision_words import group_of

#: The effect of a step: a function that reports events to the queue.
Tell = Callable[["ScriptedQueue"], None]

_ARRIVAL = ("validate", "depend", "priority")
_CLEARING = ("release", "free", "clean")


def called(call: Call) -> Set[str]:
    """Return the names that a rule test can use for the called function, action or generator."""
    if call.kind == "generator":
        return {f"generator {call.name}"}
    return {*call.options["functions"].values()} if call.kind == "parameters" else {call.name}


class ImpossibleStep(Exception):
    """A step of a test is impossible: for example, its job is over, or no such call is open."""


class ScriptedQueue(VirtualExecutor):
    """The queue of a rule test."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "resize", "signal", "detach"}
    )

    def __init__(
        self, began: float, state: State, resources: Mapping[str, float] = NOTHING
    ) -> None:
        self.began = began
        #: State of the engine, in which steps find the held jobs.
        self._state = state
        #: Calls of functions that no step has answered yet.
        self.calls: list[Call] = []
        #: Resize requests that no step has answered yet.
        self.resizes: list[str] = []
        self._resources = resources
        #: Effects of the test's steps, a heap by time.
        self._agenda: list[tuple[float, int, Tell]] = []
        self._count = 0
        #: Jobs in the queue, each with whether it runs.
        self._jobs: dict[str, bool] = {}
        self._over: set[str] = set()
        #: Names of the jobs or groups whose results a step of the test takes from an earlier run,
        #: and the submitted jobs that wait for this step.
        self.to_reuse: set[str] = set()
        self._looking: dict[str, None] = {}

    # -- the executor --------------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        self._clock = run.clock
        self._emit = emit

    def close(self) -> None:
        pass

    def resources(self) -> Mapping[str, float]:
        return self._resources

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._jobs[job.id] = False
            self.emit(JobEvent(self.now, job.id, "submit", {"queue_id": job.id}))
            self.tell(job.id, *_ARRIVAL)

    def cancel(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            if job in self._jobs:
                self.end(job, 15, "cancel")

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        """Do nothing: the test says how jobs react."""

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self.resizes.append(request)

    def due(self) -> float | None:
        return self._agenda[0][0] if self._agenda else None

    def advance(self, now: float) -> None:
        # Call one function at a time: its decisions come before the next function.
        if self._agenda and self._agenda[0][0] <= now:
            heapq.heappop(self._agenda)[2](self)

    def look_up(self, jobs: Sequence[tuple[Job, JobGroup | None]], now: float) -> Sequence[Event]:
        """Answer a lookup in earlier runs.

        Jobs that no step mentions are not found; the other jobs wait for their step.
        """
        names = [job.id for job, _ in jobs]
        waiting = [job for job in names if not self.to_reuse.isdisjoint((job, group_of(job)))]
        self._looking.update(dict.fromkeys(waiting))
        missing = tuple(job for job in names if job not in self._looking)
        return [LookedUp(now, misses=missing)] if missing else []

    # -- effects of steps ----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._clock()

    @property
    def left(self) -> int:
        """Return the number of steps that are still to come."""
        return len(self._agenda)

    def at(self, when: float, tell: Tell) -> None:
        """Add a function to the agenda at time ``when`` (seconds after the start), after others of
        that time.
        """
        self._count += 1
        heapq.heappush(self._agenda, (self.began + when, self._count, tell))

    def later(self, seconds: float, tell: Tell) -> None:
        """Add a function to the agenda, ``seconds`` from now."""
        self.at(self.now - self.began + seconds, tell)

    def emit(self, event: Event) -> None:
        """Emit an event now."""
        if type(event) is JobEvent and event.name == "clean" and event.job in self._jobs:
            del self._jobs[event.job]
            self._over.add(event.job)
        self._emit([event])

    def tell(self, job: str, *names: str, **context: object) -> None:
        """Emit events of one job now, each with this context."""
        self._emit([JobEvent(self.now, job, name, context) for name in names])

    def submitted(self, group: str) -> int:
        """Return how many jobs of a group were ever submitted, including held ones."""
        return self._state.metrics.counts[group]["submitted"]

    def held(self, name: str) -> str:
        """Return a text in brackets that says how many jobs of a name are held, and by what.

        The name is a job or a group. The text is empty if no job is held.
        """
        state, group = self._state, name if name in self._state.table.groups else group_of(name)
        standing = state.table.groups.get(group)
        held = [] if standing is None else [job for job in standing.held if name in (job, group)]
        paced = [job for job, _, _ in state.rate_limit.held if name in (job.id, job.group)]
        rate = amount(state.ensemble.limits.submits_per_second or 0)
        reasons = [(len(paced), f"limits.submits_per_second ({rate})")]
        if standing is not None and held:
            by, budget = state.table.obstacle(standing, self.now), state.table.budget
            if budget is not None and by is not None and not by.startswith(AT_ONCE):
                text = budget.described(by, self.now)
            else:
                text = state.table.slots.described(standing.group, by or AT_ONCE)
            reasons.insert(0, (len(held), text))
        said = [f"{number} held by {by}" for number, by in reasons if number]
        return f" ({', '.join(said)})" if said else ""

    def named(self, names: Sequence[str]) -> list[str]:
        """Return the queued jobs of these names. Each name is a job or a whole group.

        Raises :class:`ImpossibleStep`.
        """
        found: list[str] = []
        for name in names:
            jobs = [job for job in self._jobs if job == name or group_of(job) == name]
            if not jobs:
                raise ImpossibleStep(self._why_not(name))
            found += jobs
        return found

    def looked_up(self, names: Sequence[str]) -> list[str]:
        """Return the jobs of these names that are being looked up. Each name is a job or a whole
        group.

        Raises :class:`ImpossibleStep`.
        """
        found = [job for job in self._looking if not {job, group_of(job)}.isdisjoint(names)]
        if not found:
            raise ImpossibleStep(
                f"{', '.join(names)} is not being looked up: it is not being submitted"
            )
        return found

    def stand_in(
        self, job: str, rows: Sequence[tuple[str, Mapping[str, Any]]], duration: float
    ) -> None:
        """Replace this job with an earlier one."""
        del self._looking[job]
        name = f"earlier/{job}"
        self._emit([LookedUp(self.now, {job: name})])
        self.tell(job, "submit", reused=name)
        self.tell(job, "start")
        self._emit([Observed(self.now, job, observer, row) for observer, row in rows])
        self.tell(job, "finish", status=0, duration=duration)
        self.tell(job, "clean")

    def here(self, jobs: Sequence[str]) -> list[str]:
        """Return the jobs among these that are in the queue."""
        return [job for job in jobs if job in self._jobs]

    def _why_not(self, name: str) -> str:
        if name in self._over:
            return f"{name} is already over"
        here = ", ".join(list(self._jobs)[:8]) or "none"
        held = self.held(name)
        what = f"{name} was not submitted" if "." in name else f"no job of {name} is in the queue"
        if held and "." in name:
            what = f"{name} is not in the queue"
        return f"{what}{held}; jobs in the queue: {here}"

    def start(self, job: str) -> None:
        """Start a job, unless it runs."""
        if not self._jobs[job]:
            self._jobs[job] = True
            self.tell(job, "alloc", "start")

    def end(
        self,
        job: str,
        status: int | None,
        exception: str | None = None,
        note: str = "",
        **more: str,
    ) -> None:
        """End a job with this wait status if it ran.

        The argument ``exception`` is the cause if the job did not end on its own; ``more`` are
        further fields of its context.
        """
        runs = self._jobs.pop(job)
        self._over.add(job)
        if exception is not None:
            self.tell(job, "exception", type=exception, severity=0, note=note, **more)
        if runs and status is not None:
            self.tell(job, "finish", status=status)
        self.tell(job, *_CLEARING)
