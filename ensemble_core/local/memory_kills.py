"""Detects whether the kernel has killed a job because memory ran out.

A parent process cannot find out why a child got SIGKILL. Therefore, this module checks whether the
kernel's count of out-of-memory kills has grown.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

#: A SIGKILL within this many seconds after a counted kill also means out of memory, because the
#: kernel may kill several processes at once.
_SAME = 1.0
#: The beginning of the line with the count. No regular expression: the search is part of the end of
#: each job, and ``/proc/vmstat`` has 200 lines.
_COUNT = b"\noom_kill "


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
        self._fd: int | None = None
        self._count = 0
        self._grew = -_SAME
        for path in _counters(root):
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                count = _read(fd)
                if count is not None:
                    self._fd, self._count = fd, count
                    break
                os.close(fd)

    def grew(self) -> bool:
        """Return True if the kernel has counted an out-of-memory kill since the last call."""
        count = None if self._fd is None else _read(self._fd)
        if count is None or count == self._count:
            return False
        grew, self._count = count > self._count, count
        if grew:
            self._grew = time.monotonic()
        return grew

    def happened(self) -> bool:
        """Return True if the kernel counted an out-of-memory kill within the last second."""
        return self.grew() or time.monotonic() - self._grew < _SAME


def _read(fd: int) -> int | None:
    try:
        _, _, count = (b"\n" + os.pread(fd, 1 << 16, 0)).partition(_COUNT)
        return int(count.partition(b"\n")[0])
    except (OSError, ValueError):
        return None
