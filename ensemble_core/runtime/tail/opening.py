"""Opens followed files, and asks for their state, without waiting for FIFOs and stale caches."""

from __future__ import annotations

import math
import os
import stat
from contextlib import suppress

#: By how many seconds the kernel's clock for files may be behind (a tick is 10 ms).
_TICK = 0.02


def open_to_read(path: str) -> int:
    """Open a file, and return its descriptor."""
    # O_NONBLOCK is needed because a FIFO may have replaced the file.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def status_of(path: str, *, cached: bool) -> os.stat_result:
    """Return the state of a file. If its file system has ``cached`` states, open the file."""
    status = os.stat(path)
    if not cached or not stat.S_ISREG(status.st_mode):
        return status
    try:
        fd = open_to_read(path)
    except PermissionError:  # reported when the file is read
        return status
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def list_folder(path: str) -> None:
    """List the folder of a file.

    This makes NFS ask the server again. Otherwise, it may remember for some time that the file is
    missing.
    """
    # If the folder cannot be listed, the file does not exist either.
    with suppress(OSError, ValueError), os.scandir(os.path.dirname(path)) as entries:
        next(entries, None)


def is_older(status: os.stat_result, since: float | None) -> bool:
    """Return True if a file was last written before this time, in seconds since the epoch."""
    if since is None:
        return False
    # Some file systems, such as Lustre, store whole seconds only.
    exact = status.st_mtime_ns % 10**9
    return status.st_mtime < (since - _TICK if exact else math.floor(since - _TICK))
