"""Fleet: the pilots of a run, and which job runs on which node of which pilot.

The fleet does no input or output and reads no clock: times are arguments, in seconds since the
epoch. A pilot is a job of the outer queue. A job of the run is *placed* on one of its nodes once
that node has room for it, and stays bound to it. A job of several nodes is placed on nodes of one
pilot: it starts on the first of them, its *head*, and has a part on each other one, which starts
nothing of the job by itself.

If jobs are short, a full node has a few more of them, so that it does not wait for the controller
between two jobs. A job that has waited there for long is *recalled*.

**Why no job runs twice.** These laws together are the proof:

1. *One place.* A job waits, or it is placed on one node, or it is over. Only nodes of ``ready``
   pilots get jobs (:meth:`Fleet.place`).
2. *Written first.* A job is sent to a node only after a synced line of the controller's ledger says
   so (``ledger``). A later controller reads this line, so it finds each job in the same place.
3. *Three ways out.* A placed job leaves its nodes when they report its end and that of its parts
   (:meth:`Fleet.release`), when its pilot is ``fenced`` and it never started
   (:meth:`Fleet.give_back`, which raises ``ValueError`` in any other state), or when its node says
   that it has dropped the job before its start (:meth:`Fleet.recalled`). A node finishes the
   requests of one connection before it accepts the next, so no earlier message can bring the job
   back to it.
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
from typing import Literal

from ensemble_core import Job
from ensemble_pilot.demand import FAILURES, Demand, Load, Shape
from ensemble_pilot.pilot import LIVE, TRANSITIONS, Kind, Node, Pilot, State, never_any, share

__all__ = ["TRANSITIONS", "Fleet", "Kind", "Node", "Pilot", "State"]

#: How many jobs of one size are checked for one that fits into the time that a pilot has left.
_DEPTH = 100
#: How many jobs may overtake a job that does not fit yet: at least, and for each core it needs.
_BYPASS_LEAST, _BYPASS_PER_CORE = 8, 2
#: Jobs are short if so many of their group have ended, and took at most so many seconds. A longer
#: one counts less with each job that ends after it.
_SHORT_JOBS, _SHORT, _FORGET = 16, 0.25, 0.98
#: Seconds on a full node after which a job is recalled.
_LATE = 0.5
#: Seconds between two decisions about pilots: at least, for each pilot, and at most.
_PAUSE_LEAST, _PAUSE_PER_PILOT, _PAUSE_MOST = 0.02, 0.005, 1.0


class Fleet:
    """The pilots of a run, of one or several kinds, and its waiting jobs.

    A job that names no kind may run in pilots of all kinds. Pilots are requested for it of the
    first kind that can hold it, and, as far as ``most`` allows no more of these, of the next ones.
    """

    def __init__(self, *kinds: Kind) -> None:
        self.pilots: dict[int, Pilot] = {}
        self.placed: dict[str, Node] = {}
        #: Of placed jobs of several nodes: all nodes, the head first; and those other than the head
        #: whose part is not over.
        self.members: dict[str, tuple[Node, ...]] = {}
        self._parts: dict[str, list[Node]] = {}
        self._waiting: dict[str, tuple[int, Job]] = {}
        #: Waiting jobs by size: heaps of (number, id), with entries of jobs that wait no longer.
        self._lines: dict[Shape, list[tuple[int, str]]] = {}
        #: How many jobs wait, by what decides when and where they run.
        self.loads: dict[Load, int] = {}
        self._numbers: dict[str, int] = {}
        self._bypassed: dict[str, int] = {}
        #: Nodes that may have room. Their number does not depend on that of all nodes.
        self._open: dict[tuple[int, int], Node] = {}
        #: Nodes without room, of which at most every second core has a job that waits there.
        self._low: dict[tuple[int, int], Node] = {}
        #: Whether rules decide on the number of pilots.
        self.steered = False
        #: The demand for pilots, by the name of their kind.
        self.demands = {kind.name: Demand(kind, self) for kind in kinds}
        #: Core-seconds of pilots that are over, and how many of them jobs have used.
        self.past_given = self.past_used = 0.0
        #: When placed jobs have started, and of each group: how many have ended, after how long in
        #: total, and how long the longest of the last ones has taken.
        self._since: dict[str, float] = {}
        #: When placed jobs have ended whose end the run may know already. What they have used is
        #: counted.
        self._ends: dict[str, float] = {}
        self._lasted: dict[str, tuple[int, float, float]] = {}
        #: Jobs that wait on full nodes, in order of the times at which they are recalled.
        self._ahead: dict[str, float] = {}

    # Jobs.

    def never(self, job: Job) -> str | None:
        """Return the reason why no pilot can run a job, and what to do, or ``None``."""
        found = never_any([*self.demands.values()], job)
        return None if found is None else f"{found[1]}: {found[2]}"

    def impossible(self) -> list[tuple[Job, str]]:
        """Return the waiting jobs that no pilot can run, each with the reason.

        Call it when a node has connected, because only then its memory is known, and how long a
        pilot needs to start.
        """
        largest = max((shape[3] for shape in self._lines), default=0)
        learned = (
            each.readies == FAILURES or largest > (each.memory or math.inf)
            for each in self.demands.values()
        )
        if not any(learned):
            return []
        checked = [(job, self.never(job)) for _, job in self._waiting.values()]
        return [(job, why) for job, why in checked if why is not None]

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a node, without those that are held (urgency 0)."""
        return sum(self.loads.values())

    def _shape(self, job: Job) -> Shape:
        kind = job.executor if job.executor in self.demands else ""
        return -job.urgency, *share(job), kind or "", job.nodes

    def first_kind(self, load: Load) -> Demand | None:
        """Return the first kind of pilot that can hold these jobs."""
        return next((each for each in self.demands.values() if each.can_hold(load)), None)

    def usual_duration(self, group: str) -> float:
        """Return how long jobs of a group have taken so far: their mean, or 0 if none has ended."""
        ended, seconds, _ = self._lasted.get(group, (0, 0.0, 0.0))
        return seconds / ended if ended else 0.0

    def _are_short(self, group: str) -> bool:
        ended, _, longest = self._lasted.get(group, (0, 0.0, 0.0))
        return ended >= _SHORT_JOBS and longest <= _SHORT

    def waits(self, name: str) -> bool:
        return name in self._waiting

    def add(self, job: Job, number: int) -> None:
        """Add a waiting job. ``number`` is its place in the order of submission."""
        self._waiting[job.id] = number, job
        if job.urgency:  # jobs with urgency 0 are held until they are cancelled
            shape = self._shape(job)
            heapq.heappush(self._lines.setdefault(shape, []), (number, job.id))
            load = shape, job.group, job.duration
            self.loads[load] = self.loads.get(load, 0) + 1

    def remove(self, name: str) -> None:
        """Remove a waiting job."""
        _, job = self._waiting.pop(name)
        self._bypassed.pop(name, None)
        if job.urgency:
            load = self._shape(job), job.group, job.duration
            self.loads[load] -= 1
            if not self.loads[load]:
                del self.loads[load]

    def started(self, name: str, when: float, ended: float | None = None) -> None:
        """Record when a placed job has started, and if it is known, when it has ``ended``."""
        node = self.placed.get(name)
        if node is not None and name not in self._since:
            self._ahead.pop(name, None)
            pilot, cores = node.pilot, node.jobs[name].cores
            self._since[name] = when
            counted = max(when, pilot.counted)
            if ended is None:
                pilot.running_cores += cores
                pilot.running_since += cores * counted
            else:
                self._ends[name] = ended
                pilot.used += cores * max(0.0, ended - counted)

    def bind(self, job: Job, node: Node, number: int, *others: Node) -> None:
        """Record that a job is placed on a node, or several, without a check of the room."""
        self.placed[job.id] = node
        self._numbers[job.id] = number
        if others:
            self.members[job.id] = (node, *others)
            self._parts[job.id] = [*others]
        cores, gpus, memory = share(job)
        for each in (node, *others):
            each.jobs[job.id] = job
            each.free_cores -= cores
            each.free_gpus -= gpus
            each.free_memory -= memory
            self._update(each)

    def has_parts(self, name: str) -> bool:
        """Return True if a part of a job, other than that on its head, is not over."""
        return bool(self._parts.get(name))

    def part_over(self, name: str, node: Node) -> None:
        """Free what a part of a job has held, which is not that on its head."""
        if node in self._parts.get(name, ()):
            self._parts[name].remove(node)
            self._free(name, node)

    def _free(self, name: str, node: Node) -> Job:
        job = node.jobs.pop(name)
        cores, gpus, memory = share(job)
        node.free_cores += cores
        node.free_gpus += gpus
        node.free_memory += memory
        self._update(node)
        return job

    def release(self, name: str, now: float, ended: float | None = None) -> None:
        """Free what a placed job has held, because it is over.

        ``ended`` is when it has ended, if that is not now.
        """
        node = self.placed.pop(name)
        job = self._free(name, node)
        for each in self._parts.pop(name, ()):
            self._free(name, each)
        self.members.pop(name, None)
        del self._numbers[name]
        self._ahead.pop(name, None)
        node.pilot.idle_since = now
        since, pilot = self._since.pop(name, None), node.pilot
        is_counted = name in self._ends
        ended = self._ends.pop(name, pilot.until(now) if ended is None else ended)
        if since is not None:
            lasted = max(0.0, ended - since)
            if not is_counted:
                counted = max(since, pilot.counted)
                pilot.used += job.cores * max(0.0, ended - counted)
                pilot.running_cores -= job.cores
                pilot.running_since -= job.cores * counted
            if pilot.state in ("ready", "draining"):
                count, seconds, longest = self._lasted.get(job.group, (0, 0.0, 0.0))
                longest = max(_FORGET * longest, lasted)
                self._lasted[job.group] = count + 1, seconds + lasted, longest

    def give_back(self, name: str, now: float) -> None:
        """Let a placed job wait again that, by its node's ledger, never started.

        Raises :class:`ValueError` if its pilot is not ``fenced``: it could still start there.
        """
        pilot = self.placed[name].pilot
        if pilot.state != "fenced":
            raise ValueError(f"{name} may still start in pilot {pilot.number} ({pilot.state})")
        self._wait_again(name, now)

    def recalled(self, name: str, now: float) -> None:
        """Let a placed job wait again that its node has dropped before its start.

        Jobs of its group do not count as short for a while. Raises :class:`ValueError` if it has
        started.
        """
        if name in self._since or name in self.members:
            raise ValueError(f"{name} has started")
        job = self._wait_again(name, now)
        count, seconds, longest = self._lasted.get(job.group, (0, 0.0, 0.0))
        self._lasted[job.group] = count, seconds, max(longest, _LATE)

    def _wait_again(self, name: str, now: float) -> Job:
        number, job = self._numbers[name], self.placed[name].jobs[name]
        self.release(name, now)
        self.add(job, number)
        return job

    def take_late(self, now: float) -> dict[Node, list[str]]:
        """Return jobs that have waited on full nodes for long. Each is returned once.

        Their nodes should drop them, because other nodes may be free.
        """
        found: dict[Node, list[str]] = {}
        for name, when in [*self._ahead.items()] if self._is_late(now) else ():
            if when > now:
                break
            del self._ahead[name]
            found.setdefault(self.placed[name], []).append(name)
        return found

    def _is_late(self, now: float) -> bool:
        return next(iter(self._ahead.values()), math.inf) <= now

    def _update(self, node: Node) -> None:
        pilot, key, free = node.pilot, node.key, node.free_cores
        able = node.connected and pilot.state == "ready" and pilot.live
        if able and free > 0:
            self._open[key] = node
        else:
            self._open.pop(key, None)
        if able and -(node.cores // 2) <= free <= 0:
            self._low[key] = node
        else:
            self._low.pop(key, None)

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
        if limit := node.pilot.kind.memory:
            memory = min(limit, memory or limit)
        node.free_cores += cores - node.cores
        node.free_gpus += gpus - node.gpus
        held = sum(share(job)[2] for job in node.jobs.values())
        node.free_memory = math.inf if memory is None else memory - held
        node.cores, node.gpus, node.memory, node.connected = cores, gpus, memory, True
        pilot = node.pilot
        demand = self.demands[pilot.kind.name]
        if memory is not None:
            demand.memory = max(memory, demand.memory or 0)
        became = pilot.state in ("requested", "starting") and all(n.connected for n in pilot.nodes)
        if became:
            if pilot.state == "requested":  # its start has not been reported yet
                demand.waited(now - pilot.requested)
                pilot.began = now
            pilot.to("ready")
            pilot.was_ready, pilot.idle_since = True, now
            demand.became_ready(pilot.left(now))
        for each in pilot.nodes if became else (node,):
            self._update(each)
        if node.free_cores < 0:  # it has got jobs ahead, perhaps as a controller left
            for name in node.jobs.keys() - self._since.keys() - self.members.keys():
                self._ahead.pop(name, None)
                self._ahead[name] = now + _LATE
        return became

    def disconnect(self, node: Node) -> None:
        """Record that a node cannot be reached now. Its jobs stay bound to it."""
        node.connected = False
        self._update(node)

    # Pilots.

    def add_pilot(self, number: int, kind: Kind, now: float) -> Pilot:
        """Add a pilot that is requested now."""
        pilot = self.pilots[number] = Pilot(number, kind, now, idle_since=now)
        pilot.nodes = [Node(pilot, rank) for rank in range(kind.nodes)]
        return pilot

    def begin(self, pilot: Pilot, began: float) -> None:
        """Record when the outer queue has started a pilot."""
        pilot.to("starting")
        pilot.began = began
        self.demands[pilot.kind.name].waited(began - pilot.requested)

    def drain(self, pilot: Pilot, state: Literal["draining", "ended"] = "draining") -> None:
        """Let a pilot get no more jobs."""
        pilot.to(state)
        for node in pilot.nodes:
            self._update(node)

    def leave(self, pilot: Pilot, *, forced: bool) -> None:
        """Let a pilot get no more jobs, and give it back: after those it has, or if forced, now."""
        pilot.leaving, pilot.forced = True, forced
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
        self.past_given += self.given(pilot, now)
        self.past_used += pilot.used
        done, demand = pilot.was_ready or wanted, self.demands[pilot.kind.name]
        if done and not demand.is_awaited and not pilot.leaving:  # it is not replaced
            demand.target = min(demand.target, max(demand.live, demand.target - 1))
        if wanted:
            demand.rest(now)
        return False if done else demand.failed(now)

    def requests(self, now: float) -> list[Kind]:
        """Return the kinds of the pilots to request now, one for each pilot.

        Call :meth:`place` before, so that jobs for which there is room do not count.
        """
        found: list[Kind] = []
        left: dict[Load, float] = dict(self.loads)
        for demand in self.demands.values():
            loads = {load: count for load, count in left.items() if demand.can_hold(load)}
            number, beyond = demand.requests(loads, now)
            found += [demand.kind] * number
            for load, count in loads.items():
                if beyond:
                    left[load] = count * beyond
                else:
                    del left[load]
        return found

    @property
    def pause(self) -> float:
        """Seconds between two decisions about pilots (requests, surplus, gauges).

        They look at each pilot. With many pilots they are made less often, so that the cost of a
        job does not depend on their number.
        """
        return min(_PAUSE_MOST, max(_PAUSE_LEAST, _PAUSE_PER_PILOT * len(self.pilots)))

    @property
    def why(self) -> str:
        """Why no other pilot is requested; empty if one is."""
        whys = [f"{each.name}: {each.why}" for each in self.demands.values()]
        if len(whys) == 1:
            return next(iter(self.demands.values())).why
        return "; ".join(whys) if all(each.why for each in self.demands.values()) else ""

    @property
    def size(self) -> int:
        """Number of nodes of the pilots that are ready."""
        return sum(demand.kind.nodes * demand.ready for demand in self.demands.values())

    def wake_time(self, now: float) -> float | None:
        """Return the next time at which a decision may change although nothing happens."""
        times = [demand.wake_time(now) for demand in self.demands.values()]
        times.append(next(iter(self._ahead.values()), None))
        return min((when for when in times if when is not None), default=None)

    def surplus(self, now: float) -> list[Pilot]:
        """Return the pilots to give back."""
        return [pilot for demand in self.demands.values() for pilot in demand.surplus(now)]

    def given(self, pilot: Pilot, now: float) -> float:
        """Return how many core-seconds a pilot has had so far."""
        cores = pilot.kind.nodes * pilot.kind.cores
        return 0.0 if pilot.began is None else cores * max(0.0, pilot.until(now) - pilot.began)

    @property
    def hours_grow(self) -> bool:
        """True while there is a pilot that has begun."""
        return any(pilot.began is not None for pilot in self.pilots.values())

    def core_seconds(self, now: float) -> tuple[float, float]:
        """Return the core-seconds of all pilots so far, and how many jobs have used."""
        given, used = self.past_given, self.past_used
        for pilot in self.pilots.values():
            given += self.given(pilot, now)
            used += pilot.used_until(now)
        return given, used

    def gauges(self, now: float) -> dict[str, float]:
        """Return the gauges of the nodes that are ready, and of the pilots."""
        given, used = self.core_seconds(now)
        states = {"ready": 0, "waiting": 0, "draining": 0}
        nodes: list[Node] = []
        for pilot in self.pilots.values():
            if pilot.state not in LIVE:
                continue
            if pilot.leaving:
                states["draining"] += 1
            elif pilot.state == "ready":
                states["ready"] += 1
                nodes += [node for node in pilot.nodes if node.connected]
            else:
                states["waiting"] += 1
        return {
            "nodes.up": float(len(nodes)),
            "nodes.free": float(sum(not node.jobs for node in nodes)),
            "cores.up": float(sum(node.cores for node in nodes)),
            "cores.free": float(sum(max(0, node.free_cores) for node in nodes)),
            "gpus.up": float(sum(node.gpus for node in nodes)),
            "gpus.free": float(sum(max(0, node.free_gpus) for node in nodes)),
            **{f"pilots.{state}": float(count) for state, count in states.items()},
            "pilots.core_hours": given / 3600,
            "pilots.used_core_hours": used / 3600,
        }

    # Placement.

    def prefetch(self, now: float) -> list[tuple[Job, Node]]:
        """Bind short jobs to nodes that are full, at most one for each core. Return the bindings.

        A node starts such a job without asking for it. Call :meth:`place` before. Nothing is bound
        if waiting jobs have several sizes, so that no job has to wait for a smaller one, or if
        fewer jobs wait than are placed, so that none waits here while another node is free.
        """
        sizes = [shape for shape in self._lines if self._low and self._first(shape)]
        if len(sizes) != 1 or sizes[0][2] or sizes[0][5] > 1:
            return []
        (shape,) = sizes
        bound: list[tuple[Job, Node]] = []
        for key in sorted(self._low):
            node = self._low[key]
            while len(self._waiting) > len(self.placed) and _fits(shape, node, 1):
                number, job = self._waiting[self._lines[shape][0][1]]
                found = self._in_time((number, job.id), [node], now)
                if found is None or not self._are_short(job.group):
                    break
                self.remove(job.id)
                self.bind(job, node, number)
                self._ahead[job.id] = now + _LATE
                bound.append((job, node))
                if not self._first(shape):
                    return bound
        return bound

    def place(self, now: float, *, ahead: int = 0) -> list[tuple[Job, Node]]:
        """Bind waiting jobs to nodes that have room for them. Return the new bindings.

        Jobs are placed by urgency, then first in, first out. If a job does not fit anywhere now,
        smaller ones may overtake it, but only in limited number; then the node with the most free
        cores is kept for it. ``ahead`` is the number of jobs for each core that a node may hold
        beyond its room, which then wait on the node.
        """
        bound: list[tuple[Job, Node]] = []
        if ahead:
            live = [p for p in self.pilots.values() if p.live and p.state == "ready"]
            extra = [node for pilot in live for node in pilot.nodes]
            nodes = sorted((n for n in extra if n.connected), key=lambda node: node.key)
        else:
            nodes = [self._open[key] for key in sorted(self._open)]
        heads = [
            (shape[0], number, shape) for shape in self._lines for number in self._first(shape)
        ]
        heapq.heapify(heads)
        blocked: Job | None = None
        kept: list[Node] = []
        while heads and nodes:
            _, _, shape = heapq.heappop(heads)
            found = self._choose(shape, nodes, now, kept, ahead)
            if found is None:
                if blocked is None:
                    blocked = self._waiting[self._lines[shape][0][1]][1]
                    kept = self._keep_for(blocked, nodes)
                continue
            number, job, (node, *others) = found
            self.remove(job.id)
            self.bind(job, node, number, *others)
            bound.append((job, node))
            if blocked is not None:
                self._bypassed[blocked.id] = self._bypassed.get(blocked.id, 0) + 1
                kept = kept or self._keep_for(blocked, nodes)
            for each in (node, *others):
                if each.free_cores <= -ahead * each.cores:
                    nodes.remove(each)
            for number in self._first(shape):
                heapq.heappush(heads, (shape[0], number, shape))
        return bound

    def hand_over(self, now: float) -> list[tuple[Job, Node]]:
        """Bind all waiting jobs to the nodes that are ready, because the controller leaves."""
        ready = [p for p in self.pilots.values() if p.live and p.state == "ready"]
        cores: dict[str, int] = {}
        for pilot in ready:
            here = sum(node.cores for node in pilot.nodes if node.connected)
            cores[pilot.kind.name] = cores.get(pilot.kind.name, 0) + here
        fewest = min(filter(None, cores.values()), default=0)
        wanted = sum(load[0][1] * load[0][5] * count for load, count in self.loads.items())
        return self.place(now, ahead=1 + wanted // fewest) if fewest else []

    def _first(self, shape: Shape) -> list[int]:
        """Return the number of the first waiting job of this size, in a list, or an empty one."""
        line = self._lines[shape]
        while line and self._waiting.get(line[0][1], (None,))[0] != line[0][0]:
            heapq.heappop(line)
        return [line[0][0]] if line else []

    def _choose(
        self, shape: Shape, nodes: list[Node], now: float, kept: list[Node], ahead: int
    ) -> tuple[int, Job, list[Node]] | None:
        line, wanted = self._lines[shape], shape[5]
        if wanted > 1:  # parts that wait on a node for room could wait for one another
            ahead = 0
        fitting = [node for node in nodes if node not in kept and _fits(shape, node, ahead)]
        if wanted > 1:
            fitting = [node for node in fitting if node.pilot.kind.flux]
        if not fitting:
            return None
        if not shape[2] and len(self.demands) > 1:  # leave GPUs to the jobs that need them
            fitting.sort(key=lambda node: node.gpus > 0)
        chosen = self._in_time(line[0], fitting, now)
        if chosen is None:  # a later one may have a shorter time limit
            rest = heapq.nsmallest(_DEPTH, line)[1:]
            chosen = next(filter(None, (self._in_time(each, fitting, now) for each in rest)), None)
        return chosen

    def _in_time(
        self, entry: tuple[int, str], nodes: list[Node], now: float
    ) -> tuple[int, Job, list[Node]] | None:
        """Return a waiting job and the first of these nodes on which it can end in time."""
        number, job = self._waiting.get(entry[1], (None, None))
        if job is None or number != entry[0]:
            return None
        found: dict[Pilot, list[Node]] = {}
        for node in nodes:
            left = node.pilot.left(now)
            if left > 0 and job.duration <= left:
                here = found.setdefault(node.pilot, [])
                here.append(node)
                if len(here) == job.nodes:
                    return entry[0], job, here
        return None

    def _keep_for(self, job: Job, nodes: list[Node]) -> list[Node]:
        """Return nodes to keep for a job that does not fit now, if many have overtaken it."""
        allowed = max(_BYPASS_LEAST, _BYPASS_PER_CORE * job.cores)
        if self._bypassed.get(job.id, 0) < allowed:
            return []
        _, cores, gpus, _, kind, wanted = self._shape(job)
        able: dict[Pilot, list[Node]] = {}
        # A node without room now may be one of several that are kept.
        every = nodes if wanted == 1 else [n for p in self.pilots.values() for n in p.nodes]
        for node in every:
            fits = node.cores >= cores and node.gpus >= gpus
            if fits and kind in ("", node.pilot.kind.name) and node.pilot.live:
                able.setdefault(node.pilot, []).append(node)
        best: list[Node] = []
        for pilot, here in able.items():
            if len(here) < wanted or (wanted > 1 and not pilot.kind.flux):
                continue
            here = sorted(here, key=lambda node: -node.free_cores)[:wanted]
            if _room(here) > _room(best):
                best = here
        return best


def _room(nodes: list[Node]) -> float:
    """Return how many cores are free on nodes, to compare those of different pilots."""
    return sum(node.free_cores for node in nodes) if nodes else -math.inf


def _fits(shape: Shape, node: Node, ahead: int) -> bool:
    _, cores, gpus, memory, kind, _ = shape
    if kind not in ("", node.pilot.kind.name):
        return False
    if ahead:  # the job waits on the node until there is room
        able = cores <= node.cores and gpus <= node.gpus and memory <= (node.memory or math.inf)
        return able and node.free_cores > -ahead * node.cores
    return cores <= node.free_cores and gpus <= node.free_gpus and memory <= node.free_memory
