"""Folder of a run: its file names, owner, readable files and removal.

A run's journal names files. If another user has written it, it may name private files of the user
who looks at the run, and their content would end up in a report.

This module does not import the journal, so that a run starts its executor before it loads that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.late_pattern import late_pattern

#: Name of the journal's file.
NAME = "journal.db"

#: Name of the file that holds a :class:`Progress` as text. It is not synced, so after a power cut
#: it may lag behind the journal, but it is never ahead of it.
PERFORMED = "performed"

#: Name of an empty file: a stop that could not be written to the journal has cancelled the jobs.
STOP_MARK = "stop-cancels"

#: Name of the file with the start time of a run. Lists of runs can read it quickly, and even if the
#: journal is damaged.
BEGAN = "began"

#: Name of the file that requests the end of a run.
STOP = "stop"
#: Name of the file that requests a stop, after which the run can be resumed.
HALT = "halt"
#: Name of the file that requests that the controller exits even if jobs cannot be cancelled now.
LEAVE = "leave"

#: Name of the lock file, which also names the controller.
LOCK = "lock"

#: Maximum size of a small file in bytes. More is not read.
_MOST = 65_536
#: Matches the names of files with output of jobs in a run's folder.
_OUTPUT = late_pattern(r".+\.\d+(-\d+)?\.(out|err)")
#: The journal, and the files that SQLite creates next to it.
_JOURNAL = (NAME, f"{NAME}-wal", f"{NAME}-shm", f"{NAME}-journal")
_NOTES = (BEGAN, PERFORMED, LOCK, STOP, HALT, LEAVE, STOP_MARK)
#: The first bytes of a journal, and the position of the application id.
_SQLITE, _APPLICATION = b"SQLite format 3\0", slice(68, 72)


class JournalError(EnsembleError):
    """Error: a journal cannot be opened, read or written."""

    exit_code = 2


def read_note(path: Path, most: int = _MOST) -> bytes:
    """Return up to ``most`` bytes of a small file.

    Raises :class:`OSError` if the file cannot be read or is not a regular file. Named pipes and
    devices are not read, because that could block or never end. Links are not followed, and in
    another user's folder the calling user's own files are not read: its owner has put them there to
    have them shown.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() != path.parent.stat().st_uid:
            raise PermissionError(errno.EACCES, "not read in another user's folder", str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.read(descriptor, min(found.st_size, most))
    finally:
        os.close(descriptor)


def is_own(folder: Path) -> bool:
    """Return True if only the calling user can have written this run's folder and journal.

    This matters because reading a run may load plugins that its journal names.
    """
    return all(is_private(path) for path in (folder, folder / NAME) if path.exists())


def is_private(path: Path, *, opened: bool = False) -> bool:
    """Return True if the calling user owns a file or folder and nobody else can write to it.

    The user's group must not be able to write to it, either. If the path is a link, the user must
    also own the link. With ``opened``, this process must have opened this very file.
    """
    status, me = path.stat(), os.geteuid()
    loose = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    private = status.st_uid == path.lstat().st_uid == me and not loose
    return private and (not opened or _is_open(status))


def is_trusted(status: os.stat_result) -> bool:
    """Return True if only the calling user and root can write to a file or folder."""
    loose = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (0, os.geteuid()) and not loose


def require_own(folder: Path) -> None:
    """Raise :class:`UsageError` if another user owns this run or can write to it."""
    if not is_own(folder):
        raise UsageError(
            f"run {folder.name} belongs to another user, or others can write in its folder: "
            f"{folder}",
            hint="run the command as the user who started the run, and let no other user write in "
            "the folder",
            code="not-yours",
        )


class RunFiles:
    """The files that an open run names, such as its jobs' output, and whose run it is.

    Both are decided once, after the run's journal was opened: ``folder`` may be a link that another
    user changes later.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._owner = os.stat(self._folder).st_uid
        #: Whether only the calling user can have written the folder and the open journal.
        self.own = is_private(folder) and is_private(folder / NAME, opened=True)

    def open(self, path: Path, *, follow: bool = True) -> BinaryIO:
        """Open a file that the run names.

        In a run that another user can have written, only files of the run's owner are opened; if
        that owner is the calling user, only files below the run's folder. Raises :class:`OSError`
        if the file is not a regular file, cannot be read, or must not be read. Without ``follow``,
        it is not read if it is a link.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
        file = os.fdopen(descriptor, "rb")
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
            if not self.own and not self._belongs(descriptor, status.st_uid):
                text = "not read: other users can write this run, and the file is not part of it"
                raise PermissionError(errno.EACCES, text, os.fspath(path))
        except BaseException:
            file.close()
            raise
        return file

    def _belongs(self, descriptor: int, owner: int) -> bool:
        if owner != self._owner or owner != os.geteuid():
            return owner == self._owner
        # Look at the opened file: the path may lead elsewhere by now.
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(self._folder)


def _is_open(status: os.stat_result) -> bool:
    """Return True if this process has opened this file."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if os.path.samestat(os.fstat(int(name)), status):
                return True
    return False


def is_run_folder(folder: Path) -> bool:
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


def remove_run_folder(folder: Path) -> str:
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
