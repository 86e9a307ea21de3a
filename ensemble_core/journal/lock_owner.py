"""Holder of a run: the process that the lock in its folder names, and whether that may live.

Used by ``run_store``, whose ``Lock`` writes it, and by ``database``.
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

#: Later times have no date (year 9999).
_MOST_SECONDS = 2.5e11


def this_process() -> dict[str, Any]:
    """This process as a lock names it."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "boot": _boot(),
        "processes": _processes(),
        "since": time.time(),
    }


def holder(lock: Path) -> Mapping[str, Any] | None:
    """Return a lock's record of its present or last owner; ``None`` if it has none."""
    try:
        found = json.loads(read_note(lock))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_process(found) else None


def _is_process(found: Mapping[str, Any]) -> bool:
    """True if it is what a process writes of itself: the folder may be a stranger's."""
    since, host = found.get("since", 0), found.get("host", "")
    return (
        type(found.get("pid", 0)) is int
        and type(since) in (int, float)
        and 0 <= since < _MOST_SECONDS
        and isinstance(host, str)
        and host.isprintable()
    )


def may_live(holder: Mapping[str, Any]) -> bool:
    """True if this controller may still be there, as far as this machine can tell."""
    same_boot = holder.get("boot") == _boot() != ""
    # A machine may have been given another name since; its boot and its processes tell.
    if holder.get("host") != socket.gethostname() and not (
        same_boot and holder.get("processes") == _processes()
    ):
        return True
    if not same_boot:
        return False
    born = _born(int(holder.get("pid", 0)))
    return born is not None and born == holder.get("born")


def is_here(holder: Mapping[str, Any]) -> bool:
    """True if this process is the holder."""
    mine = this_process()
    return all(holder.get(key) == mine[key] for key in ("pid", "born", "boot", "processes"))


def in_words(holder: Mapping[str, Any]) -> str:
    """A holder as messages name it."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')} since {since}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _processes() -> str:
    """The namespace of process ids: containers of one machine have one each."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _born(pid: int) -> int | None:
    """Return when a local process started (ticks since boot); ``None`` if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
