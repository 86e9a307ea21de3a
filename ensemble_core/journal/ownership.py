"""Whose run a folder is, and which files may be read for it.

A run's journal names files. If another user has written it, it may name private files of the user
who looks at the run, and their content would end up in a report.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ensemble_core.errors import UsageError
from ensemble_core.journal.file_names import NAME


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
