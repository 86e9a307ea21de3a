"""State folder of a service or an agent: its lock, and atomic writes of small files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from ensemble_core import UsageError, private_folder


def lock_folder(folder: Path, taken: UsageError) -> int:
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


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to a file that only its owner can read, and sync the file to disk.

    Creates the folder if it is missing. After an :class:`OSError`, the old file is unchanged.
    """
    private_folder(path.parent)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "wb") as file:  # mkstemp makes files of mode 0600
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
