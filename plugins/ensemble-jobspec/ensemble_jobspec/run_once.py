"""Command beside the controller that is run once, also where the controller is killed meanwhile.

A shell that outlives the controller runs it. It holds a lock on the command's record, a file in the
run's folder, and leaves the exit code beside it; whoever makes the call again waits for that, and
never runs the command a second time. Used by the action ``jobspec-local``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

__all__ = ["run_once"]

#: Leaves its process id, runs a command as it stands, and leaves the exit code, whole or not at
#: all.
_KEEPER = (
    'f=$0; echo $$ >"$f"; "$@"; code=$?; '
    'echo $code >"$f.part" && mv "$f.part" "$f.code"; exit $code'
)
#: Seconds between looks at a command that an earlier controller began.
_LOOK = 0.2


def run_once(
    command: Sequence[str],
    record: Path,
    *,
    again: bool,
    keep: bool,
    cwd: str,
    environment: Mapping[str, str],
    duration: float | None,
) -> int | None:
    """The command's exit code; 128 and the signal's number where one ended it; ``None`` where it
    was cut off by whatever killed an earlier controller, and may have been done in part.

    Its output is kept in ``record`` with ``.out``, if ``keep`` says so. With ``again`` an earlier
    controller may have begun it: then it is waited for. Raises :class:`TimeoutError` after
    ``duration`` seconds, and :class:`OSError` where it cannot run.
    """
    kept = record.with_name(f"{record.name}.out") if keep else Path(os.devnull)
    with record.open("a+") as held:
        if again:
            _wait_for(record, held, duration)
            if record.read_text():  # the shell has come so far as to run it
                return _code(record)
        with contextlib.suppress(OSError):  # on a file system without locks the record is all
            fcntl.flock(held, fcntl.LOCK_EX)
        words = ["sh", "-c", _KEEPER, str(record), _program(command[0], environment), *command[1:]]
        with kept.open("wb") as output:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C stops the run, and not what it waits for
                pass_fds=[held.fileno()],
            )
    try:
        code = process.wait(duration)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        process.wait()
        raise TimeoutError from None
    return 128 - code if code < 0 else code


def _program(name: str, environment: Mapping[str, str]) -> str:
    """The program's path, so that the shell takes it for none of its own commands."""
    found = name if "/" in name else shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"there is no program {name!r}")
    return found


def _wait_for(record: Path, held: TextIO, duration: float | None) -> None:
    """Wait until what an earlier controller began is over. Raises as :func:`run_once` does."""
    deadline = None if duration is None else time.monotonic() + duration
    while _is_running(record, held):
        if deadline is not None and time.monotonic() > deadline:
            keeper = _shell_pid(record)
            if keeper is not None:
                _kill(keeper)
            raise TimeoutError
        time.sleep(_LOOK)


def _is_running(record: Path, held: TextIO) -> bool:
    if _code(record) is not None:  # what it left in the background has the lock as well
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # this file system has no locks
        return _shell_pid(record) is not None
    return False


def _code(record: Path) -> int | None:
    try:
        return int(record.with_name(f"{record.name}.code").read_text())
    except FileNotFoundError:
        return None


def _shell_pid(record: Path) -> int | None:
    """The process id of the shell that has this record among its words; ``None`` where it is gone:
    its id may be another's by now."""
    try:
        pid = int(record.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(record) in words else None


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
