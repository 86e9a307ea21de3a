"""Kills for want of memory: whether the kernel, and not somebody, sent a SIGKILL.

A process that the kernel kills because memory ran out ends by SIGKILL like any other, and nothing
that its parent may ask tells why. What there is is a count of such kills: of the cgroup that the
supervisor and its jobs share, or, where that cannot be read, of the machine. A job that was killed
while the count grew is taken for one of them. Used by the lifecycle of local jobs.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MemoryKills"]

#: Seconds after a kill was counted for which other jobs' ends are put down to it: where memory runs
#: out, several processes go at once.
_SAME = 1.0
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def _counters(root: Path) -> Iterator[Path]:
    """Where the count may be, the best first."""
    with contextlib.suppress(OSError, ValueError):
        for text in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, place = text.split(":", 2)
            if not controllers:
                yield root / "sys/fs/cgroup" / place.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                folder = root / "sys/fs/cgroup/memory"
                yield folder / place.lstrip("/") / "memory.oom_control"
                yield folder / "memory.oom_control"  # a container's own
    yield root / "proc/vmstat"


class MemoryKills:
    """The count, looked at when a job was killed. ``root`` is where ``/proc`` and ``/sys`` are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._path: Path | None = None
        self._count = 0
        self._grew = -_SAME
        for path in _counters(root):
            count = _read(path)
            if count is not None:
                self._path, self._count = path, count
                break

    def happened(self) -> bool:
        """True if the kernel has killed a process for want of memory since this was last asked, or
        a moment before that."""
        if self._path is None:
            return False
        now = time.monotonic()
        count = _read(self._path)
        if count is not None and count != self._count:
            if count > self._count:
                self._grew = now
            self._count = count
        return now - self._grew < _SAME


def _read(path: Path) -> int | None:
    try:
        found = _COUNT.search(path.read_bytes())
    except OSError:
        return None
    return None if found is None else int(found[1])
