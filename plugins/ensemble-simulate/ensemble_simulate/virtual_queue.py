"""Scheduler of a virtual cluster: by urgency, then first come, first served, with EASY backfill."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Literal, TypeVar

from ensemble_core import Job
from ensemble_simulate.virtual_nodes import Demand, Nodes

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
