"""Whose process is that: finds every process of a job, whatever the job did to hide it.

The supervisor is a *child subreaper* (``prctl(2)``): a process whose parent ended becomes its child
instead of init's, so all that jobs ever spawned stays below it in the tree, and nothing else does.
A :class:`ProcessTree` reads the tree and assigns each process to a job by, in this order:

1. its ancestors: it descends from a task of the job;
2. its session or process group: that of a task of the job;
3. its environment: ``ENSEMBLE_LINEAGE`` names the job;
4. what remains has left its session, its parents and its environment behind. It is some job's: of
   one of those that ran when it was first seen, and for certain once the last of them is over.

Jobs that an earlier supervisor started are not below this one. Their processes are known by 1 to 3,
from what the ledger tells of their tasks. Used by the supervisor's thread only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ensemble_core.local.launch import LINEAGE

__all__ = ["Process", "ProcessTree", "become_subreaper", "pin"]

_SET_CHILD_SUBREAPER = 36

J = TypeVar("J")


def become_subreaper() -> bool:
    """Let orphans become children of this process; whether the system has that."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    return bool(prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) == 0)


@dataclass(frozen=True, slots=True)
class Process:
    """A process: ``born`` (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    born: int


@dataclass(slots=True)
class _Seen:
    """A line of the process table."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    born: int


def _look(pid: int | str) -> _Seen | None:
    """One process's line; ``None`` when it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 1024)
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name is in parentheses and may itself contain parentheses and spaces.
    words = text[text.rfind(b")") + 2 :].split()
    if len(words) < 20:
        return None
    state = words[0].decode("ascii", "replace")
    return _Seen(int(pid), state, int(words[1]), int(words[2]), int(words[3]), int(words[19]))


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def pin(process: Process) -> int | None:
    """A pidfd of exactly this process; ``None`` if it is gone. ``OSError`` if none can be had."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    except AttributeError:
        raise OSError("this Python has no pidfd_open") from None
    seen = _look(process.pid)
    if seen is None or seen.born != process.born:
        os.close(fd)
        return None
    return fd


@dataclass(slots=True)
class _Orphan(Generic[J]):
    """A process that we adopted: its job, or those of which one must have been its job."""

    born: int
    job: J | None
    candidates: set[J] = field(default_factory=set)


class ProcessTree(Generic[J]):
    """The processes of jobs. ``J`` is whatever stands for a job; it must be hashable.

    ``of_task`` gives the job of a task's process id (also after the task ended, until
    nothing of its job is left), ``of_name`` the job of an id, ``running`` all of them.
    """

    def __init__(
        self,
        tag: str,
        of_task: Mapping[int, J],
        of_name: Callable[[str], J | None],
        running: Callable[[], Iterable[J]],
    ) -> None:
        self._mark = os.fsencode(tag) + b":"
        self._of_task = of_task
        self._of_name = of_name
        self._running = running
        self._me = os.getpid()
        self._orphans: dict[int, _Orphan[J]] = {}
        #: Jobs that an earlier supervisor started, and their tasks: when they were there, in ticks.
        self._inherited: dict[str, J] = {}
        self._leaders: dict[int, tuple[J, float]] = {}
        try:
            # Orphans are given to the first thread, so tasks, which other threads start, are not
            # in this list: in a run without daemons it is empty, and reading it costs one call.
            self._list = os.open(f"/proc/self/task/{self._me}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1
        self._before = set(self._children())

    def close(self) -> None:
        """Reap what is left to reap. Nothing of any job may run any more."""
        self._adopt()
        if self._list >= 0:
            os.close(self._list)
            self._list = -1

    def set_inherited(self, name: str, job: J, pids: Sequence[int], up: float) -> None:
        """Look for a job's processes everywhere: the supervisor that started it is gone.

        ``pids`` were its tasks when the machine had been up for ``up`` seconds.
        """
        self._inherited[name] = job
        ticks = (up + 1.0) * os.sysconf("SC_CLK_TCK")
        for pid in pids:
            self._leaders[pid] = (job, ticks)

    def forget(self, name: str) -> None:
        """Nothing is left of this job."""
        job = self._inherited.pop(name, None)
        if job is not None:
            self._leaders = {pid: item for pid, item in self._leaders.items() if item[0] != job}

    def _children(self) -> list[int]:
        if self._list < 0:
            seen = (_look(name) for name in os.listdir("/proc") if name.isdigit())
            return [p.pid for p in seen if p is not None and p.parent == self._me]
        text = b""
        while True:
            piece = os.pread(self._list, 65536, len(text))
            if not piece:
                return [int(word) for word in text.split()]
            text += piece

    def left_behind(self, over: Iterable[J]) -> set[J]:
        """Which of these jobs, whose tasks have all ended, have orphans alive. Reaps dead ones."""
        orphans = self._adopt()
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

    def _adopt(self) -> dict[int, _Orphan[J]]:
        """Orphans alive, each looked at once; the dead ones of jobs are reaped."""
        pids = [p for p in self._children() if p not in self._of_task and p not in self._before]
        if not pids:
            self._orphans.clear()
            return self._orphans
        orphans: dict[int, _Orphan[J]] = {}
        dead: list[_Seen] = []
        for pid in pids:
            seen = _look(pid)
            if seen is None:
                continue
            orphan = self._orphans.get(pid)
            if orphan is None or orphan.born != seen.born:
                orphan = self._judge(seen)
            if seen.state in "ZX":
                dead.append(seen)
            elif orphan is not None:
                orphans[pid] = orphan
        self._orphans = orphans
        for seen in dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(seen.pid, os.WNOHANG)
        return orphans

    def _judge(self, seen: _Seen) -> _Orphan[J] | None:
        """Whose orphan this is; ``None`` if no job of ours can have left it."""
        for number in (seen.session, seen.group):
            job = self._of_task.get(number)
            if job is not None:
                return _Orphan(seen.born, job)
        if seen.state in "ZX":
            return None
        name = self._named(seen.pid)
        job = None if name is None else self._of_name(name)
        # No process: the job may already be over.
        return _Orphan(seen.born, job, set() if job else set(self._running()))

    def _named(self, pid: int) -> str | None:
        """The job of this run that a process's environment names."""
        for entry in _environ(pid):
            if entry.startswith(LINEAGE + b"="):
                for word in entry[len(LINEAGE) + 1 :].split(b" "):
                    if word.startswith(self._mark):
                        return os.fsdecode(word[len(self._mark) :])
        return None

    def _strays(self, table: Mapping[int, _Seen]) -> dict[int, J]:
        """Processes of jobs that are inherited, as far as they tell it themselves."""
        leaders: dict[int, J] = {}
        for pid, (job, ticks) in self._leaders.items():
            seen = table.get(pid)
            if seen is not None and seen.born <= ticks:  # not a later process with the same id
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
        """Every live process of every job, apart from the tasks themselves.

        Reads the whole process table: for jobs that are being killed or left something behind.
        """
        orphans = self._adopt()
        table: dict[int, _Seen] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                seen = _look(name)
                if seen is not None:
                    table[seen.pid] = seen
        owners: dict[int, J | None] = {}
        if self._inherited:
            owners.update(self._strays(table))

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
                        orphan = self._judge(seen)
                    found = orphan.job if orphan is not None else None
                    break
                # Its parent ended during the scan: judge the process alone.
                if seen.parent not in table:
                    orphan = self._judge(seen)
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
                result.setdefault(job, []).append(Process(pid, seen.born))
        return result
