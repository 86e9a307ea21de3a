"""Counts the nodes, cores and GPUs of a Flux instance: up, drained, free and used by jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_flux.ids_and_hostlists import count_idset, parse_idset


def _shares(resources: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return the cores and GPUs of each rank in a resource set (R, Flux's RFC 20)."""
    shares: dict[int, tuple[int, int]] = {}
    for entry in resources.get("execution", {}).get("R_lite", ()):
        children = entry.get("children", {})
        share = (count_idset(children.get("core", "")), count_idset(children.get("gpu", "")))
        for rank in parse_idset(str(entry["rank"])):
            before = shares.get(rank, (0, 0))
            shares[rank] = (before[0] + share[0], before[1] + share[1])
    return shares


class Nodes:
    """State of the nodes: which are up, and how much of each is in use.

    A node is up if it is online and neither drained nor excluded. A node is free if it is up and no
    job uses any of its resources.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[int, int]] = {}
        self._up: set[int] = set()
        #: Drained ranks that would be up otherwise.
        self._drained: set[int] = set()
        self._used: dict[int, list[int]] = {}
        self._held: dict[int, dict[int, tuple[int, int]]] = {}
        self._up_cores = self._up_gpus = 0
        self._free_nodes = self._free_cores = self._free_gpus = 0

    @property
    def cores_per_node(self) -> int:
        """The cores of the largest node, or 1 if unknown."""
        return max((cores for cores, _ in self._sizes.values()), default=1) or 1

    def status(self, answer: Mapping[str, Any]) -> None:
        """Process a reply of ``resource.status``."""
        self._sizes = _shares(answer.get("R") or {})
        usable = parse_idset(answer.get("online") or "")
        usable -= parse_idset(answer.get("exclude") or "")
        usable &= self._sizes.keys()
        drained: set[int] = set()
        for ranks in answer.get("drain") or {}:
            drained |= parse_idset(ranks)
        self._drained = drained & usable
        self._up = usable - drained
        self._up_cores = sum(self._sizes[rank][0] for rank in self._up)
        self._up_gpus = sum(self._sizes[rank][1] for rank in self._up)
        self._free_nodes = sum(rank not in self._used for rank in self._up)
        self._free_cores, self._free_gpus = self._up_cores, self._up_gpus
        for rank, used in self._used.items():
            if rank in self._up:
                self._free_cores -= used[0]
                self._free_gpus -= used[1]

    @property
    def up(self) -> int:
        """The number of nodes that are up."""
        return len(self._up)

    def lacking(self, nodes: int) -> str:
        """Return the drained ranks if a job with so many nodes can only start with some of them."""
        if not self.up < nodes <= self.up + len(self._drained):
            return ""
        return ",".join(map(str, sorted(self._drained)))

    def allocated(self, resources: Mapping[str, Any] | None) -> None:
        """Replace the use computed from jobs with the scheduler's report of allocated resources."""
        self.forget()
        if resources:
            self.alloc(0, resources)

    def alloc(self, job: int, resources: Mapping[str, Any]) -> None:
        """Record that a job uses these resources from now on. ``job`` is its id in the queue."""
        if job in self._held:
            return
        shares = self._held[job] = _shares(resources)
        for rank, (cores, gpus) in shares.items():
            used = self._used.get(rank)
            if used is None:
                used = self._used[rank] = [0, 0, 0]
                self._free_nodes -= rank in self._up
            used[0] += cores
            used[1] += gpus
            used[2] += 1
            if rank in self._up:
                self._free_cores -= cores
                self._free_gpus -= gpus

    def release(self, job: int, ranks: str = "all") -> None:
        """Record that a job releases its resources on these ranks."""
        held = self._held.get(job)
        if held is None:
            return
        given: Iterable[int] = list(held) if ranks == "all" else parse_idset(ranks)
        for rank in given:
            if rank not in held:
                continue
            cores, gpus = held.pop(rank)
            used = self._used[rank]
            used[0] -= cores
            used[1] -= gpus
            used[2] -= 1
            if rank in self._up:
                self._free_cores += cores
                self._free_gpus += gpus
            if not used[2]:
                del self._used[rank]
                self._free_nodes += rank in self._up
        if not held:
            del self._held[job]

    def forget(self) -> None:
        """Mark all nodes as unused."""
        for job in list(self._held):
            self.release(job)

    def gauges(self) -> dict[str, float]:
        """Return the current gauges by metric path."""
        return {
            "nodes.up": self.up,
            "nodes.free": self._free_nodes,
            "cores.up": self._up_cores,
            "cores.free": self._free_cores,
            "gpus.up": self._up_gpus,
            "gpus.free": self._free_gpus,
        }
