"""Memory of local jobs: ends jobs that use more than they request, and detects kernel kills."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.local_job import ActiveJobs, LocalJob, Phase
from ensemble_core.local.process_tree import ProcessTree
from ensemble_core.local.terminator import Token
from ensemble_core.model.byte_sizes import memory_text

#: Seconds between checks, and the least pause as a multiple of the time that a check takes.
_CHECK, _PER_COST = 1.0, 20.0
_PROC = Path("/proc")


class MemoryLimits:
    """Checks each second how much memory the processes of jobs use together.

    ``exceeded`` is called with a job that uses more than it requests, and with a note.
    """

    def __init__(
        self,
        active: ActiveJobs,
        poller: Poller[Token],
        tree: ProcessTree[LocalJob],
        exceeded: Callable[[LocalJob, str], None],
    ) -> None:
        self._active = active
        self._poller = poller
        self._tree = tree
        self._exceeded = exceeded
        self._checking = False

    def watch(self) -> None:
        """Check jobs as long as some that request memory run."""
        if not self._checking:
            self._checking = True
            self._poller.at(time.monotonic() + _CHECK, self._check)

    def _check(self) -> None:
        self._checking = False
        limited = [
            record
            for record in self._active.running
            if record.job.memory and record.phase is Phase.NONE
        ]
        if not limited:
            return
        began = time.monotonic()
        members = self._tree.members()
        for record in limited:
            pids = [*record.live, *(process.pid for process in members.get(record, ()))]
            # The sum of the first counts shared pages several times, but is cheap.
            if sum(_resident(pid) for pid in pids) > record.job.memory:
                used = sum(map(_proportional, pids))
                if used > record.job.memory:
                    self._exceeded(record, _note(record, used))
        self._checking = True
        pause = max(_CHECK, _PER_COST * (time.monotonic() - began))
        self._poller.at(time.monotonic() + pause, self._check)


def _note(record: LocalJob, used: int) -> str:
    job = record.job
    each = f" ({job.tasks} tasks)" if job.tasks > 1 else ""
    return (
        f"used {memory_text(used)} of memory, more than its memory_per_task of "
        f"{memory_text(job.memory_per_task)}{each}"
    )


def _resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, or 0 if it has ended."""
    return _sum(_PROC / str(pid) / "status", ("VmRSS:",))


def _proportional(pid: int) -> int:
    """Return the memory of a process in bytes, in which it has a share of each shared page."""
    found = _sum(_PROC / str(pid) / "smaps_rollup", ("Pss:",))
    return found or _resident(pid)  # an old kernel, or another user's process


def _sum(path: Path, names: Iterable[str]) -> int:
    try:
        lines = [line.split() for line in path.read_text("utf-8", "replace").splitlines()]
        return sum(int(words[1]) << 10 for words in lines if words and words[0] in names)
    except (OSError, ValueError, IndexError):
        return 0


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
    """Detects out-of-memory kills.

    A parent process cannot find out why a child got SIGKILL. Therefore, this class checks whether
    the kernel's count of out-of-memory kills has grown. ``root`` is the folder that contains
    ``proc`` and ``sys``.
    """

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
