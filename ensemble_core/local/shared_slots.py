"""Slots that several runs on this machine share, coordinated through a file.

A supervisor locks one byte of the file for each core and GPU that its jobs hold. The content of the
file lists the waiting runs. The run that has waited longest goes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from ensemble_core.local.slots import Slots
from ensemble_core.model.jobs import Job

__all__ = ["SharedSlots"]

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
    passed: int = 0  # how often other runs have overtaken it


class SharedSlots(Slots):
    """Slots of a run that shares a file with other runs.

    Raises :class:`OSError` if the file cannot be opened or locked.
    """

    def __init__(
        self, path: str, size: int, smallest: int, largest: int, gpus: Sequence[str] = ()
    ) -> None:
        super().__init__(size, smallest, largest, gpus)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
        self._unlock(_TURN)
        self._name = f"ensemble-slots-{os.getuid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + self._name)
        self.wake_fd = self._socket.fileno()
        self._held: list[int] = []
        #: The bytes of free cores, and the other waiting runs. Both are set while this run chooses
        #: jobs.
        self._free: list[int] = []
        self._waiting_runs: list[_WaitingRun] = []
        self._since = 0.0
        #: Waiting runs that were woken, each with the time of the first wakeup.
        self._woken: dict[tuple[str, float], float] = {}

    # -- one supervisor at a time --------------------------------------------------------------

    @contextlib.contextmanager
    def choosing(self, next_job: Callable[[], Job | None]) -> Iterator[None]:
        if not self.waiting and next_job() is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
        try:
            written = self._read()
            self._waiting_runs = [run for run in written if run.name != self._name]
            mine = next((run for run in written if run.name == self._name), None)
            self._since = time.monotonic() if mine is None else mine.since
            with self._reserving():
                yield
            job = next_job()
            # A run that has reached its own limit does not wait for slots of other runs.
            self.waiting = job is not None and super().fits(job.cores, job.gpus)
            if job is not None and self.waiting:
                passed = mine.passed if mine is not None and mine.since == self._since else 0
                run = _WaitingRun(self._name, self._since, job.cores, job.gpus, passed)
                self._waiting_runs.append(run)
            if self._waiting_runs or written:
                self._write()
        finally:
            self._unlock(_TURN)

    @contextlib.contextmanager
    def _reserving(self) -> Iterator[None]:
        """Lock all free slots. At the end, unlock those that were not taken."""
        self._free = [byte for byte in self._cores() if self._lock(byte)]
        self.others = max(0, self.size - len(self._held) - len(self._free))
        away = [gpu for gpu in self.free_gpus if not self._lock(self._gpu(gpu))]
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu not in away]
        try:
            yield
        finally:
            for byte in self._free:
                self._unlock(byte)
            for gpu in self.free_gpus:
                self._unlock(self._gpu(gpu))
            self._free = []
            self.free_gpus = sorted([*self.free_gpus, *away], key=self.gpus.index)

    def fits(self, cores: int, gpus: int) -> bool:
        if not super().fits(cores, gpus) or cores > len(self._free):
            return False
        return not any(self._goes_first(run) for run in list(self._waiting_runs))

    def _goes_first(self, run: _WaitingRun) -> bool:
        """Wake a run that goes first. Return True if this run has to wait for it."""
        if run.since >= self._since:
            return False
        fits = run.cores <= len(self._free) and run.gpus <= len(self.free_gpus)
        if not fits and run.passed < max(_PASS_LEAST, _PASS_FACTOR * self.size):
            return False
        if not self._wake(run.name):
            self._waiting_runs.remove(run)  # its supervisor has exited
            return False
        now = time.monotonic()
        return not fits or now - self._woken.setdefault((run.name, run.since), now) < _PATIENCE

    def take(self, cores: int, gpus: int) -> tuple[str, ...]:
        self._held += self._free[:cores]
        del self._free[:cores]
        for run in self._waiting_runs:
            run.passed += run.since < self._since
        self._since = time.monotonic()
        self._woken.clear()
        return super().take(cores, gpus)

    def hold(self, cores: int, gpus: Sequence[str]) -> tuple[str, ...]:
        left = cores
        for byte in self._cores():
            if left > 0 and self._lock(byte):
                self._held.append(byte)
                left -= 1
        held = super().hold(cores, gpus)
        for gpu in held:
            self._lock(self._gpu(gpu))
        return held

    def give_back(self, cores: int, gpus: Sequence[str]) -> None:
        super().give_back(cores, gpus)
        while len(self._held) > self.used:
            self._unlock(self._held.pop())
        for gpu in gpus:
            self._unlock(self._gpu(gpu))
        for run in self._read():
            if run.name != self._name:
                self._wake(run.name)

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

    def _lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    def _cores(self) -> list[int]:
        """Return the bytes of the cores that this run does not hold, the highest first.

        Runs with fewer slots can use only the lowest ones.
        """
        every = range(_CORES + self.size - 1, _CORES - 1, -1)
        return [byte for byte in every if byte not in self._held]

    def _gpu(self, gpu: str) -> int:
        return _GPUS + self.gpus.index(gpu)

    def _read(self) -> list[_WaitingRun]:
        with contextlib.suppress(OSError, ValueError, TypeError):  # the file is being written
            data = os.pread(self._file, 1 << 20, 0)
            return [_WaitingRun(**run) for run in json.loads(data or b"[]")]
        return []

    def _write(self) -> None:
        data = json.dumps([asdict(run) for run in self._waiting_runs]).encode()
        with contextlib.suppress(OSError):  # if the disk is full: waiting supervisors also poll
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))
