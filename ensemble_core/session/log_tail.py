"""Reads the end of a job's log file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core.journal.run_folder import RunFiles


def log_tail(start: Mapping[str, Any], stream: str, most: int, files: RunFiles) -> dict[str, Any]:
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
        with files.open(path, follow=False) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            found["text"], found["size"] = file.read(most).decode("utf-8", "replace"), size
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL
        reason = error.strerror if isinstance(error, OSError) else None
        found["problem"] = f"its file cannot be read: {reason or error}"
    return found
