"""Atomic writes of small files: after a crash, a reader finds either the old or the new content."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ensemble_core import private_folder


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
