"""Executor of simulations: a virtual cluster whose jobs follow a model.

It emits the same events as the local executor, in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ensemble_core import (
    Emit,
    Event,
    Job,
    JobEvent,
    Observed,
    Problem,
    ResizeOutcome,
    Resources,
    Run,
    VirtualExecutor,
    WhenBusy,
)
from ensemble_simulate.distributions import Draw
from ensemble_simulate.models import NONE, Life, Model
from ensemble_simulate.virtual_cluster import (
    Backfill,
    Demand,
    Entry,
    Nodes,
    VirtualQueue,
    demand_of,
)

#: Contexts of events.
SUCCESS = {"status": 0}
CANCELLED = {"type": "cancel", "severity": 0, "note": ""}
RELEASE = {"ranks": "all", "final": True}
#: Exception types by cause. Other causes have only a wait status.
EXCEPTIONS = {
    "timeout": "timeout",
    "memory": "out-of-memory",
    "node-failure": "node-failure",
    "preempted": "preempted",
    "cancelled": "cancel",
    "lost": "lost",
    "submit": "submit",
}


def arrival_events(now: float, name: str, priority: Mapping[str, int]) -> tuple[Event, ...]:
    """Return the events of a job that arrives in the queue."""
    return (
        JobEvent(now, name, "submit", {"queue_id": name}),
        JobEvent(now, name, "validate"),
        JobEvent(now, name, "depend"),
        JobEvent(now, name, "priority", priority),
    )


def refusal_events(now: float, name: str, why: str) -> tuple[Event, Event]:
    """Return the events of a job that can never run."""
    context = {"type": "alloc", "severity": 0, "note": why}
    return JobEvent(now, name, "exception", context), JobEvent(now, name, "clean")


#: Kinds of entries in the agenda: a job arrives, may wait for nodes, starts, prints, ends.
_Kind = Literal["arrive", "eligible", "start", "row", "killed", "end", "heard"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Size and scheduling options of a virtual cluster of equal nodes."""

    nodes: int = 1  # at the start
    cores: int = 1  # per node
    gpus: int = 0  # per node
    backfill: Backfill = "easy"
    wait: Draw | None = None  # delay of each job by other users' jobs
    most: int | None = None  # number of nodes to which rules can grow the cluster


_NO_LIFE = Life(0.0)


@dataclass(slots=True, eq=False)
class Running(Entry):
    """A job in the queue, with its planned life."""

    life: Life = _NO_LIFE
    began: float = 0.0
    waiting: bool = False
    coming: bool = False
    dying: bool = False
    over: bool = False
    #: The events of the job's end, until they are reported.
    ending: tuple[Event, ...] = ()
    #: The next row that the job prints.
    row: Mapping[str, float] | None = None


class Simulator(VirtualExecutor):
    """Jobs of one run on a virtual cluster.

    The attributes ``used`` and ``offered`` are the core-seconds of the jobs and of the cluster, up
    to the last event.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "avoid", "resize", "signal", "detach"}
    )
    causes: ClassVar[frozenset[Any]] = frozenset(
        {"exit", "signal", "timeout", "memory", "node-failure", "preempted", "cancelled",
         "submit", "lost"}
    )  # fmt: skip

    def __init__(self, machine: Machine, model: Model) -> None:
        self._machine = machine
        self._model = model
        self._queue: VirtualQueue[Running] = VirtualQueue(
            Nodes(machine.nodes, machine.cores, machine.gpus), machine.backfill
        )
        self._jobs: dict[str, Running] = {}
        #: Future events of the queue, a heap by time.
        self._agenda: list[tuple[float, int, _Kind, Running]] = []
        self._count = 0
        self._look = False
        nodes = self._queue.nodes
        #: Last reported gauges: nodes that are up, idle nodes, free cores and GPUs.
        self._standing = nodes.up, nodes.idle, nodes.free_cores, nodes.free_gpus
        self._answers: dict[str, ResizeOutcome] = {}
        self._warned: set[str] = set()
        self._since = 0.0
        self.used = self.offered = 0.0

    def open(self, run: Run, emit: Emit) -> None:
        self._clock = run.clock
        self._emit = emit
        self._since = run.clock()

    def close(self) -> None:
        self._account(self._clock())
        self._jobs.clear()
        self._agenda.clear()

    def resources(self) -> Mapping[str, float]:
        return self._gauges()

    # -- orders --------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        now = self._clock()
        events: list[Event] = []
        shape, priority = None, {"priority": jobs[0].urgency}
        for job in jobs:
            name = job.id
            if shape != (shape := self._shape(job)):
                demand = demand_of(job)
                refused = self._refusal(job, demand)
            if priority["priority"] != job.urgency:
                priority = {"priority": job.urgency}
            if job.avoid:
                nodes = ", ".join(job.avoid)
                self._warn_once(f"simulated nodes have no names, so no job avoids {nodes}")
            if refused:
                events += arrival_events(now, name, priority)
                events += refusal_events(now, name, refused)
                continue
            if not job.urgency:  # held until it is cancelled
                events += arrival_events(now, name, priority)
                self._jobs[name] = Running(job, demand, 0.0)
                continue
            life = self._model.life(job)
            seconds = job.duration or life.seconds
            running = self._jobs[name] = Running(job, demand, seconds, life=life)
            if life.delays is not NONE and life.delays.arrival > 0:
                running.coming = True
                self._schedule(now + life.delays.arrival, "arrive", running)
                continue
            events += arrival_events(now, name, priority)
            held = self._queue_delay(name)
            if held > 0:
                self._schedule(now + held, "eligible", running)
            else:
                self._may_start(running)
        self._emit(events)

    def _shape(self, job: Job) -> tuple[object, ...]:
        """Return what decides whether a job can ever run."""
        return job.nodes, job.tasks, job.cores_per_task, job.gpus_per_task

    def _refusal(self, job: Job, demand: Demand) -> str:
        """Return why a job can never run, or an empty text."""
        nodes = self._queue.nodes
        if nodes.ever(demand) or self._may_grow(demand.nodes):
            return ""
        return (
            f"the job needs {job.nodes} nodes with {-(-job.cores // max(1, job.nodes))} cores "
            f"each; the virtual cluster has {nodes.size} with {nodes.cores}"
        )

    def _queue_delay(self, name: str) -> float:
        """Return how many seconds other users' jobs delay a job."""
        wait = self._machine.wait
        return 0.0 if wait is None else wait.number({}, self._model.chance(name, "wait"))

    def _may_grow(self, nodes: int) -> bool:
        """Return whether the cluster could grow to this number of nodes."""
        return self._queue.nodes.size < nodes <= (self._machine.most or 0)

    def cancel(self, jobs: Sequence[str]) -> None:
        now = self._clock()
        self._account(now)
        for name in jobs:
            job = self._jobs.get(name)
            if job is None:
                continue
            if job.coming:
                self._emit(arrival_events(now, name, {"priority": job.job.urgency}))
            if job.dying:
                continue
            self._emit([JobEvent(now, name, "exception", CANCELLED)])
            if job.began and job.life.delays.dying > 0:
                job.dying = True
                self._schedule(now + job.life.delays.dying, "killed", job)
            elif job.began:
                self._killed(now, job)
            elif job.nodes:  # the job has nodes, but has not started
                self._release(now, job)
            else:
                if job.waiting:
                    self._drop(job)
                job.over = True
                del self._jobs[name]
                self._emit([JobEvent(now, name, "clean")])

    def _killed(self, now: float, job: Running) -> None:
        self._release(now, job, JobEvent(now, job.job.id, "finish", {"status": 15}))

    def would_succeed(self, name: str) -> bool:
        """Return whether this queued job would succeed if it were not cancelled."""
        job = self._jobs.get(name)
        return job is not None and job.life.cause is None

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        self._warn_once(f"simulated jobs do not react to signals, such as SIG{signal} to {jobs[0]}")

    def _warn_once(self, message: str) -> None:
        if message.partition(",")[0] not in self._warned:
            self._warned.add(message.partition(",")[0])
            self._emit([Problem(self._clock(), message)])

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        now, nodes = self._clock(), self._queue.nodes
        known = self._answers.get(request)
        if known is None:
            self._account(now)
            known = self._answers[request] = self._resized(now, request, delta, when_busy)
        self._emit([known])
        self._look = True
        if nodes.size > 0:
            self._emit_gauges(now)

    def _resized(self, now: float, request: str, delta: int, when_busy: WhenBusy) -> ResizeOutcome:
        nodes = self._queue.nodes
        if delta > 0:
            room = max(0, (self._machine.most or nodes.size) - nodes.size)
            nodes.add(min(delta, room))
            if not room:
                reason = f"the virtual cluster has {nodes.size} nodes at most"
                return ResizeOutcome(now, request, "denied", reason=reason)
        else:
            count = min(-delta, max(0, nodes.size - 1))
            if when_busy == "force":
                self._fail_on_last(now, count)
            if not count or not nodes.leave(count, busy=when_busy != "skip"):
                reason = "no node is idle" if count else "one node stays"
                return ResizeOutcome(now, request, "denied", reason=reason)
        return ResizeOutcome(now, request, "granted", nodes.size)

    def _fail_on_last(self, now: float, count: int) -> None:
        """Fail the jobs on nodes that are removed by force."""
        free = self._queue.nodes.free()
        going = set(sorted(free, reverse=True)[:count])
        for job in [job for job in self._jobs.values() if going.intersection(job.nodes)]:
            self._end(now, job, Life(0.0, "node-failure"))

    # -- time ----------------------------------------------------------------------------------

    def due(self) -> float | None:
        if self._look:
            return self._clock()
        agenda = self._agenda
        while agenda and agenda[0][3].over:
            heapq.heappop(agenda)  # cancelled in the meantime
        return agenda[0][0] if agenda else None

    def advance(self, now: float) -> None:
        agenda = self._agenda
        self._account(now)
        while agenda and agenda[0][0] <= now:
            _, _, kind, job = heapq.heappop(agenda)
            if job.over:
                continue
            if kind == "end":
                self._end(now, job, job.life)
            elif kind == "heard":
                self._emit(job.ending)
            elif kind == "killed":
                self._killed(now, job)
            elif kind == "row":
                self._print(now, job)
            elif kind == "start":
                self._begin(now, job)
            elif kind == "arrive":
                self._arrive(now, job)
            else:
                self._may_start(job)
        if self._look:
            self._look = False
            for running in self._queue.begin(now):
                self._start(now, running)
            self._emit_gauges(now)

    def _schedule(self, when: float, kind: _Kind, job: Running) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (when, self._count, kind, job))

    def _arrive(self, now: float, job: Running) -> None:
        """Handle the arrival of a submitted job in the queue."""
        job.coming = False
        self._emit(arrival_events(now, job.job.id, {"priority": job.job.urgency}))
        held = self._queue_delay(job.job.id)
        if held > 0:
            self._schedule(now + held, "eligible", job)
        else:
            self._may_start(job)

    def _may_start(self, job: Running) -> None:
        job.waiting = True
        self._wait_for_nodes(job)
        self._look = True

    def _wait_for_nodes(self, job: Running) -> None:
        self._queue.add(job)

    def _drop(self, job: Running) -> None:
        self._queue.drop(job)

    def _free(self, now: float, job: Running) -> None:
        """Free the nodes of a job that has ended."""
        self._queue.end(job)

    def _start(self, now: float, running: Running) -> None:
        job, life = running.job, running.life
        if life.cause == "submit":
            self._emit([JobEvent(now, job.id, "alloc", {"cores": job.cores})])
            self._end(now, running, life)
            return
        running.waiting = False
        placed = {"cores": job.cores, "nodes": running.nodes}
        if life.delays is not NONE and life.delays.launch > 0:
            self._emit((JobEvent(now, job.id, "alloc", placed),))
            self._schedule(now + life.delays.launch, "start", running)
            return
        running.began = now
        self._emit((JobEvent(now, job.id, "alloc", placed), JobEvent(now, job.id, "start")))
        self._live(now, running, life)

    def _begin(self, now: float, running: Running) -> None:
        """Handle the allocation of nodes to a job, which starts some time later."""
        running.began = now
        self._emit((JobEvent(now, running.job.id, "start"),))
        self._live(now, running, running.life)

    def _live(self, now: float, running: Running, life: Life) -> None:
        """Plan the life of a job that starts now."""
        limit = running.job.duration
        if limit and life.seconds >= limit and life.cause != "timeout":
            running.life = life = life._replace(seconds=limit, cause="timeout", status=15)
        if life.rows is not None:
            self._plan_row(running, life.rows)
        self._schedule(now + life.seconds, "end", running)

    def _plan_row(self, running: Running, rows: Iterator[tuple[float, Any]]) -> None:
        following = next(rows, None)
        if following is not None:
            when, running.row = following
            if when <= running.life.seconds:
                self._schedule(running.began + when, "row", running)

    def _print(self, now: float, running: Running) -> None:
        life, row = running.life, running.row
        if row is not None:
            clock = row.get("step")
            self._emit([Observed(now, running.job.id, life.observer, row, _number(clock))])
        if life.rows is not None:
            self._plan_row(running, life.rows)

    def _end(self, now: float, running: Running, life: Life) -> None:
        name, cause = running.job.id, life.cause
        if cause is None and running.began:  # nearly all jobs
            self._release(now, running, JobEvent(now, name, "finish", SUCCESS))
            return
        events: list[Event] = []
        if cause in EXCEPTIONS:
            context = {"type": EXCEPTIONS[cause], "severity": 0, "note": f"simulated: {cause}"}
            events.append(JobEvent(now, name, "exception", context))
        if running.began and cause != "lost":
            status = SUCCESS if life.status == 0 else {"status": life.status}
            events.append(JobEvent(now, name, "finish", status))
        self._release(now, running, *events)

    def _release(self, now: float, running: Running, *before: Event) -> None:
        """Release the nodes of an ended job, and report its end now or later."""
        name = running.job.id
        self._free(now, running)
        running.over = True
        del self._jobs[name]
        self._look = True
        events = (
            *before,
            JobEvent(now, name, "release", RELEASE),
            JobEvent(now, name, "free"),
            JobEvent(now, name, "clean"),
        )
        delays = running.life.delays
        if delays is not NONE and delays.hearing > 0 and running.began:
            heard = Running(running.job, running.demand, 0.0, ending=events)
            self._schedule(now + delays.hearing, "heard", heard)
        else:
            self._emit(events)

    # -- gauges and accounts -------------------------------------------------------------------

    def _gauges(self) -> dict[str, float]:
        nodes = self._queue.nodes
        gauges = {
            "nodes.up": float(nodes.up),
            "nodes.free": float(nodes.idle),
            "cores.up": float(nodes.up * nodes.cores),
            "cores.free": float(nodes.free_cores),
        }
        if nodes.gpus:
            gauges["gpus.up"] = float(nodes.up * nodes.gpus)
            gauges["gpus.free"] = float(nodes.free_gpus)
        return gauges

    def _emit_gauges(self, now: float) -> None:
        nodes = self._queue.nodes
        up, idle, cores, gpus = self._standing
        changed = {}
        if nodes.up != up:
            changed = self._gauges()
        else:
            if nodes.idle != idle:
                changed["nodes.free"] = float(nodes.idle)
            if nodes.free_cores != cores:
                changed["cores.free"] = float(nodes.free_cores)
            if nodes.free_gpus != gpus:
                changed["gpus.free"] = float(nodes.free_gpus)
        if changed:
            self._standing = nodes.up, nodes.idle, nodes.free_cores, nodes.free_gpus
            self._emit((Resources(now, changed),))

    def _account(self, now: float) -> None:
        """Add the cluster's and the jobs' core-seconds since the last call."""
        seconds = now - self._since
        if seconds > 0:
            nodes = self._queue.nodes
            cores = nodes.up * nodes.cores
            self.offered += seconds * cores
            self.used += seconds * (cores - nodes.free_cores)
            self._since = now


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
