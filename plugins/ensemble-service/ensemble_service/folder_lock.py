"""Lock on a state folder, so that two services or agents do not share one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ensemble_core import UsageError, private_folder


def claim(folder: Path, taken: UsageError) -> int:
    """Create and lock the folder. Return the descriptor that holds the lock until it is closed.

    Raises ``taken`` if the folder is locked already, and another :class:`UsageError` if the folder
    cannot be used.
    """
    try:
        private_folder(folder)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot use the state folder {folder}",
            cause=error.strerror or str(error),
            hint="choose another folder with --state",
            code="bad-state",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise taken from None
    return lock
