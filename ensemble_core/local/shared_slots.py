"""Slots that several runs on this machine share, coordinated through a file.

A supervisor locks one byte of the file for each core and GPU that its jobs hold. The content of the
file lists the waiting runs. The run that has waited longest goes first.

If nothing else is configured, all runs of a user on a machine share one file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields

from ensemble_core.local.slots import Slots, Topology
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass

#: Positions of the bytes to lock: the first one for cores, the first one for GPUs, and the one that
#: a supervisor locks while it chooses jobs. All are far beyond the content of the file.
_CORES, _GPUS, _TURN = 1 << 28, 1 << 29, 1 << 27
#: How many jobs may overtake a waiting run whose job does not fit: the minimum, and the number for
#: each core.
_PASS_LEAST, _PASS_FACTOR = 8, 2
#: How many seconds to wait for a run that was woken, because its supervisor may be suspended.
_PATIENCE = 10.0


@dataclass(slots=True)
class _WaitingRun:
    """A waiting run."""

    name: str  # of its socket
    since: float  # monotonic time since which the run has waited
    cores: int  # what its next job needs
    gpus: int
    usable: str  # the cores that it may use: a bit for each number, in hexadecimal digits
    passed: int = 0  # how often other runs have overtaken it


class SharedSlots(Slots):
    """Slots of a run that shares a file with other runs.

    With ``machine``, the file has a byte for each of these cores of the machine, and the run uses
    at most ``size`` of them. If the run may have more slots than that, it shares only its GPUs.
    Without ``machine``, all runs together use at most ``size`` cores.

    Raises :class:`OSError` if the file cannot be opened or locked, or belongs to another user.
    """

    def __init__(
        self,
        path: str,
        machine: Sequence[int] | None,
        size: int,
        smallest: int,
        largest: int,
        gpus: Sequence[str] = (),
        cores: Sequence[int] = (),
        memory: int | None = None,
    ) -> None:
        super().__init__(size, smallest, largest, gpus, cores, memory)
        self._machine = machine
        #: Whether this run shares cores, and not only GPUs.
        self._counts = machine is None or len(machine) >= largest
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        if machine is None:
            # The highest first: runs with fewer slots can use only the lowest ones.
            self._topology = Topology(self.cores, self.cores[::-1])
        else:
            flags |= os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600)
        found = os.fstat(self._file)
        own = found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)
        if machine is not None and not own:
            os.close(self._file)
            raise PermissionError(errno.EPERM, "it belongs to another user")
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
        self._unlock(_TURN)
        self._name = f"ensemble-slots-{os.getuid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + self._name)
        self.wake_fd = self._socket.fileno()
        self._held: set[int] = set()
        #: The numbers of free cores, and the other waiting runs. Both are set while this run
        #: chooses jobs.
        self._free: set[int] = set()
        self._waiting_runs: list[_WaitingRun] = []
        #: While this run has locked ``_TURN``: what the file contained, and GPUs of other runs.
        self._turn = False
        self._written: list[_WaitingRun] = []
        self._away: list[str] = []
        #: Locked cores that jobs gave back in this turn of the supervisor. If they are all free
        #: slots of this run, its next jobs get them without a lock on the file.
        self._kept: set[int] = set()
        #: Whether other runs could get slots in this turn, so that those that wait are woken.
        self._released = False
        self._since = 0.0
        #: Waiting runs that were woken, each with the time of the first wakeup.
        self._woken: dict[tuple[str, float], float] = {}

    # -- one supervisor at a time --------------------------------------------------------------

    def begin_choice(self, next_job: Callable[[], Job | None]) -> None:
        if not self.waiting:
            left = self.size - self.used
            if left <= 0 or (left <= len(self._kept) and not self.gpus and not self._read()):
                self.others = 0  # all free slots of this run are in `_kept`
                return
            if next_job() is None:
                return
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
        self._turn = True
        self._written = self._read()
        self._waiting_runs = [run for run in self._written if run.name != self._name]
        mine = self._own_entry()
        self._since = time.monotonic() if mine is None else mine.since
        # Lock all free slots. `end_choice` unlocks those that were not taken.
        if self._counts:
            self._free = self._lock_free()
            self._released = self._released or bool(self._kept)
            self._kept.clear()
            self.others = max(0, self.size - len(self._held) - len(self._free))
        self._away = [gpu for gpu in self.free_gpus if not self._lock(_gpu(gpu))]
        if self._away:
            self.free_gpus = [gpu for gpu in self.free_gpus if gpu not in self._away]

    def _own_entry(self) -> _WaitingRun | None:
        return next((run for run in self._written if run.name == self._name), None)

    def end_choice(self, next_job: Callable[[], Job | None]) -> None:
        if not self._turn:
            return
        try:
            for first, count in _ranges(self._free):
                self._unlock(_CORES + first, count)
            for gpu in self.free_gpus:
                self._unlock(_gpu(gpu))
            self._free = set()
            if self._away:
                self.free_gpus = sorted([*self.free_gpus, *self._away], key=self.gpus.index)
            self._queue_up(next_job())
        finally:
            self._turn = False
            self._unlock(_TURN)

    def _queue_up(self, job: Job | None) -> None:
        """Write to the file whether this run waits for slots of other runs, for its next job."""
        # A run that has reached its own limit does not wait for slots of other runs.
        self.waiting = job is not None and super().fits(job.cores, job.gpus, job.memory)
        if job is not None and self.waiting:
            mine = self._own_entry()
            passed = mine.passed if mine is not None and mine.since == self._since else 0
            cores = job.cores if self._counts else 0
            usable = f"{sum(1 << core for core in self._usable()):x}"
            run = _WaitingRun(self._name, self._since, cores, job.gpus, usable, passed)
            self._waiting_runs.append(run)
        if self._waiting_runs or self._written:
            self._write()

    def settle(self) -> None:
        if self._kept:
            for first, count in _ranges(self._kept):
                self._unlock(_CORES + first, count)
            self._kept.clear()
        elif not self._released:
            return
        self._released = False
        for run in self._read():
            if run.name != self._name:
                self._wake(run.name)

    def _lock_free(self) -> set[int]:
        """Lock all cores that are free. Return their numbers."""
        free: set[int] = set()
        for first, count in _ranges(self._usable()):
            numbers = range(first, first + count)
            if self._lock(_CORES + first, count):  # no other run holds any of them
                free.update(numbers)
                free -= self._held
            else:
                others = (core for core in numbers if core not in self._held)
                free.update(core for core in others if self._lock(_CORES + core))
        return free

    def fits(self, cores: int, gpus: int, memory: int = 0) -> bool:
        if not super().fits(cores, gpus, memory):
            return False
        if not self._turn:
            return True  # in some of `_kept`
        if self._counts and cores > len(self._free):
            return False
        waiting = self._waiting_runs
        return not (waiting and any(self._goes_first(run) for run in list(waiting)))

    def _goes_first(self, run: _WaitingRun) -> bool:
        """Wake a run that goes first. Return True if this run has to wait for it."""
        if run.since >= self._since:
            return False
        usable = int(run.usable, 16)
        mine = sum(1 for core in self._free if usable >> core & 1)
        fits = run.cores <= mine and run.gpus <= len(self.free_gpus)
        if not fits and run.passed < max(_PASS_LEAST, _PASS_FACTOR * self.size):
            return False
        if not self._wake(run.name):
            self._waiting_runs.remove(run)  # its supervisor has exited
            return False
        now = time.monotonic()
        return not fits or now - self._woken.setdefault((run.name, run.since), now) < _PATIENCE

    def bind(self, tasks: int, width: int) -> tuple[int, ...]:
        if self._kept and tasks == width == 1 and self.cores and not self._turn:
            core = next(iter(self._kept))
            if core in self._free_cores:  # frequent: fast path
                self._kept.remove(core)
                self._held.add(core)
                self._free_cores.remove(core)
                return (core,)
        cores = super().bind(tasks, width)
        self._hold(cores)
        return cores

    def _locked(self) -> set[int]:
        """Return the cores that this run has locked, and which no job holds."""
        return self._free if self._turn else self._kept

    def _choice(self) -> set[int]:
        return self._free_cores & self._locked() if self._counts else super()._choice()

    def _hold(self, cores: Collection[int]) -> None:
        if self._counts:
            self._held.update(cores)
            self._locked().difference_update(cores)

    def take(self, cores: int, gpus: int, memory: int = 0) -> tuple[str, ...]:
        taken = super().take(cores, gpus, memory)
        missing = self.used - len(self._held)
        if missing > 0:  # they are not bound
            self._hold(sorted(self._locked(), reverse=True)[:missing])
        if self._turn:
            for run in self._waiting_runs:
                run.passed += run.since < self._since
            self._since = time.monotonic()
            self._woken.clear()
        return taken

    def hold(
        self, cores: int, gpus: Sequence[str], bound: Collection[int] = (), memory: int = 0
    ) -> tuple[str, ...]:
        if self._counts:
            usable = self._usable()
            others = (core for core in reversed(usable) if core not in bound)
            left = cores
            for core in (*(core for core in usable if core in bound), *others):
                if left > 0 and core not in self._held and self._lock(_CORES + core):
                    self._held.add(core)
                    left -= 1
        held = super().hold(cores, gpus, bound, memory)
        for gpu in held:
            self._lock(_gpu(gpu))
        return held

    def give_back(
        self, cores: int, gpus: Sequence[str], bound: Collection[int] = (), memory: int = 0
    ) -> None:
        super().give_back(cores, gpus, bound, memory)
        for gpu in gpus:
            self._unlock(_gpu(gpu))
            self._released = True
        if not self._counts:
            return
        held = self._held
        for core in bound:
            if core in held:
                held.remove(core)
                self._kept.add(core)  # until `settle`
        while len(held) > self.used:
            core = max(held & self._free_cores or held)  # best one to which no job is bound
            held.remove(core)
            self._kept.add(core)

    # -- wakeups -------------------------------------------------------------------------------

    def _wake(self, name: str) -> bool:
        """Wake the supervisor of another run. Return False if it no longer exists."""
        try:
            self._socket.sendto(b"!", "\0" + name)
        except ConnectionRefusedError:
            return False
        except OSError:  # the socket is full of wakeups
            pass
        return True

    def on_wake(self) -> None:
        """Discard pending wakeups. The next turn chooses jobs anyway."""
        with contextlib.suppress(OSError):
            while self._socket.recv(64):
                pass

    # -- the file ------------------------------------------------------------------------------

    def _lock(self, byte: int, count: int = 1) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, byte)
        except OSError:
            return False
        return True

    def _unlock(self, byte: int, count: int = 1) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, count, byte)

    def _usable(self) -> Sequence[int]:
        """Return the numbers of the cores that this run may use, in ascending order."""
        if self._machine is not None:
            return self._machine
        return self.cores[: self.size] if self.cores else range(self.size)

    def _read(self) -> list[_WaitingRun]:
        try:
            if len(os.pread(self._file, 3, 0)) > len(b"[]"):  # nearly never
                data = os.pread(self._file, 1 << 20, 0)
                return [_WaitingRun(**run) for run in json.loads(data)]
        except (OSError, ValueError, TypeError):  # the file is being written
            pass
        return []

    def _write(self) -> None:
        names = [each.name for each in fields(_WaitingRun)]
        runs = [{name: getattr(run, name) for name in names} for run in self._waiting_runs]
        data = json.dumps(runs).encode()
        with contextlib.suppress(OSError):  # if the disk is full: waiting supervisors also poll
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return ranges of consecutive numbers: the first number of each, and its length.

    >>> _ranges([3, 0, 1])
    [(0, 2), (3, 1)]
    """
    found: list[tuple[int, int]] = []
    first = last = -1
    for number in sorted(numbers):
        if number != last + 1 or first < 0:
            if first >= 0:
                found.append((first, last - first + 1))
            first = number
        last = number
    if first >= 0:
        found.append((first, last - first + 1))
    return found


def _gpu(gpu: str) -> int:
    """Return the byte of a GPU. Its name may be a number or an id such as ``GPU-8932f937``."""
    number = int(gpu) if gpu.isdecimal() else 1 << 16 | zlib.crc32(gpu.encode())
    return _GPUS + number % (1 << 34)
