"""Chooses the cores of a task, with regard to the NUMA nodes of this machine."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Topology"]


class Topology:
    """The NUMA nodes of cores. Chooses the cores of a task.

    ``order``: which cores to prefer within a node; by default, beginning with a random one.
    """

    def __init__(
        self, cores: Iterable[int], order: Sequence[int] = (), root: Path = Path("/")
    ) -> None:
        node_of: dict[int, int] = {}
        for path in root.glob("sys/devices/system/node/node[0-9]*/cpulist"):
            try:
                listed = _numbers(path.read_text())
            except (OSError, ValueError):
                continue
            node_of.update(dict.fromkeys(listed, int(path.parent.name.removeprefix("node"))))
        self._node_of = {core: node_of.get(core, 0) for core in cores}
        if not order and self._node_of:
            # Programs of other users may be bound to the first ones.
            order = [*self._node_of]
            start = int.from_bytes(os.urandom(4), "little") % len(order)
            order = order[start:] + order[:start]
        self._rank = {core: rank for rank, core in enumerate(order)}

    def choose(self, free: Iterable[int], count: int) -> list[int]:
        """Return ``count`` of the free cores.

        They are on one node if one has as many: on the fullest of these, so that wide tasks find
        room on the others. Otherwise, they are on as few nodes as possible.
        """
        by_node: dict[int, list[int]] = defaultdict(list)
        for core in sorted(free, key=self._rank.__getitem__):
            by_node[self._node_of[core]].append(core)
        nodes = sorted(by_node.values(), key=len)
        whole = next((cores for cores in nodes if len(cores) >= count), None)
        if whole is not None:
            return whole[:count]
        return [core for cores in reversed(nodes) for core in cores][:count]


def _numbers(text: str) -> list[int]:
    """Return the numbers in a list of the kernel.

    >>> _numbers("0-2,8")
    [0, 1, 2, 8]
    """
    found: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return found
