"""Fleet: decides which job runs on which node of which pilot, and when pilots come and go.

The fleet does no input or output and reads no clock: times are arguments, in seconds since the
epoch. A pilot is a job of the outer queue. A job of the run is *placed* on one of its nodes once
that node has room for it, and stays bound to it.

**Why no job runs twice.** These laws together are the proof:

1. *One place.* A job waits, or it is placed on one node, or it is over. Only nodes of ``ready``
   pilots get jobs (:meth:`Fleet.place`).
2. *Written first.* A job is sent to a node only after a synced line of the controller's ledger says
   so (``turn``). A later controller reads this line, so it finds each job in the same place.
3. *Two ways out.* A placed job leaves its node when the node reports its end
   (:meth:`Fleet.release`), or when its pilot is ``fenced`` and it never started
   (:meth:`Fleet.give_back`, which raises ``ValueError`` in any other state).
4. *Fence.* ``fenced`` means: the controller created the pilot's fence, a file, and *then* read the
   nodes' ledgers. A node writes and syncs that it is about to start a job, *then* looks for the
   fence, and starts nothing if it is there. So if the ledger does not show the job, the node will
   find the fence. What the outer queue says about a pilot is not part of this proof.
5. *No way back.* A state never returns to an earlier one (:data:`TRANSITIONS`), and the number of a
   pilot is never used again. A node whose pilot has ended gets no answer but to leave.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ensemble_core import Job

__all__ = ["TRANSITIONS", "Fleet", "Kind", "Node", "Pilot", "State"]

State = Literal["requested", "starting", "ready", "draining", "ended", "fenced", "over"]

#: The states of a pilot, and which of them may follow.
#:
#: - ``requested``: it waits in the outer queue, or its request is on the way.
#: - ``starting``: the outer queue has started it; its nodes are not all connected.
#: - ``ready``: all its nodes have connected. Only now it gets jobs.
#: - ``draining``: it is given back, and gets no more jobs.
#: - ``ended``: the outer queue says that it has ended. That may be wrong.
#: - ``fenced``: its fence is in place, and its ledgers were read after that. Nothing more starts.
#: - ``over``: no job is bound to its nodes any more.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    "requested": frozenset({"starting", "ready", "draining", "ended"}),
    "starting": frozenset({"ready", "draining", "ended"}),
    "ready": frozenset({"draining", "ended"}),
    "draining": frozenset({"ended"}),
    "ended": frozenset({"fenced"}),
    "fenced": frozenset({"over"}),
    "over": frozenset(),
}
_LIVE = ("requested", "starting", "ready")
#: How many jobs of one size are checked for one that fits into the time that a pilot has left.
_DEPTH = 100
#: After this many pilots in a row that ended before they were ready, wait before the next request:
#: so many seconds at first, then twice as long each time, up to the maximum.
FAILURES, _PAUSE, _LONGEST_PAUSE = 3, 15.0, 900.0
#: The part of ``margin`` that a pilot keeps at its end. The rest is for its start: a job that takes
#: ``duration`` minus ``margin`` still fits when the pilot is ready.
AT_END = 0.5
#: How many jobs may overtake a job that does not fit yet: at least, and for each core it needs.
_BYPASS_LEAST, _BYPASS_PER_CORE = 8, 2

_Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Kind:
    """A kind of pilot. Durations are in seconds; 0 as ``duration`` means no time limit.

    ``cores`` and ``gpus`` are those of each node.
    """

    nodes: int = 1
    cores: int = 1
    gpus: int = 0
    duration: float = 0.0
    most: int = 1
    least: int = 0
    idle: float = 300.0
    margin: float = 120.0
    backlog: int = 2

    def never(self, job: Job) -> tuple[str, str, str] | None:
        """Return why no pilot can run a job: the field, the reason, and what to do, or ``None``."""
        if job.nodes > 1:
            return (
                "nodes",
                f"the job needs {job.nodes} nodes, but a job inside a pilot runs on one node",
                "request tasks instead of nodes, or run it with the executor of the queue",
            )
        for what, need, have in (("cores", job.cores, self.cores), ("gpus", job.gpus, self.gpus)):
            if need > have:
                return (
                    f"{what}_per_task",
                    f"the job needs {need} {what} on one node, but a node of a pilot has {have}",
                    f"request less, or larger nodes with -o {what}={need}",
                )
        longest = self.duration - self.margin
        if self.duration and job.duration > longest:
            why = (
                f"the job's time limit is {job.duration:g} s, but a pilot has {longest:g} s for "
                f"jobs ('duration' {self.duration:g} s minus 'margin' {self.margin:g} s)"
            )
            return "duration", why, "shorten the job's duration, or lengthen that of the pilots"
        return None


@dataclass(eq=False)
class Node:
    """A node of a pilot. ``rank`` counts from 0. ``memory`` is in bytes, ``None`` if unknown."""

    pilot: Pilot
    rank: int
    cores: int = 0
    gpus: int = 0
    memory: int | None = None
    connected: bool = False
    free_cores: int = 0
    free_gpus: int = 0
    free_memory: float = math.inf
    #: Jobs that are placed here and not over.
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        return self.pilot.number, self.rank


@dataclass(eq=False)
class Pilot:
    """A pilot. ``requested``, ``ends`` and ``idle_since`` are times; ``ends`` may be unknown.

    ``was_ready`` is true once the pilot has been ready, also if a later controller asks.
    """

    number: int
    requested: float
    state: State = "requested"
    nodes: list[Node] = field(default_factory=list)
    ends: float | None = None
    idle_since: float = 0.0
    was_ready: bool = False

    def to(self, state: State) -> None:
        """Change the state. Raises :class:`ValueError` if :data:`TRANSITIONS` does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"pilot {self.number} cannot change from {self.state} to {state}")
        self.state = state

    @property
    def job(self) -> str:
        """The pilot's job in the outer queue."""
        return f"pilot.{self.number}"

    @property
    def busy(self) -> bool:
        return any(node.jobs for node in self.nodes)


class Fleet:
    """The pilots of a run and its waiting jobs."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.pilots: dict[int, Pilot] = {}
        self.placed: dict[str, Node] = {}
        self._waiting: dict[str, tuple[int, Job]] = {}
        #: Waiting jobs by size: heaps of (number, id), with entries of jobs that wait no longer.
        self._lines: dict[_Shape, list[tuple[int, str]]] = {}
        self._counts: dict[_Shape, int] = {}
        self._numbers: dict[str, int] = {}
        self._bypassed: dict[str, int] = {}
        #: Nodes that may have room. Their number does not depend on that of all nodes.
        self._open: dict[tuple[int, int], Node] = {}
        self.failures = 0
        self._not_before = 0.0
        #: The most memory that a node has had, in bytes; ``None``: not known yet.
        self.memory: int | None = None
        #: How many pilots have been ready, and the most time for jobs that one had left then.
        self.readies, self._longest = 0, 0.0

    # Jobs.

    def never(self, job: Job) -> str | None:
        """Return the reason why no pilot can run a job, and what to do, or ``None``."""
        if self.memory is not None and job.memory > self.memory:
            return (
                f"the job needs {job.memory / 2**30:.3g}G of memory, but a node of a pilot has "
                f"{self.memory / 2**30:.3g}G: request less memory_per_task, or larger nodes"
            )
        found = self.kind.never(job)
        if found is not None:
            return f"{found[1]}: {found[2]}"
        if self.readies >= FAILURES and job.duration > self._longest:
            return (
                f"the job's time limit is {job.duration:g} s, but {FAILURES} pilots had at most "
                f"{self._longest:.0f} s left when they were ready: shorten the job's duration, or "
                "lengthen 'margin' and 'duration' of the pilots by the time that they need to start"
            )
        return None

    def impossible(self) -> list[tuple[Job, str]]:
        """Return the waiting jobs that no pilot can run, each with the reason.

        Call it when a node has connected, because only then its memory is known, and how long a
        pilot needs to start.
        """
        small = all(shape[3] <= (self.memory or math.inf) for shape in self._lines)
        if small and self.readies != FAILURES:
            return []
        told = [(job, self.never(job)) for _, job in self._waiting.values()]
        return [(job, why) for job, why in told if why is not None]

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a node, without those that are held (urgency 0)."""
        return sum(self._counts.values())

    def waits(self, name: str) -> bool:
        return name in self._waiting

    def add(self, job: Job, number: int) -> None:
        """Add a waiting job. ``number`` is its place in the order of submission."""
        self._waiting[job.id] = number, job
        if job.urgency:  # jobs with urgency 0 are held until they are cancelled
            shape = _shape(job)
            heapq.heappush(self._lines.setdefault(shape, []), (number, job.id))
            self._counts[shape] = self._counts.get(shape, 0) + 1

    def remove(self, name: str) -> None:
        """Remove a waiting job."""
        _, job = self._waiting.pop(name)
        self._bypassed.pop(name, None)
        if job.urgency:
            self._counts[_shape(job)] -= 1

    def bind(self, job: Job, node: Node, number: int) -> None:
        """Record that a job is placed on a node, without a check of the room."""
        node.jobs[job.id] = job
        node.free_cores -= job.cores
        node.free_gpus -= job.gpus
        node.free_memory -= job.memory
        self.placed[job.id] = node
        self._numbers[job.id] = number
        if node.free_cores <= 0:
            self._open.pop(node.key, None)

    def release(self, name: str, now: float) -> None:
        """Free what a placed job has held, because it is over."""
        node = self.placed.pop(name)
        job = node.jobs.pop(name)
        del self._numbers[name]
        node.free_cores += job.cores
        node.free_gpus += job.gpus
        node.free_memory += job.memory
        node.pilot.idle_since = now
        self._update(node)

    def give_back(self, name: str, now: float) -> None:
        """Let a placed job wait again that, by its node's ledger, never started.

        Raises :class:`ValueError` if its pilot is not ``fenced``: it could still start there.
        """
        pilot = self.placed[name].pilot
        if pilot.state != "fenced":
            raise ValueError(f"{name} may still start in pilot {pilot.number} ({pilot.state})")
        number, job = self._numbers[name], self.placed[name].jobs[name]
        self.release(name, now)
        self.add(job, number)

    def _update(self, node: Node) -> None:
        if node.connected and node.free_cores > 0 and node.pilot.state == "ready":
            self._open[node.key] = node
        else:
            self._open.pop(node.key, None)

    # Nodes.

    def node(self, pilot: int, rank: int) -> Node | None:
        """Return a node of a pilot that is not over, or ``None``."""
        found = self.pilots.get(pilot)
        if found is None or found.state == "over" or not 0 <= rank < len(found.nodes):
            return None
        return found.nodes[rank]

    def connect(self, node: Node, cores: int, gpus: int, memory: int | None, now: float) -> bool:
        """Record that a node is connected, with its size. Return whether its pilot became ready.

        The node must be one of a pilot that is not ``ended``.
        """
        node.free_cores += cores - node.cores
        node.free_gpus += gpus - node.gpus
        held = sum(job.memory for job in node.jobs.values())
        node.free_memory = math.inf if memory is None else memory - held
        node.cores, node.gpus, node.memory, node.connected = cores, gpus, memory, True
        if memory is not None:
            self.memory = max(memory, self.memory or 0)
        pilot = node.pilot
        became = pilot.state in ("requested", "starting") and all(n.connected for n in pilot.nodes)
        if became:
            pilot.to("ready")
            pilot.was_ready, pilot.idle_since = True, now
            self.failures = 0
            self.readies += 1
            self._longest = max(self._longest, self._left(pilot, now))
        for each in pilot.nodes if became else (node,):
            self._update(each)
        return became

    def disconnect(self, node: Node) -> None:
        """Record that a node cannot be reached now. Its jobs stay bound to it."""
        node.connected = False
        self._update(node)

    # Pilots.

    def add_pilot(self, number: int, now: float) -> Pilot:
        """Add a pilot that is requested now."""
        pilot = self.pilots[number] = Pilot(number, now, idle_since=now)
        pilot.nodes = [Node(pilot, rank) for rank in range(self.kind.nodes)]
        return pilot

    def drain(self, pilot: Pilot, state: Literal["draining", "ended"] = "draining") -> None:
        """Let a pilot get no more jobs."""
        pilot.to(state)
        for node in pilot.nodes:
            self._update(node)

    def end(self, pilot: Pilot, now: float, *, wanted: bool) -> bool:
        """Record that a pilot is over. Return whether :data:`FAILURES` have now come in a row.

        ``wanted`` says whether this run has ended it. No job may be bound to it any more.
        """
        if pilot.busy:
            raise ValueError(f"jobs are bound to pilot {pilot.number}")
        pilot.to("over")
        del self.pilots[pilot.number]
        if pilot.was_ready or wanted:
            self._not_before = max(self._not_before, now + self.kind.idle if wanted else 0.0)
            return False
        return self.failed(now)

    def failed(self, now: float) -> bool:
        """Record that a pilot never became ready. Return whether that is worth a message."""
        self.failures += 1
        more = self.failures - FAILURES
        if more >= 0:
            self._not_before = now + min(_LONGEST_PAUSE, _PAUSE * 2**more)
        return more == 0

    def requests(self, now: float) -> int:
        """Return how many pilots to request now.

        There are at most ``most``, of which ``backlog`` wait in the outer queue. Only waiting jobs
        count. Call :meth:`place` before, so that jobs for which there is room do not count.
        """
        kind = self.kind
        live = sum(pilot.state in _LIVE for pilot in self.pilots.values())
        waiting = sum(pilot.state == "requested" for pilot in self.pilots.values())
        coming = sum(pilot.state in ("requested", "starting") for pilot in self.pilots.values())
        need = max(math.ceil(self._nodes_needed() / kind.nodes) - coming, kind.least - live)
        if now < self._not_before and (live or self.failures >= FAILURES):
            return 0
        return max(0, min(need, kind.most - len(self.pilots), kind.backlog - waiting))

    def wake_time(self, now: float) -> float | None:
        """Return the next time at which a decision may change although nothing happens."""
        if self.waiting:
            return self._not_before if self._not_before > now else None
        live = [pilot for pilot in self.pilots.values() if pilot.state in _LIVE]
        if len(live) <= self.kind.least:
            return self._not_before if self._not_before > now else None
        times = [pilot.idle_since + self.kind.idle for pilot in live if not pilot.busy]
        return min(times, default=None)

    def surplus(self, now: float) -> list[Pilot]:
        """Return the pilots to give back: those without work for ``idle`` seconds."""
        if self.waiting:
            return []
        live = [pilot for pilot in self.pilots.values() if pilot.state in _LIVE]
        rested = [p for p in live if not p.busy and now - p.idle_since >= self.kind.idle]
        rested.sort(key=lambda pilot: (pilot.state == "ready", -pilot.number))
        return rested[: max(0, len(live) - self.kind.least)]

    def gauges(self) -> dict[str, float]:
        """Return the gauges of the nodes that are ready, and of the pilots."""
        ready = [pilot for pilot in self.pilots.values() if pilot.state == "ready"]
        nodes = [node for pilot in ready for node in pilot.nodes if node.connected]
        coming = sum(pilot.state in ("requested", "starting") for pilot in self.pilots.values())
        return {
            "nodes.up": float(len(nodes)),
            "nodes.free": float(sum(not node.jobs for node in nodes)),
            "cores.up": float(sum(node.cores for node in nodes)),
            "cores.free": float(sum(max(0, node.free_cores) for node in nodes)),
            "gpus.up": float(sum(node.gpus for node in nodes)),
            "gpus.free": float(sum(max(0, node.free_gpus) for node in nodes)),
            "pilots.ready": float(len(ready)),
            "pilots.waiting": float(coming),
        }

    def _nodes_needed(self) -> float:
        """Return how many empty nodes the waiting jobs would fill."""
        kind, needed = self.kind, 0.0
        for (_, cores, gpus, _), count in self._counts.items():
            fit = kind.cores // cores
            if gpus:
                fit = min(fit, kind.gpus // gpus)
            needed += count / max(1, fit)
        return needed

    # Placement.

    def place(self, now: float, *, ahead: int = 0) -> list[tuple[Job, Node]]:
        """Bind waiting jobs to nodes that have room for them. Return the new bindings.

        Jobs are placed by urgency, then first in, first out. If a job does not fit anywhere now,
        smaller ones may overtake it, but only in limited number; then the node with the most free
        cores is kept for it. ``ahead`` is the number of jobs for each core that a node may hold
        beyond its room, which then wait on the node.
        """
        bound: list[tuple[Job, Node]] = []
        if ahead:
            extra = [n for p in self.pilots.values() if p.state == "ready" for n in p.nodes]
            nodes = sorted((n for n in extra if n.connected), key=lambda node: node.key)
        else:
            nodes = [self._open[key] for key in sorted(self._open)]
        heads = [
            (shape[0], number, shape) for shape in self._lines for number in self._first(shape)
        ]
        heapq.heapify(heads)
        blocked: Job | None = None
        kept: Node | None = None
        while heads and nodes:
            _, _, shape = heapq.heappop(heads)
            found = self._choose(shape, nodes, now, kept, ahead)
            if found is None:
                if blocked is None:
                    blocked = self._waiting[self._lines[shape][0][1]][1]
                    kept = self._keep_for(blocked, nodes)
                continue
            number, job, node = found
            self.remove(job.id)
            self.bind(job, node, number)
            bound.append((job, node))
            if blocked is not None:
                self._bypassed[blocked.id] = self._bypassed.get(blocked.id, 0) + 1
                kept = kept or self._keep_for(blocked, nodes)
            if node.free_cores <= -ahead * node.cores:
                nodes.remove(node)
            for number in self._first(shape):
                heapq.heappush(heads, (shape[0], number, shape))
        return bound

    def hand_over(self, now: float) -> list[tuple[Job, Node]]:
        """Bind all waiting jobs to the nodes that are ready, because the controller leaves."""
        ready = [p for p in self.pilots.values() if p.state == "ready"]
        cores = sum(node.cores for p in ready for node in p.nodes if node.connected)
        wanted = sum(shape[1] * count for shape, count in self._counts.items())
        return self.place(now, ahead=1 + wanted // cores) if cores else []

    def _first(self, shape: _Shape) -> list[int]:
        """Return the number of the first waiting job of this size, in a list, or an empty one."""
        line = self._lines[shape]
        while line and self._waiting.get(line[0][1], (None,))[0] != line[0][0]:
            heapq.heappop(line)
        return [line[0][0]] if line else []

    def _choose(
        self, shape: _Shape, nodes: list[Node], now: float, kept: Node | None, ahead: int
    ) -> tuple[int, Job, Node] | None:
        line = self._lines[shape]
        fitting = [node for node in nodes if node is not kept and _fits(shape, node, ahead)]
        if not fitting:
            return None
        chosen = self._in_time(line[0], fitting, now)
        if chosen is None:  # a later one may have a shorter time limit
            rest = heapq.nsmallest(_DEPTH, line)[1:]
            chosen = next(filter(None, (self._in_time(each, fitting, now) for each in rest)), None)
        return chosen

    def _in_time(
        self, entry: tuple[int, str], nodes: list[Node], now: float
    ) -> tuple[int, Job, Node] | None:
        """Return the first of these nodes on which a waiting job can end in time, or ``None``."""
        number, job = self._waiting.get(entry[1], (None, None))
        if job is None or number != entry[0]:
            return None
        for node in nodes:
            left = self._left(node.pilot, now)
            if left > 0 and job.duration <= left:
                return entry[0], job, node
        return None

    def _left(self, pilot: Pilot, now: float) -> float:
        """Return for how many seconds a pilot still runs jobs."""
        return math.inf if pilot.ends is None else pilot.ends - AT_END * self.kind.margin - now

    def _keep_for(self, job: Job, nodes: list[Node]) -> Node | None:
        allowed = max(_BYPASS_LEAST, _BYPASS_PER_CORE * job.cores)
        if self._bypassed.get(job.id, 0) < allowed:
            return None
        able = [node for node in nodes if node.cores >= job.cores and node.gpus >= job.gpus]
        return max(able, key=lambda node: (node.free_cores, -node.pilot.number), default=None)


def _shape(job: Job) -> _Shape:
    return -job.urgency, job.cores, job.gpus, job.memory


def _fits(shape: _Shape, node: Node, ahead: int) -> bool:
    _, cores, gpus, memory = shape
    if ahead:  # the job waits on the node until there is room
        able = cores <= node.cores and gpus <= node.gpus and memory <= (node.memory or math.inf)
        return able and node.free_cores > -ahead * node.cores
    return cores <= node.free_cores and gpus <= node.free_gpus and memory <= node.free_memory
