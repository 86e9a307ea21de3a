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

__all__ = ["LOCK", "describe_owner", "holder", "is_this_process", "may_live", "this_process"]

#: Name of the lock file in a run's folder.
LOCK = "lock"

#: Largest time that can be shown as a date (in the year 9999).
_MOST_SECONDS = 2.5e11


def this_process() -> dict[str, Any]:
    """Describe this process, for a lock file."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _start_time(os.getpid()),
        "boot": _boot(),
        "processes": _pid_namespace(),
        "since": time.time(),
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
    same_boot = holder.get("boot") == _boot() != ""
    # Also compare the boot id and the PID namespace, because the host name may have changed.
    if holder.get("host") != socket.gethostname() and not (
        same_boot and holder.get("processes") == _pid_namespace()
    ):
        return True
    if not same_boot:
        return False
    born = _start_time(int(holder.get("pid", 0)))
    return born is not None and born == holder.get("born")


def is_this_process(holder: Mapping[str, Any]) -> bool:
    """Return True if the owner is this process."""
    mine = this_process()
    return all(holder.get(key) == mine[key] for key in ("pid", "born", "boot", "processes"))


def describe_owner(holder: Mapping[str, Any]) -> str:
    """Describe the owner of a lock for messages."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')} since {since}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    """Return the PID namespace, which distinguishes containers on the same machine."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Return when a local process started (in ticks since boot), or ``None`` if it does not
    exist.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
