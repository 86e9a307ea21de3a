"""Tasks for peers, and descriptions of peers: shared by the files of all peers.

Each file ``run_NAME.py`` describes its peer as ``PEER``. Started as a program, it runs a
:class:`Task` with the peer, which must be installed in its environment. It imports the peer's
packages only then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """``count`` jobs of one command, ``slots`` at a time.

    In a ``chain``, each job starts when the previous one has ended. ``{i}`` in the command is the
    number of the job. A ``durable`` task can be resumed in the same folder if the peer supports
    that; ``resume`` marks a resume.
    """

    count: int
    slots: int
    folder: str
    command: tuple[str, ...]
    chain: bool = False
    durable: bool = False
    resume: bool = False

    def words(self, number: int, *_: object) -> list[str]:
        return [word.replace("{i}", str(number)) for word in self.command]

    def run(self, number: int, *_: object) -> int:
        """Run one job as a child of this process: for peers that call Python functions."""
        return subprocess.run(self.words(number), check=True, close_fds=False).returncode


@dataclass(frozen=True)
class Peer:
    """A peer: PyPI packages, how it was set up and why that is fair.

    ``output`` and ``durable``: what it keeps of jobs in tasks that are not ``durable``.
    ``objection``: what its maintainer would object to in the comparison; ``answer``: our reply.
    """

    name: str
    packages: tuple[str, ...]
    settings: str
    output: str = "none"
    durable: str = "no"
    objection: str = ""
    answer: str = ""
    #: Works that it does not support, by letter, with the reason.
    cannot: tuple[tuple[str, str], ...] = ()
    #: Divisor of the number of jobs in works a, b and d, if these would take too long.
    fewer: int = 1


def main(run: Callable[[Task], None]) -> None:
    """Run the task in the first argument; write this process's peak memory to a file next to it."""
    given = json.loads(sys.argv[1])
    task = Task(**{**given, "command": tuple(given["command"])})
    run(task)
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            Path(task.folder, "peak_kb").write_text(line.split()[1], encoding="ascii")


def command(python: Sequence[str], name: str, task: Task) -> list[str]:
    """Return the command line that runs a task with a peer."""
    file = Path(__file__).with_name(f"run_{name.replace('-', '_')}.py")
    return [*python, str(file), json.dumps(asdict(task))]
