"""Reads the end of a job's log file."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["log_tail"]


def log_tail(start: Mapping[str, Any], stream: str, most: int) -> dict[str, Any]:
    """Return the last ``most`` bytes of a job's log file as ``text``, and the file's ``size``.

    ``start`` is the context of the job's start event, and ``stream`` is ``stdout`` or ``stderr``.
    If the file cannot be read, ``problem`` says why.
    """
    found: dict[str, Any] = {"text": "", "size": None, "problem": ""}
    if not start.get(stream):
        found["problem"] = (
            "its output is not in a file" if start.get("started") else "it has not started"
        )
        return found
    path = Path(str(start.get("workdir") or "."), str(start[stream]))
    try:
        found["text"], found["size"] = _read_end(path, most)
    except OSError as error:
        found["problem"] = f"its file cannot be read: {error.strerror or error}"
    return found


def _read_end(path: Path, most: int) -> tuple[str, int]:
    """Return the last ``most`` bytes of a regular file, and its size. Links are not followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        file.seek(max(0, status.st_size - most))
        return file.read(most).decode("utf-8", "replace"), status.st_size
