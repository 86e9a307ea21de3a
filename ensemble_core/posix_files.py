"""Locks and durability of files, for journals and for the ledgers of local jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

__all__ = ["lock_within", "sync_folder"]


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
