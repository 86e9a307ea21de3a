"""A virtual cluster: its nodes, its queue, and its scheduler.

The scheduler starts jobs by urgency, then first come, first served, with EASY backfill. Jobs may
share nodes: the fullest node with enough room is used first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Literal, NamedTuple, TypeVar

from ensemble_core import Job


class Demand(NamedTuple):
    """Resources of a job: the number of its nodes, and the cores and GPUs per node."""

    nodes: int
    cores: int
    gpus: int


def demand_of(job: Job) -> Demand:
    """Return the resources of this job, with its tasks spread evenly over its nodes."""
    nodes = max(1, job.nodes)
    tasks = -(-job.tasks // nodes)
    return Demand(nodes, max(1, tasks * job.cores_per_task), tasks * job.gpus_per_task)


class Nodes:
    """A cluster of ``count`` nodes, each with these cores and GPUs."""

    def __init__(self, count: int, cores: int, gpus: int = 0) -> None:
        self.cores, self.gpus = cores, gpus
        self._free: dict[int, list[int]] = {}
        #: Nodes by their number of free cores, each set in the order of the last change.
        self._by_free: list[dict[int, None]] = [{} for _ in range(cores + 1)]
        #: Nodes that are removed once they are idle.
        self.leaving: set[int] = set()
        self.up = 0
        self.free_cores = self.free_gpus = 0
        self._next = 0
        self.add(count)

    def add(self, count: int) -> None:
        """Add nodes."""
        for node in range(self._next, self._next + count):
            self._free[node] = [self.cores, self.gpus]
            self._by_free[self.cores][node] = None
        self._next += count
        self.up += count
        self.free_cores += count * self.cores
        self.free_gpus += count * self.gpus

    @property
    def idle(self) -> int:
        """The number of idle nodes."""
        return len(self._by_free[self.cores])

    @property
    def size(self) -> int:
        """The number of nodes that are not leaving."""
        return self.up - len(self.leaving)

    def ever(self, demand: Demand) -> bool:
        """Return whether the demand would fit on this cluster if the cluster were empty."""
        return demand.nodes <= self.size and demand.cores <= self.cores and demand.gpus <= self.gpus

    def free(self) -> dict[int, tuple[int, int]]:
        """Return the free cores and GPUs of each node that is not leaving."""
        return {
            node: (cores, gpus)
            for node, (cores, gpus) in self._free.items()
            if node not in self.leaving
        }

    def fitting(self, demand: Demand) -> list[int] | None:
        """Return the nodes that a job would get now; ``None`` if it does not fit."""
        found: list[int] = []
        if demand.cores * demand.nodes > self.free_cores:
            return None
        any_will_do = not self.leaving and not demand.gpus
        for cores in range(demand.cores, self.cores + 1):
            for node in self._by_free[cores]:
                if any_will_do or (node not in self.leaving and self._free[node][1] >= demand.gpus):
                    found.append(node)
                    if len(found) == demand.nodes:
                        return found
        return None

    def take(self, nodes: Sequence[int], demand: Demand) -> None:
        """Start a job on these nodes."""
        self._change(nodes, -demand.cores, -demand.gpus)

    def give(self, nodes: Sequence[int], demand: Demand) -> None:
        """End a job on these nodes."""
        self._change(nodes, demand.cores, demand.gpus)
        for node in self.leaving.intersection(nodes) if self.leaving else ():
            if self._free[node][0] == self.cores:
                self._remove(node)

    def leave(self, count: int, *, busy: bool) -> int:
        """Remove up to ``count`` nodes; return how many are removed now or later.

        Idle nodes are removed immediately. With ``busy``, other nodes are removed once they become
        idle.
        """
        idle = [node for node in self._by_free[self.cores] if node not in self.leaving]
        for node in idle[:count]:
            self._remove(node)
        done = min(count, len(idle))
        if busy and done < count:
            for node in reversed(list(self._free)):
                if node not in self.leaving:
                    self.leaving.add(node)
                    done += 1
                    if done == count:
                        break
        return done

    def _change(self, nodes: Sequence[int], cores: int, gpus: int) -> None:
        by_free = self._by_free
        for node in nodes:
            free = self._free[node]
            had = free[0]
            del by_free[had][node]
            free[0] = had + cores
            free[1] += gpus
            by_free[had + cores][node] = None
        self.free_cores += len(nodes) * cores
        self.free_gpus += len(nodes) * gpus

    def _remove(self, node: int) -> None:
        cores, gpus = self._free.pop(node)
        del self._by_free[cores][node]
        self.leaving.discard(node)
        self.up -= 1
        self.free_cores -= cores
        self.free_gpus -= gpus


Backfill = Literal["easy", "none"]

#: Number of waiting jobs behind the first that may be checked for backfill.
_DEPTH = 100


@dataclass(slots=True, eq=False)
class Entry:
    """A job in the queue."""

    job: Job
    demand: Demand
    seconds: float  # expected duration: the job's limit or, without a limit, its true duration
    nodes: Sequence[int] = ()
    #: The latest end of the job, once it runs.
    ends: float = 0.0


_E = TypeVar("_E", bound=Entry)


class VirtualQueue(Generic[_E]):
    """Waiting and running jobs of one cluster."""

    def __init__(self, nodes: Nodes, backfill: Backfill = "easy") -> None:
        self.nodes = nodes
        self._backfill = backfill
        #: Ordered dicts, because a plain dict finds its first entry slowly after many removals.
        self._waiting: dict[int, OrderedDict[str, _E]] = {}
        #: Number of waiting jobs for each demand, to avoid searches that cannot succeed.
        self._demands: dict[Demand, int] = {}
        self.running: dict[str, _E] = {}

    def add(self, entry: _E) -> None:
        """Add a waiting job."""
        self._waiting.setdefault(entry.job.urgency, OrderedDict())[entry.job.id] = entry
        self._demands[entry.demand] = self._demands.get(entry.demand, 0) + 1

    def drop(self, entry: _E) -> None:
        """Remove a waiting job."""
        del self._waiting[entry.job.urgency][entry.job.id]
        left = self._demands[entry.demand] - 1
        if left:
            self._demands[entry.demand] = left
        else:
            del self._demands[entry.demand]

    def end(self, entry: _E) -> None:
        """End a running job."""
        del self.running[entry.job.id]
        self.nodes.give(entry.nodes, entry.demand)

    def begin(self, now: float) -> Iterator[_E]:
        """Return the jobs that start now, each with its nodes."""
        for urgency in sorted(self._waiting, reverse=True):
            waiting = self._waiting[urgency]
            while waiting:
                head = next(iter(waiting.values()))
                nodes = self.nodes.fitting(head.demand)
                if nodes is None:
                    if self._backfill == "easy" and self._any_fits(head.demand):
                        yield from self._fill_in(head, now)
                    return
                yield self._start(head, nodes, now)

    def _in_order(self) -> Iterator[_E]:
        for urgency in sorted(self._waiting, reverse=True):
            yield from self._waiting[urgency].values()

    def _any_fits(self, blocked: Demand) -> bool:
        return len(self._demands) > 1 and any(
            self.nodes.fitting(demand) is not None for demand in self._demands if demand != blocked
        )

    def _start(self, entry: _E, nodes: list[int], now: float) -> _E:
        self.drop(entry)
        entry.nodes, entry.ends = nodes, now + entry.seconds
        self.nodes.take(nodes, entry.demand)
        self.running[entry.job.id] = entry
        return entry

    def _fill_in(self, head: _E, now: float) -> Iterator[_E]:
        """Start later jobs that do not delay ``head``."""
        shadow, reserved = self._reservation(head.demand)
        for entry in list(islice(self._in_order(), 1, 1 + _DEPTH)):
            nodes = self.nodes.fitting(entry.demand)
            if nodes is None:
                continue
            if now + entry.seconds <= shadow or reserved.isdisjoint(nodes):
                yield self._start(entry, nodes, now)

    def _reservation(self, demand: Demand) -> tuple[float, set[int]]:
        """Return when and on which nodes a job with this demand could start if no other job started
        first.
        """
        free = self.nodes.free()
        fits = {
            node
            for node, (cores, gpus) in free.items()
            if cores >= demand.cores and gpus >= demand.gpus
        }
        ends = [(entry.ends, place) for place, entry in enumerate(self.running.values())]
        entries = list(self.running.values())
        heapq.heapify(ends)
        now = float("-inf")
        while len(fits) < demand.nodes and ends:
            now, place = heapq.heappop(ends)
            for node in entries[place].nodes:
                if node in free:
                    cores, gpus = free[node]
                    taken = entries[place].demand
                    free[node] = cores, gpus = cores + taken.cores, gpus + taken.gpus
                    if cores >= demand.cores and gpus >= demand.gpus:
                        fits.add(node)
        if len(fits) < demand.nodes:
            return float("inf"), set()
        return now, fits
