"""Process tree that can be ended as a queue ends an allocation: a signal to every process of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ensemble_testing.session import wait_until

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
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                words = path.read_text(errors="replace").rpartition(")")[2].split()
                if words[0] not in "ZX":
                    parents[int(path.parent.name)] = int(words[1])
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
