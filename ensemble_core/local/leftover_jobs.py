"""Counts and ends the local jobs of a run whose journal cannot be read.

Instead of the journal, it uses the executor's files in the run's folder.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from ensemble_core.errors import ExecutorError
from ensemble_core.local.ledger import NAME, LedgerJob
from ensemble_core.local.ledger_reader import ledger_messages
from ensemble_core.local.supervisor import peer
from ensemble_core.local.supervisor_start import SECRET, address
from ensemble_core.plugin.executor import Executor, Run
from ensemble_core.posix import boot_id

#: How many seconds to wait, after the longest ``grace``, until a supervisor has ended its jobs, and
#: then until it exits.
_ENDING = 120.0
#: Seconds between two looks at the ledger.
_LOOK = 0.1


def leftover_jobs(tag: str, state: Path, ending: Executor | None) -> int:
    """Return how many jobs of the run may be alive, and end them if an executor is given.

    The executor must not be open. Raises :class:`ExecutorError` if the jobs do not end.
    """
    supervisor = supervisor_pid(state)
    unfinished = _unfinished(state / NAME)
    running = [name for name, job in unfinished.items() if job.launched]
    count = max(1, len(unfinished)) if supervisor else len(running)
    if ending is not None and count:
        # If it has none, a new supervisor ends the jobs of the previous one.
        ending.open(Run(tag, state.parent / "output", time.time, state), lambda events: None)
        supervisor = supervisor_pid(state)
        unfinished = _unfinished(state / NAME)
        ending.cancel(list(unfinished))
        _wait_for_ends(state, unfinished)
        ending.close()  # this kills jobs whose ``grace`` is not over
        _wait_for_exit(tag, state, supervisor)
    return count


def _wait_for_ends(state: Path, jobs: dict[str, LedgerJob]) -> None:
    """Wait until those of these jobs that may run are over. The others have nothing to end."""
    running = {name for name, job in jobs.items() if job.launched}
    graces = ((jobs[name].data or {}).get("grace") or 0.0 for name in running)
    deadline = time.monotonic() + max(graces, default=0.0) + _ENDING
    while running.intersection(_unfinished(state / NAME)) and time.monotonic() < deadline:
        if not supervisor_pid(state):
            return
        time.sleep(_LOOK)


def _wait_for_exit(tag: str, state: Path, supervisor: int) -> None:
    deadline = time.monotonic() + _ENDING
    while supervisor_pid(state):
        if time.monotonic() > deadline:
            raise ExecutorError(
                f"the jobs of run {tag} have not ended within {_ENDING:g} s",
                cause=f"their supervisor, process {supervisor}, was asked to end them",
                hint="wait until their processes have ended, and repeat the command",
                code="no-supervisor",
            )
        time.sleep(0.05)


def supervisor_pid(state: Path) -> int:
    """Return the process id of the run's supervisor, or 0 if this user has none."""
    if not (state / SECRET).exists():
        return 0
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect("\0" + address("", state))
            pid, uid = peer(sock)
        except OSError:
            return 0
    return pid if uid == os.getuid() else 0


def _unfinished(ledger: Path) -> dict[str, LedgerJob]:
    """Return the jobs in a ledger that are not over. ``launched`` ones may run on this machine."""
    jobs: dict[str, LedgerJob] = {}
    try:
        data = ledger.read_bytes()
    except OSError:
        return {}
    for message in ledger_messages(data):
        if message is None:
            continue  # a damaged line
        try:
            if message[0] == "k":
                if message[1] == os.uname().nodename and message[2] != boot_id():
                    for job in jobs.values():
                        job.launched = False  # no job survives a reboot
            elif message[0] == "f":
                for name in message[1]:
                    jobs.pop(name, None)
            elif message[0] == "e" and message[3] == "clean":
                jobs.pop(message[1], None)
            elif message[0] == "e":
                job = jobs.setdefault(message[1], LedgerJob())
                job.launched = job.launched or message[3] in ("alloc", "start")
                job.take(message)
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # a damaged line
    return jobs
