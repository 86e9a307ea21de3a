"""Owner of a run's lock: the process that the lock file names, and whether it may be alive.

Used by ``run_store``, whose ``Lock`` writes the file, and by ``database``.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core.journal.filesystem import read_note

__all__ = ["LOCK", "holder", "in_words", "is_here", "may_live", "this_process"]

#: The lock's name in a run's folder.
LOCK = "lock"

#: Largest time that can be shown as a date (year 9999).
_MOST_SECONDS = 2.5e11


def this_process() -> dict[str, Any]:
    """Return the description of this process for a lock."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _start_time(os.getpid()),
        "boot": _boot(),
        "processes": _pid_namespace(),
        "since": time.time(),
    }


def holder(lock: Path) -> Mapping[str, Any] | None:
    """Return the present or last owner of a lock, or ``None`` if the lock file names no process."""
    try:
        found = json.loads(read_note(lock))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_process(found) else None


def _is_process(found: Mapping[str, Any]) -> bool:
    """Return True if ``found``, which another user may have written, describes a process."""
    since, host = found.get("since", 0), found.get("host", "")
    return (
        type(found.get("pid", 0)) is int
        and type(since) in (int, float)
        and 0 <= since < _MOST_SECONDS
        and isinstance(host, str)
        and host.isprintable()
    )


def may_live(holder: Mapping[str, Any]) -> bool:
    """Return True if this controller may be alive, according to what this machine can find out."""
    same_boot = holder.get("boot") == _boot() != ""
    # The host name may have changed, so also compare the boot id and the PID namespace.
    if holder.get("host") != socket.gethostname() and not (
        same_boot and holder.get("processes") == _pid_namespace()
    ):
        return True
    if not same_boot:
        return False
    born = _start_time(int(holder.get("pid", 0)))
    return born is not None and born == holder.get("born")


def is_here(holder: Mapping[str, Any]) -> bool:
    """Return True if this process is the owner."""
    mine = this_process()
    return all(holder.get(key) == mine[key] for key in ("pid", "born", "boot", "processes"))


def in_words(holder: Mapping[str, Any]) -> str:
    """Return an owner as text for messages."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')} since {since}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    """Return the PID namespace, which differs between containers of a machine."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Return when a local process started (ticks since boot), or ``None`` if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
