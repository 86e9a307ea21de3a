"""Slots that several runs of this machine share: one file, one line of runs that wait.

Each supervisor locks a byte of the file for each core and GPU that its jobs hold, so that what one
that was killed held is free at once. Who waits stands in the file, with the time of what it was
given last: who has waited longest goes first, and is rung when something becomes free. One
supervisor chooses at a time. A run alone has all slots.
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

#: Where bytes begin that stand for cores and for GPUs, far behind what is written in the file; and
#: the one that is held while a supervisor chooses.
_CORES, _GPUS, _TURN = 1 << 28, 1 << 29, 1 << 27
#: How many jobs may pass one that waits and does not fit: at least, and for each core.
_PASS_LEAST, _PASS_FACTOR = 8, 2
#: Seconds for which one that was rung is waited for; it may be stopped.
_PATIENCE = 10.0


@dataclass(slots=True)
class _Line:
    """A run that waits: its socket's name, since when (monotonic seconds), what its next job needs,
    and how often others passed it."""

    name: str
    since: float
    cores: int
    gpus: int
    passed: int = 0


class SharedSlots(Slots):
    """Slots of one run among those of others with the same file. Raises :class:`OSError` where the
    file cannot be had or locked."""

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
        self.bell = self._socket.fileno()
        self._held: list[int] = []
        #: While this run chooses: free bytes of cores, and the lines of the others.
        self._free: list[int] = []
        self._lines: list[_Line] = []
        self._since = 0.0
        #: Lines that were rung, and when first.
        self._rung: dict[tuple[str, float], float] = {}

    # -- one supervisor at a time --------------------------------------------------------------

    @contextlib.contextmanager
    def choosing(self, next_job: Callable[[], Job | None]) -> Iterator[None]:
        if not self.waiting and next_job() is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
        try:
            written = self._read()
            self._lines = [line for line in written if line.name != self._name]
            mine = next((line for line in written if line.name == self._name), None)
            self._since = time.monotonic() if mine is None else mine.since
            with self._reserving():
                yield
            job = next_job()
            # Who has all the slots it may have waits for nobody.
            self.waiting = job is not None and super().fits(job.cores, job.gpus)
            if job is not None and self.waiting:
                passed = mine.passed if mine is not None and mine.since == self._since else 0
                line = _Line(self._name, self._since, job.cores, job.gpus, passed)
                self._lines.append(line)
            if self._lines or written:
                self._write()
        finally:
            self._unlock(_TURN)

    @contextlib.contextmanager
    def _reserving(self) -> Iterator[None]:
        """Lock all that is free, and let go afterwards what was not taken."""
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
        return not any(self._goes_first(line) for line in list(self._lines))

    def _goes_first(self, line: _Line) -> bool:
        """True if this run has to wait for that one; it is rung then."""
        if line.since >= self._since:
            return False
        fits = line.cores <= len(self._free) and line.gpus <= len(self.free_gpus)
        if not fits and line.passed < max(_PASS_LEAST, _PASS_FACTOR * self.size):
            return False
        if not self._ring(line.name):
            self._lines.remove(line)  # its supervisor has gone
            return False
        now = time.monotonic()
        return not fits or now - self._rung.setdefault((line.name, line.since), now) < _PATIENCE

    def take(self, cores: int, gpus: int) -> tuple[str, ...]:
        self._held += self._free[:cores]
        del self._free[:cores]
        for line in self._lines:
            line.passed += line.since < self._since
        self._since = time.monotonic()
        self._rung.clear()
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
        for line in self._read():
            if line.name != self._name:
                self._ring(line.name)

    # -- the bell ------------------------------------------------------------------------------

    def _ring(self, name: str) -> bool:
        """Wake another run's supervisor; false where it is gone."""
        try:
            self._socket.sendto(b"!", "\0" + name)
        except ConnectionRefusedError:
            return False
        except OSError:  # it was rung often and has not looked yet
            pass
        return True

    def rung(self) -> None:
        """The bell has rung: the turn that follows chooses."""
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
        """The bytes of cores that this run does not hold. The highest first: those of a run with
        fewer slots are the lowest."""
        every = range(_CORES + self.size - 1, _CORES - 1, -1)
        return [byte for byte in every if byte not in self._held]

    def _gpu(self, gpu: str) -> int:
        return _GPUS + self.gpus.index(gpu)

    def _read(self) -> list[_Line]:
        with contextlib.suppress(OSError, ValueError, TypeError):  # written in this moment
            data = os.pread(self._file, 1 << 20, 0)
            return [_Line(**line) for line in json.loads(data or b"[]")]
        return []

    def _write(self) -> None:
        data = json.dumps([asdict(line) for line in self._lines]).encode()
        with contextlib.suppress(OSError):  # disk full: waiting supervisors poll anyway
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))
