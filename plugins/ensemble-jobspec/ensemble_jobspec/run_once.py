"""Runs a command on the controller's machine, never twice, even if the controller is killed."""

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

#: Shell script that writes its process id, runs a command unchanged, and writes the exit code
#: atomically. It survives the controller and holds the lock of the record.
_KEEPER = (
    'f=$0; echo $$ >"$f"; "$@"; code=$?; '
    'echo $code >"$f.part" && mv "$f.part" "$f.code"; exit $code'
)
#: Seconds between checks of a command that an earlier controller started.
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
    """Run the command and return its exit code (128 + N after signal N).

    - ``record``: file that shows a later controller whether the command was started
    - ``again``: whether an earlier controller may have started the command. If it has, wait for the
      command instead of running it again. If the command was interrupted, return ``None``.
    - ``keep``: whether to write the output to the file ``record`` plus ``.out``

    Raises :class:`TimeoutError` after ``duration`` seconds, and :class:`OSError` if the command
    cannot run.
    """
    kept = record.with_name(f"{record.name}.out") if keep else Path(os.devnull)
    with record.open("a+") as held:
        if again:
            _wait_for(record, held, duration)
            if record.read_text():  # the earlier shell had begun, so don't run the command again
                return _code(record)
        with contextlib.suppress(OSError):  # without locks, only the record counts
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
                start_new_session=True,  # Ctrl-C stops the run, not the command
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
    """Return the program's path, so that the shell does not use a builtin of the same name."""
    found = name if "/" in name else shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"program not found: {name!r}")
    return found


def _wait_for(record: Path, held: TextIO, duration: float | None) -> None:
    """Wait until a command of an earlier controller is over. Raises the errors of ``run_once``."""
    deadline = None if duration is None else time.monotonic() + duration
    while _is_running(record, held):
        if deadline is not None and time.monotonic() > deadline:
            shell = _shell_pid(record)
            if shell is not None:
                _kill(shell)
            raise TimeoutError
        time.sleep(_LOOK)


def _is_running(record: Path, held: TextIO) -> bool:
    if _code(record) is not None:  # only background processes may hold the lock
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
    """Return the process id of the shell that runs the command, or ``None`` if it has ended.

    The record must be in the process's command line, because the id may have been reused.
    """
    try:
        pid = int(record.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(record) in words else None


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
