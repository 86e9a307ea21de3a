"""Processes of this machine, from ``/proc``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["process_files", "processes_of_session"]


def process_files(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the id of each process and the content of its file, such as ``environ``.

    A process that ends meanwhile, or whose file cannot be read, is left out.
    """
    # A pattern such as ``[0-9]*/environ`` raises ProcessLookupError if a process ends meanwhile.
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            content = (folder / name).read_bytes()
        except OSError:
            continue
        yield int(folder.name), content


def processes_of_session(session: int) -> list[int]:
    """Return the ids of a session's processes without those that are dead but not reaped."""
    found = []
    for pid, stat in process_files("stat"):
        words = stat.rpartition(b")")[2].split()
        if int(words[3]) == session and words[0] != b"Z":
            found.append(pid)
    return found
