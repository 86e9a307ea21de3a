"""Chooses the cores of a task, with regard to the NUMA nodes of this machine."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Topology"]

#: The position after the last item of a list, for ``insert``.
_LAST = 1 << 30
#: The place of the core among the fields of ``/proc/PID/stat`` after the name of the program.
_PROCESSOR = 36


class Topology:
    """The NUMA nodes of cores. Chooses the cores of a task.

    ``order``: which cores to prefer within a node. By default, the one on which this thread runs:
    it starts the task, and need not move for that.
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
        self._rank = {core: rank for rank, core in enumerate(order or self._node_of)}
        self._follows = not order
        self._stat = -1

    def choose(self, free: Iterable[int], count: int) -> list[int]:
        """Return ``count`` of the free cores.

        They are on one node if one has as many: on the fullest of these, so that wide tasks find
        room on the others. Otherwise, they are on as few nodes as possible.
        """
        here = self._here() if self._follows else -1
        by_node: dict[int, list[int]] = defaultdict(list)
        for core in sorted(free, key=self._rank.__getitem__):
            by_node[self._node_of[core]].insert(0 if core == here else _LAST, core)
        nodes = sorted(by_node.values(), key=len)
        whole = next((cores for cores in nodes if len(cores) >= count), None)
        if whole is not None:
            return whole[:count]
        return [core for cores in reversed(nodes) for core in cores][:count]

    def _here(self) -> int:
        """Return the core on which this thread runs, or -1. Only one thread may call it."""
        try:
            if self._stat < 0:
                self._stat = os.open("/proc/thread-self/stat", os.O_RDONLY | os.O_CLOEXEC)
            fields = os.pread(self._stat, 1024, 0).rpartition(b")")[2].split()
            return int(fields[_PROCESSOR])
        except (OSError, ValueError, IndexError):
            return -1

    def close(self) -> None:
        """Close the file descriptor, if any."""
        if self._stat >= 0:
            os.close(self._stat)
            self._stat = -1


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
