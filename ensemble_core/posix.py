"""Locks, durable folders, and the identity of this boot and container, for journals and for the
ledgers of local jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time


def lock_within(seconds: float, descriptor: int) -> None:
    """Lock a file exclusively. Wait this long for a process that is about to release the lock.

    Raises :class:`BlockingIOError` if another process still holds it then, and another
    :class:`OSError` if the file system has no locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Sync a folder, if the file system supports it, so that new names in it survive a power
    cut.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Return the boot id of this machine, new at each boot, or an empty text if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the PID namespace, which distinguishes containers on the same machine."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
