"""Nodes of a virtual cluster, with their free cores and GPUs.

Jobs may share nodes. The fullest node with enough room is used first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
