"""Removes the folder of a run.

If the folder contains files of other programs, nothing is deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ensemble_core.journal.file_names import NAME, PERFORMED, STOP_MARK
from ensemble_core.journal.filesystem import read_note
from ensemble_core.journal.run_store import BEGAN, HALT, LEAVE, LOCK, STOP

#: Matches the names of files with output of jobs in a run's folder.
_OUTPUT = re.compile(r".+\.\d+(-\d+)?\.(out|err)")
#: The journal, and the files that SQLite creates next to it.
_JOURNAL = (NAME, f"{NAME}-wal", f"{NAME}-shm", f"{NAME}-journal")
_NOTES = (BEGAN, PERFORMED, LOCK, STOP, HALT, LEAVE, STOP_MARK)
#: The first bytes of a journal, and the position of the application id.
_SQLITE, _APPLICATION = b"SQLite format 3\0", slice(68, 72)


def is_run(folder: Path) -> bool:
    """Return True if this folder belongs to a run.

    If the journal is missing or empty, because the run was killed at its start, the folder must
    contain only files that a run creates.
    """
    try:
        header = read_note(folder / NAME)[:72]
    except FileNotFoundError:
        header = b""
    except OSError:
        return False
    if not header:
        known = {*_JOURNAL, *_NOTES, "executor", "output"}
        return {entry.name for entry in folder.iterdir()} <= known
    return header[:16] == _SQLITE and header[_APPLICATION] == b"Ense"


def remove(folder: Path) -> str:
    """Remove the files and folders of a run. Return an empty text, or the reason if that fails.

    The journal is removed last, so that a partially removed folder is still recognised.
    """
    ours: list[Path] = []
    foreign: list[Path] = []
    for path in _walk(folder):
        (ours if _is_run_file(path.relative_to(folder)) else foreign).append(path)
    if foreign:
        others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        return f"Ensemble did not write {foreign[0]}{others}"
    try:
        journal = [folder / name for name in _JOURNAL]
        for path in ours:
            if path not in journal:
                path.unlink(missing_ok=True)
        for where, _, _ in os.walk(folder, topdown=False):
            if Path(where) != folder:
                os.rmdir(where)
        for path in journal:
            path.unlink(missing_ok=True)
        folder.rmdir()
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return ""


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files and links below a folder. Links are not followed."""
    for where, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        yield from (Path(where, name) for name in sorted((*files, *links)))


def _is_run_file(path: Path) -> bool:
    """Return True if Ensemble writes files with this path, which is relative to the run's folder.

    All files below ``executor`` belong to the executor.
    """
    match path.parts:
        case ("executor", _, *_):
            return True
        case ("output", name):
            return _OUTPUT.fullmatch(name) is not None
        case (name,):
            return name in (*_JOURNAL, *_NOTES)
    return False
