"""Chooses the cores of a task, with regard to the NUMA nodes of this machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

#: The position after the last item of a list, for ``insert``.
_LAST = 1 << 30


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
        self._one_node = len(set(self._node_of.values())) == 1
        self._here = _no_core if order or not self._node_of else _current_core()

    def choose(self, free: Collection[int], count: int) -> list[int]:
        """Return ``count`` of the free cores.

        They are on one node if one has as many: on the fullest of these, so that wide tasks find
        room on the others. Otherwise, they are on as few nodes as possible.
        """
        here = self._here()
        if count == 1 and free and self._one_node:  # frequent: fast path
            return [here if here in free else min(free, key=self._rank.__getitem__)]
        by_node: dict[int, list[int]] = defaultdict(list)
        for core in sorted(free, key=self._rank.__getitem__):
            by_node[self._node_of[core]].insert(0 if core == here else _LAST, core)
        nodes = sorted(by_node.values(), key=len)
        whole = next((cores for cores in nodes if len(cores) >= count), None)
        if whole is not None:
            return whole[:count]
        return [core for cores in reversed(nodes) for core in cores][:count]


def _no_core() -> int:
    return -1


def _current_core() -> Callable[[], int]:
    """Return a function that returns the core on which the calling thread runs, or -1."""
    import ctypes  # not at the top: most commands start no process

    try:
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return _no_core
    return found


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
