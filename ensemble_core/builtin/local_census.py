"""Whose process is that: finds every process of a job, whatever the job did to hide it.

While executors are open, this process is a *child subreaper* (``prctl(2)``): a process whose parent
ended becomes our child instead of init's, so all that jobs ever spawned stays below us in the tree.
A :class:`Census` reads the tree and assigns each process to a job by, in this order:

1. its ancestors: it descends from a task of the job;
2. its session or process group: that of a task of the job;
3. its environment: ``ENSEMBLE_LINEAGE`` names the job;
4. what remains has left its session, its parents and its environment behind. If the environment
   is not one that this process hands down, it is some job's: of one of those that ran when it
   was first seen, and for certain once the last of them is over.

Used by the local executor's thread only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ensemble_core.builtin.local_launch import LINEAGE

__all__ = ["Census", "Process", "pin", "subreaper"]

_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37

#: Seconds for which a dead child of unknown origin is left to whoever may wait for it.
_CLAIM = 20.0

J = TypeVar("J")


class _Subreaper:
    """Counts who needs this process to adopt orphans; what was before comes back after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def acquire(self) -> bool:
        """Become a subreaper; whether the system has that."""
        with self._lock:
            try:
                prctl = ctypes.CDLL(None, use_errno=True).prctl
            except (OSError, AttributeError):
                return False
            if self._users == 0:
                before = ctypes.c_int(0)
                if prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
                    return False
                if prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
                    return False
                self._before = before.value
            self._users += 1
            return True

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and not self._before:
                prctl = ctypes.CDLL(None, use_errno=True).prctl
                prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0)


subreaper = _Subreaper()


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


class Census(Generic[J]):
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
        self._session = os.getsid(0)
        self._own = {entry for entry in _environ(self._me) if entry}
        self._own |= {key + b"=" + value for key, value in os.environb.items()}
        self._orphans: dict[int, _Orphan[J]] = {}
        self._dead: dict[int, tuple[int, float]] = {}
        #: Sessions in which orphans of jobs were seen; they are no other process's.
        self._sessions: set[int] = set()
        self._claim = _CLAIM
        try:
            # Orphans are given to the first thread, so tasks, which other threads start, are not
            # in this list: in a run without daemons it is empty, and reading it costs one call.
            self._list = os.open(f"/proc/self/task/{self._me}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1
        self._before = set(self._children())

    def close(self) -> None:
        """Reap what is left to reap. Nothing of any job may run any more."""
        self._claim = 0.0
        self._adopt()
        if self._list >= 0:
            os.close(self._list)
            self._list = -1

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
            self._dead.clear()
            self._sessions.clear()
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
            if orphan is not None:
                self._sessions.add(seen.session)
            if seen.state in "ZX":
                dead.append(seen)
            elif orphan is not None:
                orphans[pid] = orphan
        self._orphans = orphans
        for seen in dead:
            if seen.session in self._sessions or self._unclaimed(seen):
                self._dead.pop(seen.pid, None)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(seen.pid, os.WNOHANG)
        return orphans

    def _unclaimed(self, seen: _Seen) -> bool:
        """Whether a dead child that nothing tells of may be reaped.

        It left this session, and nobody waited for it for ``_CLAIM`` seconds: what a user's own
        function started keeps the session, or is waited for.
        """
        if seen.session == self._session:
            return False
        if not self._claim:
            return True
        born, since = self._dead.get(seen.pid, (-1, 0.0))
        now = time.monotonic()
        if born != seen.born:
            self._dead[seen.pid] = (seen.born, now)
            return False
        return now - since >= self._claim

    def _judge(self, seen: _Seen) -> _Orphan[J] | None:
        """Whose orphan this is; ``None`` if no job of ours can have left it."""
        for number in (seen.session, seen.group):
            job = self._of_task.get(number)
            if job is not None:
                return _Orphan(seen.born, job)
        if seen.state in "ZX":
            return None
        entries = _environ(seen.pid)
        for entry in entries:
            if entry.startswith(LINEAGE + b"="):
                for word in entry[len(LINEAGE) + 1 :].split(b" "):
                    if word.startswith(self._mark):
                        name = os.fsdecode(word[len(self._mark) :])
                        job = self._of_name(name)
                        # A job that is over already: nothing may be left of it.
                        return _Orphan(seen.born, job, set() if job else set(self._running()))
                return None  # another run's in this same process
        if seen.session == self._session:
            return None
        shared = sum(1 for entry in entries if entry in self._own)
        if shared * 5 >= len(self._own) * 4:
            return None  # it has this process's environment: started by it, and not for a job
        return _Orphan(seen.born, None, set(self._running()))

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
                # A parent that ended while the table was read: judge the process by itself.
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
