"""Lock of a run: one controller at a time owns a run's folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ensemble_core.journal.file_names import JournalError
from ensemble_core.journal.lock_owner import (
    LOCK,
    describe_owner,
    holder,
    may_live,
    same_step,
    this_process,
)
from ensemble_core.posix import lock_within

#: How many seconds to wait for a process that holds the lock only in order to check it.
_TIMEOUT = 0.5
#: How many seconds to wait until a process that has just taken the lock has written its name.
_NAME_TIMEOUT = 10.0
#: Hint for the second of two controllers that one command has started.
_ONE_START = (
    "start one controller: as one task ('srun -n 1 …'), or in one Flux instance over all nodes "
    "('srun --mpi=pmi2 flux start …'; with --mpi=none, each task starts its own instance)"
)


def taken_error(folder: Path) -> JournalError:
    """Return the error of a run that is started while another start creates its folder."""
    named = _wait_for_name(Lock(folder).controller)
    who = "another start of this run" if named is None else describe_owner(named)
    return JournalError(
        f"run {folder.name} has just been started by {who}",
        cause=same_step(named or {}) or f"both use the state folder {folder.parent.parent}",
        hint=_ONE_START,
        code="tag-taken",
    )


def _wait_for_name(find: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """Return what the lock file says about its owner, or ``None`` if it stays empty."""
    deadline = time.monotonic() + _NAME_TIMEOUT
    while (named := find()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return named


class Lock:
    """Lock of a run. One controller holds it until :meth:`release` or until its process ends.

    On file systems without locks (Lustre without ``flock``), the lock file's content decides
    whether the lock is free.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._descriptor: int | None = None

    def acquire(self, *, take_over: bool = False) -> None:
        """Take the lock. Raises :class:`JournalError` that names the current controller of the run.

        On file systems without locks, this cannot check whether a controller on another machine
        still exists. With ``take_over``, the user asserts that it does not.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(
                f"cannot open the lock of this run: {self.path}",
                cause=error.strerror or str(error),
                hint="make the folder writable, or choose another with --state",
                code="unwritable",
            ) from error
        try:
            try:
                lock_within(_TIMEOUT, descriptor)
                locked = True
            except BlockingIOError:
                raise self._refusal(_wait_for_name(self.holder)) from None
            except OSError:
                locked = False  # the file system has no locks
            if not self._is_current(descriptor):
                # Another start of the same run has removed the folder, and may have made it again.
                raise taken_error(self.path.parent)
            other = None if locked or take_over else self.holder()
            if other is not None and may_live(other):
                raise self._refusal(other)
            me = {**this_process(), "locked": locked}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(me).encode(), 0)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise JournalError(
                    f"cannot write the lock of this run: {self.path}",
                    cause=error.strerror or str(error),
                    hint="free some space, or choose another folder with --state",
                    code="full",
                ) from error
            raise
        self._descriptor = descriptor

    def _is_current(self, descriptor: int) -> bool:
        """Return whether this open file is still the lock file."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> Mapping[str, Any] | None:
        """Return the recorded owner, or ``None``. Its process may no longer exist."""
        return holder(self.path)

    def controller(self) -> Mapping[str, Any] | None:
        """Return the current controller of the run, or ``None`` if it has none."""
        named = self.holder()
        if named is None:
            return None
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return named
        except OSError:
            return named if may_live(named) else None
        finally:
            os.close(descriptor)
        return named if not named.get("locked", True) and may_live(named) else None

    def _refusal(self, named: Mapping[str, Any] | None) -> JournalError:
        who, cause = "another controller", None
        hint = f"'ensemble stop {self.path.parent.name}' stops it; then you can resume the run"
        if named is not None:
            who, cause = describe_owner(named), same_step(named)
            if cause is not None:
                hint = _ONE_START
            if named.get("host") != socket.gethostname() and not named.get("locked", True):
                hint += "; if the other controller no longer exists, resume with --take-over"
        return JournalError(
            f"run {self.path.parent.name} is controlled by {who}",
            cause=cause,
            hint=hint,
            code="locked",
        )
