"""Jobs of a run that has no journal any more: counted and ended by what the executor itself kept.

The supervisor is found as a controller finds it; where it is gone, the ledger says which jobs had
begun. Called through the executor's record, by commands that cannot read a run's journal.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from ensemble_core.errors import ExecutorError
from ensemble_core.local.ledger import NAME, boot
from ensemble_core.local.ledger_lines import checked
from ensemble_core.local.protocol import decode
from ensemble_core.local.supervisor import peer
from ensemble_core.local.supervisor_client import SECRET, address
from ensemble_core.plugin.executor import Executor, Run

__all__ = ["leftover_jobs"]

#: Seconds that the jobs of a supervisor that was told to end may take.
_ENDING = 120.0


def leftover_jobs(tag: str, state: Path, ending: Executor | None) -> int:
    """How many jobs of the run may be alive. With an executor, which is not open yet, they are
    ended, and waited for.

    Raises :class:`ExecutorError` where they do not end.
    """
    supervisor = _supervisor(tag, state)
    waiting, begun = _unfinished(state / NAME)
    count = max(1, waiting + begun) if supervisor else begun
    if ending is not None and count:
        if not supervisor:  # one that knows the ledger ends what its predecessor has left
            ending.open(Run(tag, state.parent / "output", time.time, state), lambda events: None)
            supervisor = _supervisor(tag, state)
            _tell_to_end(tag, state, supervisor)
            ending.close()
        else:
            _tell_to_end(tag, state, supervisor)
    return count


def _tell_to_end(tag: str, state: Path, supervisor: int) -> None:
    if supervisor:
        os.kill(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + _ENDING
    while _supervisor(tag, state):
        if time.monotonic() > deadline:
            raise ExecutorError(
                f"the jobs of run {tag} do not end",
                cause=f"their supervisor, process {supervisor}, was told to end them",
                code="no-keeper",
            )
        time.sleep(0.05)


def _supervisor(tag: str, state: Path) -> int:
    """Return the process id of the run's supervisor; 0 if this user has none."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect("\0" + address(tag, state if (state / SECRET).exists() else None))
            pid, uid = peer(sock)
        except OSError:
            return 0
    return pid if uid == os.getuid() else 0


def _unfinished(ledger: Path) -> tuple[int, int]:
    """How many jobs of a ledger wait, and how many have begun and may run yet on this machine."""
    jobs: dict[str, bool] = {}
    try:
        lines = ledger.read_bytes().splitlines(keepends=True)
    except OSError:
        return 0, 0
    for raw in lines:
        try:
            message = decode(checked(raw, True).decode("ascii"))
            if message[0] == "k":
                if message[1] == os.uname().nodename and message[2] != boot():
                    jobs = dict.fromkeys(jobs, False)  # nothing outlives the machine's end
            elif message[0] == "f":
                for name in message[1]:
                    jobs.pop(name, None)
            elif message[0] == "e" and message[3] == "clean":
                jobs.pop(message[1], None)
            elif message[0] == "e":
                now = message[3] in ("alloc", "start")
                jobs[message[1]] = now or jobs.get(message[1], False)
        except (ValueError, LookupError, TypeError):
            continue  # damaged
    begun = sum(jobs.values())
    return len(jobs) - begun, begun
