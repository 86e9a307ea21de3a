"""Process tree: finds all processes of a job, even detached ones.

The supervisor, the parent process of the jobs, is a *child subreaper* (``prctl(2)``): orphaned
descendants become its children. The first of these rules that applies assigns a process to a job:

1. By its ancestors: the process descends from a task of the job.
2. By its session or process group: a task of the job has the same one.
3. By its environment: ``ENSEMBLE_LINEAGE`` names the job.
4. Otherwise: of all jobs that were running when the process was first seen, it belongs to the one
   that ends last.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Generic, TypeVar

from ensemble_core.local.launch import LINEAGE
from ensemble_core.quick_dataclass import dataclass

_SET_CHILD_SUBREAPER = 36

J = TypeVar("J")


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process. Return False if that is not supported."""
    import ctypes  # not at the top: most commands start no process

    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    return bool(prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) == 0)


@dataclass(frozen=True, slots=True)
class Process:
    """A process."""

    pid: int
    born: int  # start time in clock ticks since boot, because process ids are reused
    group: int = field(default=0, compare=False)  # the process group


@dataclass(slots=True)
class _Entry:
    """An entry of the process table (``/proc/PID/stat``)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    born: int


def _entry(pid: int | str) -> _Entry | None:
    """Return the entry of a process, or ``None`` if the process no longer exists."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 1024)
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name of the program is in parentheses and may itself contain parentheses and spaces.
    words = text[text.rfind(b")") + 2 :].split()
    if len(words) < 20:
        return None
    state = words[0].decode("ascii", "replace")
    return _Entry(int(pid), state, int(words[1]), int(words[2]), int(words[3]), int(words[19]))


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or ``None`` if the process is unknown."""
    seen = _entry(pid)
    return None if seen is None else seen.parent


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def pin(process: Process) -> int | None:
    """Return a pidfd of exactly this process, or ``None`` if the process no longer exists.

    Raises ``OSError`` if the system has no pidfd for it.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    except AttributeError:
        raise OSError("this Python has no pidfd_open") from None
    seen = _entry(process.pid)
    if seen is None or seen.born != process.born:
        os.close(fd)
        return None
    return fd


def kill_descendants(patience: float = 60.0) -> bool:
    """Kill and reap all descendants of this process, which must be a subreaper.

    Return False if some are left after ``patience`` seconds: they cannot be killed.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True  # orphans become children of this process, so there are none
        if time.monotonic() > deadline:
            return False
        children: dict[int, list[_Entry]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (seen := _entry(name)) is not None:
                children.setdefault(seen.parent, []).append(seen)
        todo = children.get(os.getpid(), [])
        while todo:
            seen = todo.pop()
            todo += children.get(seen.pid, ())
            with contextlib.suppress(OSError):
                fd = pin(Process(seen.pid, seen.born))
                if fd is not None:
                    try:
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                    finally:
                        os.close(fd)
        time.sleep(0.005)


@dataclass(slots=True)
class _Orphan(Generic[J]):
    """An orphan that this process has adopted, with its job.

    If unknown, ``candidates`` may be the job.
    """

    born: int
    job: J | None
    candidates: set[J] = field(default_factory=set)


class ProcessTree(Generic[J]):
    """The processes of jobs. ``J`` is the type that represents a job; it must be hashable."""

    def __init__(
        self,
        run_id: str,
        of_task: Mapping[int, J],
        of_name: Callable[[str], J | None],
        running: Callable[[], Iterable[J]],
    ) -> None:
        self._mark = os.fsencode(run_id) + b":"
        #: The job of each task by process id, until no process of the job is left.
        self._of_task = of_task
        self._of_name = of_name
        self._running = running
        self._me = os.getpid()
        self._orphans: dict[int, _Orphan[J]] = {}
        #: The jobs of an earlier supervisor, and their tasks, each with a time (in ticks) at which
        #: the task existed.
        self._inherited: dict[str, J] = {}
        self._leaders: dict[int, tuple[J, float]] = {}
        try:
            # The kernel gives orphans to the first thread, while tasks are children of other
            # threads. Without orphans, this list of children is therefore empty, and one system
            # call is enough to read it.
            self._list = os.open(f"/proc/self/task/{self._me}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1
        self._before = set(self._children())

    def close(self) -> None:
        """Reap remaining zombies. Call this only when no process of a job is running."""
        self._scan_orphans()
        if self._list >= 0:
            os.close(self._list)
            self._list = -1

    def set_inherited(self, name: str, job: J, pids: Sequence[int], up: float) -> None:
        """Search the whole process table for processes of a job of an earlier supervisor.

        ``pids`` has the process ids of the job's tasks, recorded when the machine had been up for
        ``up`` seconds: a process that started later has only got the same id.
        """
        self._inherited[name] = job
        ticks = (up + 1.0) * os.sysconf("SC_CLK_TCK")
        for pid in pids:
            self._leaders[pid] = (job, ticks)

    def inherited_groups(self, job: J) -> set[int]:
        """Return the process groups of an inherited job's tasks that have live processes."""
        tasks = {pid for pid, (other, _) in self._leaders.items() if other is job}
        return tasks & {process.group for process in self.members().get(job, ())}

    def forget(self, name: str) -> None:
        """Forget an inherited job that has no processes left."""
        job = self._inherited.pop(name, None)
        if job is not None:
            self._leaders = {pid: item for pid, item in self._leaders.items() if item[0] != job}

    def _children(self) -> list[int]:
        if self._list < 0:
            seen = (_entry(name) for name in os.listdir("/proc") if name.isdigit())
            return [p.pid for p in seen if p is not None and p.parent == self._me]
        text = b""
        while True:
            piece = os.pread(self._list, 65536, len(text))
            if not piece:
                return [int(word) for word in text.split()]
            text += piece

    def left_behind(self, over: Iterable[J]) -> set[J]:
        """Return those of these jobs that still have live orphans. All their tasks must have ended.

        Dead orphans are reaped.
        """
        orphans = self._scan_orphans()
        found: set[J] = set()
        if not orphans:
            return found
        for job in over:
            for orphan in orphans.values():
                if orphan.job is None:
                    orphan.candidates.discard(job)
                    if not orphan.candidates:
                        orphan.job = job
                if orphan.job is job:
                    found.add(job)
        return found

    def _scan_orphans(self) -> dict[int, _Orphan[J]]:
        """Return all live orphans, and reap dead ones. Each orphan is assigned to a job once."""
        pids = [p for p in self._children() if p not in self._of_task and p not in self._before]
        if not pids:
            self._orphans.clear()
            return self._orphans
        orphans: dict[int, _Orphan[J]] = {}
        dead: list[_Entry] = []
        for pid in pids:
            seen = _entry(pid)
            if seen is None:
                continue
            orphan = self._orphans.get(pid)
            if orphan is None or orphan.born != seen.born:
                orphan = self._assign(seen)
            if orphan is not None and orphan.job is None and len(orphan.candidates) == 1:
                (orphan.job,) = orphan.candidates
            if seen.state in "ZX":
                dead.append(seen)
            elif orphan is not None:
                orphans[pid] = orphan
        self._orphans = orphans
        for seen in dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(seen.pid, os.WNOHANG)
        return orphans

    def _assign(self, seen: _Entry) -> _Orphan[J] | None:
        """Assign an orphan to its job. Return ``None`` if it belongs to no job of this run."""
        for number in (seen.session, seen.group):
            job = self._of_task.get(number)
            if job is not None:
                return _Orphan(seen.born, job)
        if seen.state in "ZX":
            return None
        name = self._named(seen.pid)
        job = None if name is None else self._of_name(name)
        # If no job has this name, perhaps because the job is over, all running jobs are candidates.
        return _Orphan(seen.born, job, set() if job else set(self._running()))

    def _named(self, pid: int) -> str | None:
        """Return the job of this run that is named in a process's environment."""
        for entry in _environ(pid):
            if entry.startswith(LINEAGE + b"="):
                for word in entry[len(LINEAGE) + 1 :].split(b" "):
                    if word.startswith(self._mark):
                        return os.fsdecode(word[len(self._mark) :])
        return None

    def _inherited_processes(self, table: Mapping[int, _Entry]) -> dict[int, J]:
        """Return the processes of inherited jobs, found by session and environment."""
        leaders: dict[int, J] = {}
        for pid, (job, ticks) in self._leaders.items():
            seen = table.get(pid)
            if seen is not None and seen.born <= ticks:  # skip a later process with this id
                leaders[pid] = job
        found: dict[int, J] = {}
        for pid, seen in table.items():
            if seen.state in "ZX" or pid == self._me:
                continue
            owner = leaders.get(pid) or leaders.get(seen.session)
            if owner is None:
                name = self._named(pid)
                owner = None if name is None else self._inherited.get(name)
            if owner is not None:
                found[pid] = owner
        return found

    def members(self) -> dict[J, list[Process]]:
        """Return all live processes of all jobs, except the tasks.

        This reads the whole process table. It is used for jobs that are being terminated.
        """
        orphans = self._scan_orphans()
        table: dict[int, _Entry] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                seen = _entry(name)
                if seen is not None:
                    table[seen.pid] = seen
        owners: dict[int, J | None] = {}
        if self._inherited:
            owners.update(self._inherited_processes(table))

        def owner(pid: int) -> J | None:
            path: list[int] = []
            found: J | None = None
            while True:
                if pid in owners:
                    found = owners[pid]
                    break
                path.append(pid)
                task = self._of_task.get(pid)
                if task is not None:
                    found = task
                    break
                seen = table.get(pid)
                if seen is None or pid == self._me:
                    break
                if seen.parent == self._me:
                    orphan = orphans.get(pid)
                    if orphan is None and pid not in self._before:
                        orphan = self._assign(seen)
                    found = orphan.job if orphan is not None else None
                    break
                # The parent of the process has ended during the scan.
                if seen.parent not in table:
                    orphan = self._assign(seen)
                    found = orphan.job if orphan is not None else None
                    break
                if len(path) > len(table):
                    break
                pid = seen.parent
            for step in path:
                owners[step] = found
            return found

        result: dict[J, list[Process]] = {}
        for pid, seen in table.items():
            if seen.state in "ZX" or pid in self._of_task:
                continue
            job = owner(pid)
            if job is not None:
                result.setdefault(job, []).append(Process(pid, seen.born, seen.group))
        return result
