"""Detects whether the kernel has killed a job because memory ran out.

A parent process cannot find out why a child got SIGKILL. Therefore, this module checks whether the
kernel's count of out-of-memory kills has grown.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MemoryKills"]

#: A SIGKILL within this many seconds after a counted kill also means out of memory, because the
#: kernel may kill several processes at once.
_SAME = 1.0
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def _counters(root: Path) -> Iterator[Path]:
    """Yield the files that may count out-of-memory kills, beginning with this process's cgroup."""
    with contextlib.suppress(OSError, ValueError):
        for text in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, place = text.split(":", 2)
            if not controllers:
                yield root / "sys/fs/cgroup" / place.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                folder = root / "sys/fs/cgroup/memory"
                yield folder / place.lstrip("/") / "memory.oom_control"
                yield folder / "memory.oom_control"  # the path in a container
    yield root / "proc/vmstat"


class MemoryKills:
    """Detects out-of-memory kills. ``root`` is the folder that contains ``proc`` and ``sys``."""

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
        """Return True if the kernel counted an out-of-memory kill within the last second."""
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
