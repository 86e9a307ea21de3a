"""Lock on a state folder: two services, or two agents, on one would undo each other's work.

Used by ``server`` for the service's state and by ``agent`` for a member's.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ensemble_core import UsageError

__all__ = ["claim"]


def claim(folder: Path, taken: UsageError) -> int:
    """Make the folder and lock it; the descriptor that holds the lock until it is closed.

    Raises :class:`UsageError` where the folder cannot be used, and ``taken`` where another process
    has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"the state folder {folder} cannot be used",
            cause=error.strerror or str(error),
            hint="name another with --state",
            code="bad-state",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise taken from None
    return lock
