"""Owner of a run's lock: which process the lock file names, and whether it may still be alive."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core.journal.filesystem import read_note
from ensemble_core.posix import boot_id, pid_namespace

#: Name of the lock file in a run's folder.
LOCK = "lock"

#: Largest time that can be shown as a date (in the year 9999).
_MOST_SECONDS = 2.5e11
#: How many ancestors of a process are searched for variables of a parallel program.
_MOST_ANCESTORS = 6
#: Name of a parallel program, and variables that identify it; the last one is the task's rank.
_PARALLEL = (
    ("step {0}.{1} of Slurm", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
    ("Flux job {0}", "FLUX_JOB_ID", "FLUX_TASK_RANK"),
)


def this_process() -> dict[str, Any]:
    """Describe this process, for a lock file."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _start_time(os.getpid()),
        "boot": boot_id(),
        "processes": pid_namespace(),
        "since": time.time(),
        "task": _task(),
    }


def holder(lock: Path) -> Mapping[str, Any] | None:
    """Return the current or last owner of a lock, or ``None`` if the lock file names no process."""
    try:
        found = json.loads(read_note(lock))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_process(found) else None


def _is_process(found: Mapping[str, Any]) -> bool:
    """Return True if this content of a lock file describes a process.

    Another user may have written it.
    """
    since, host = found.get("since", 0), found.get("host", "")
    return (
        type(found.get("pid", 0)) is int
        and type(since) in (int, float)
        and 0 <= since < _MOST_SECONDS
        and isinstance(host, str)
        and host.isprintable()
    )


def may_live(holder: Mapping[str, Any]) -> bool:
    """Return True if this process may be alive, as far as this machine can tell."""
    same_boot = holder.get("boot") == boot_id() != ""
    # Also compare the boot id and the PID namespace, because the host name may have changed.
    if holder.get("host") != socket.gethostname() and not (
        same_boot and holder.get("processes") == pid_namespace()
    ):
        return True
    if not same_boot:
        return False
    born = _start_time(int(holder.get("pid", 0)))
    return born is not None and born == holder.get("born")


def is_suspended(holder: Mapping[str, Any]) -> bool:
    """Return True if a signal is known to have suspended this process, as Ctrl-Z does."""
    stat = _stat(int(holder.get("pid", 0))) if may_live(holder) else None
    return stat is not None and stat[0] == b"T" and int(stat[19]) == holder.get("born")


def is_this_process(holder: Mapping[str, Any]) -> bool:
    """Return True if the owner is this process."""
    mine = this_process()
    return all(holder.get(key) == mine[key] for key in ("pid", "born", "boot", "processes"))


def describe_owner(holder: Mapping[str, Any]) -> str:
    """Describe the owner of a lock for messages."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')} since {since}"


def same_step(holder: Mapping[str, Any]) -> str | None:
    """Return an explanation if the owner and this process are two tasks of one parallel program."""
    mine, other = _task(), holder.get("task")
    if not mine or not isinstance(other, list) or len(other) != 2 or other[0] != mine[0]:
        return None
    if other[1] == mine[1]:
        return None
    return f"{mine[0]} runs the command once per task: this is task {mine[1]}"


def _task() -> list[str]:
    """Return the parallel program that this process is a task of, and its rank, or an empty list.

    Flux removes Slurm's variables from the program that it starts, so ancestors are read too.
    """
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            break
        found = dict(os.fsdecode(entry).partition("=")[::2] for entry in entries)
        for shown, *names in _PARALLEL:
            values = [found.get(name, "") for name in names]
            if all(value.isalnum() for value in values):
                return [shown.format(*values), values[-1]]
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        if pid <= 1:
            break
    return []


def _stat(pid: int) -> list[bytes] | None:
    """Return what ``/proc`` says about a local process, from its state on, or ``None`` if it does
    not exist.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat[stat.rindex(b")") + 2 :].split()


def _start_time(pid: int) -> int | None:
    """Return when a local process started (in ticks since boot)."""
    stat = _stat(pid)
    return None if stat is None else int(stat[19])
