"""Processes and ports of this machine, for tests.

:class:`Allocation` is a process tree that can be ended as a queue ends an allocation.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ensemble_testing.session import wait_until

#: Seconds until a child that hangs is aborted.
_LONGEST = 600.0


def process_files(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the id of each process and the content of its file, such as ``environ``.

    A process that ends meanwhile, or whose file cannot be read, is left out.
    """
    # A pattern such as ``[0-9]*/environ`` raises ProcessLookupError if a process ends meanwhile.
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            content = (folder / name).read_bytes()
        except OSError:
            continue
        yield int(folder.name), content


def processes_of_session(session: int) -> list[int]:
    """Return the ids of a session's processes without those that are dead but not reaped."""
    found = []
    for pid, stat in process_files("stat"):
        words = stat.rpartition(b")")[2].split()
        if int(words[3]) == session and words[0] != b"Z":
            found.append(pid)
    return found


def run_and_kill(control: Callable[[], None], trace: Path) -> None:
    """Run ``control`` in a child process, which is killed at the end.

    Raise :class:`AssertionError` if it raises an error or hangs for ten minutes; the error shows
    what its threads were doing. A fork can hang: a lock that another thread of this process held
    stays locked in it.
    """
    with trace.open("w") as errors:
        child = os.fork()
        if child == 0:
            try:
                faulthandler.enable(errors)
                control()
            except BaseException:  # also pytest's own exceptions: nothing may leave this function
                with contextlib.suppress(Exception):
                    traceback.print_exc(file=errors)
                    errors.flush()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        stuck = time.monotonic() + _LONGEST
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
            if time.monotonic() > stuck:
                os.kill(child, signal.SIGABRT)
                stuck += 10
    assert not (shown := trace.read_text()), shown


#: Adopts all orphans of a command, and exits after the last of them with the command's exit code.
_PARENT = """
import ctypes, os, signal, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
command = subprocess.Popen(sys.argv[1:])
code = None
while True:
    try:
        process, status = os.wait()
    except ChildProcessError:
        break
    if process == command.pid:
        code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
"""


class Allocation:
    """A command with all its descendants, also those that have become daemons.

    Jobs that a queue starts elsewhere are not among them.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        output: IO[Any] | int = subprocess.DEVNULL,
    ) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-S", "-c", _PARENT, *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def processes(self) -> dict[int, str]:
        """Return the live processes, each with its command line."""
        parents: dict[int, int] = {}
        for process, stat in process_files("stat"):
            words = stat.rpartition(b")")[2].split()
            if words[0] not in b"ZX":
                parents[process] = int(words[1])
        found: dict[int, str] = {}
        for process in parents:
            above: int | None = parents[process]
            while above and above != self.parent.pid:
                above = parents.get(above)
            if above:
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{process}/cmdline").read_bytes()
                    found[process] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def send(self, processes: Sequence[int], number: int = signal.SIGTERM) -> None:
        """Send a signal to these processes, as far as they exist."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def end(self, chance: random.Random, number: int = signal.SIGTERM, pause: float = 0.05) -> None:
        """Send a signal to every process, in random order.

        Between two processes, pause up to ``pause`` seconds.
        """
        processes = list(self.processes())
        chance.shuffle(processes)
        for process in processes:
            self.send([process], number)
            time.sleep(chance.choice((0.0, chance.uniform(0.0, pause))))

    def wait_over(self, timeout: float = 100.0) -> int:
        """Wait until no process is left. Return the command's exit code: 128 + N for signal N."""
        try:
            return self.parent.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"these processes have outlived the allocation: {self.processes()}"
            ) from None

    def kill(self) -> None:
        """Kill all processes that are left."""
        while self.parent.poll() is None:
            self.send(list(self.processes()), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.parent.wait(0.1)

    def wait_for(self, file: Path, lines: int) -> None:
        """Wait until a file has this many lines."""
        wait_until(lambda: file.exists() and len(file.read_text().splitlines()) >= lines, 100.0)


#: Linux gives higher ports to connections, which could take one before the server starts.
_PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports on which nobody listens."""
    chance = random.SystemRandom()  # other tests may have the same seed
    found: set[int] = set()
    while len(found) < count:
        port = chance.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return [*found]
