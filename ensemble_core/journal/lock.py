"""Lock of a run: one controller at a time owns a run's folder.

The lock file names the process that holds the lock. Another process can ask whether it may still be
alive.
"""

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

from ensemble_core.journal.run_folder import LOCK, JournalError, read_note
from ensemble_core.posix import boot_id, lock_within, pid_namespace

#: How many seconds to wait for a process that holds the lock only in order to check it.
_TIMEOUT = 0.5
#: How many seconds to wait until a process that has just taken the lock has written its name.
_NAME_TIMEOUT = 10.0
#: Hint for the second of two controllers that one command has started.
_ONE_START = (
    "start one controller: as one task ('srun -n 1 …'), or in one Flux instance over all nodes "
    "('srun --mpi=pmi2 flux start …'; with --mpi=none, each task starts its own instance)"
)
#: Largest time that can be shown as a date (in the year 9999).
_MOST_SECONDS = 2.5e11
#: How many ancestors of a process are searched for variables of a parallel program.
_MOST_ANCESTORS = 6
#: Name of a parallel program, and variables that identify it; the last one is the task's rank.
_PARALLEL = (
    ("step {0}.{1} of Slurm", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
    ("Flux job {0}", "FLUX_JOB_ID", "FLUX_TASK_RANK"),
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


def this_process() -> dict[str, Any]:
    """Describe this process, for a lock file."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _start_time(os.getpid()),
        "boot": boot_id(),
        "processes": pid_namespace(),
        "since": time.time(),
        "task": _task(),
    }


def holder(lock: Path) -> Mapping[str, Any] | None:
    """Return the current or last owner of a lock, or ``None`` if the lock file names no process."""
    try:
        found = json.loads(read_note(lock))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_process(found) else None


def _is_process(found: Mapping[str, Any]) -> bool:
    """Return True if this content of a lock file describes a process.

    Another user may have written it.
    """
    since, host = found.get("since", 0), found.get("host", "")
    return (
        type(found.get("pid", 0)) is int
        and type(since) in (int, float)
        and 0 <= since < _MOST_SECONDS
        and isinstance(host, str)
        and host.isprintable()
    )


def may_live(holder: Mapping[str, Any]) -> bool:
    """Return True if this process may be alive, as far as this machine can tell."""
    same_boot = holder.get("boot") == boot_id() != ""
    # Also compare the boot id and the PID namespace, because the host name may have changed.
    if holder.get("host") != socket.gethostname() and not (
        same_boot and holder.get("processes") == pid_namespace()
    ):
        return True
    if not same_boot:
        return False
    born = _start_time(int(holder.get("pid", 0)))
    return born is not None and born == holder.get("born")


def is_suspended(holder: Mapping[str, Any]) -> bool:
    """Return True if a signal is known to have suspended this process, as Ctrl-Z does."""
    stat = _stat(int(holder.get("pid", 0))) if may_live(holder) else None
    return stat is not None and stat[0] == b"T" and int(stat[19]) == holder.get("born")


def is_this_process(holder: Mapping[str, Any]) -> bool:
    """Return True if the owner is this process."""
    mine = this_process()
    return all(holder.get(key) == mine[key] for key in ("pid", "born", "boot", "processes"))


def describe_owner(holder: Mapping[str, Any]) -> str:
    """Describe the owner of a lock for messages."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')} since {since}"


def same_step(holder: Mapping[str, Any]) -> str | None:
    """Return an explanation if the owner and this process are two tasks of one parallel program."""
    mine, other = _task(), holder.get("task")
    if not mine or not isinstance(other, list) or len(other) != 2 or other[0] != mine[0]:
        return None
    if other[1] == mine[1]:
        return None
    return f"{mine[0]} runs the command once per task: this is task {mine[1]}"


def _task() -> list[str]:
    """Return the parallel program that this process is a task of, and its rank, or an empty list.

    Flux removes Slurm's variables from the program that it starts, so ancestors are read too.
    """
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            break
        found = dict(os.fsdecode(entry).partition("=")[::2] for entry in entries)
        for shown, *names in _PARALLEL:
            values = [found.get(name, "") for name in names]
            if all(value.isalnum() for value in values):
                return [shown.format(*values), values[-1]]
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        if pid <= 1:
            break
    return []


def _stat(pid: int) -> list[bytes] | None:
    """Return what ``/proc`` says about a local process, from its state on, or ``None`` if it does
    not exist.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat[stat.rindex(b")") + 2 :].split()


def _start_time(pid: int) -> int | None:
    """Return when a local process started (in ticks since boot)."""
    stat = _stat(pid)
    return None if stat is None else int(stat[19])
