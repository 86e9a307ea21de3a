"""Starts the supervisor of local jobs.

This module imports little, so that the supervisor starts before its client is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from pathlib import Path

from ensemble_core.errors import ExecutorError
from ensemble_core.local.inside_allocation import ALLOCATION_END
from ensemble_core.plugin.executor import job_environment

_LOG = "supervisor.log"
#: Name of the file in the run's folder with the secret part of the socket's name, and its size.
SECRET, _SECRET_SIZE = "supervisor.name", 24

#: Program that starts the supervisor. It forks, so that the supervisor never becomes a zombie of
#: this process, and it runs without ``site`` and the user's start-up files. A signal that came
#: before the fork is passed on: it is pending, because it is blocked. What an import creates is no
#: garbage.
_PROGRAM = """\
import os, _signal
child = os.fork()
if child:
    for number in _signal.sigpending(): os.kill(child, number)
    os._exit(0)
import gc, sys
sys.path.append({home!r})
gc.disable()
from ensemble_core.local.supervisor import main
gc.enable()
main()
"""


def address(run_id: str, state: Path | None, *, renew: bool = False) -> str:
    """Return the name of the supervisor's socket, in the abstract namespace.

    The name contains a secret from the run's folder, because any user of the machine can open a
    socket with any name in this namespace. If ``renew`` is true, a new secret is created. Without a
    folder, it contains the run's identity. Raises :class:`ExecutorError` if the secret cannot be
    read or created.
    """
    mark = run_id
    if state is not None:
        try:
            mark = _secret(state, renew=renew)
        except OSError as error:
            raise ExecutorError(
                f"cannot read or write the secret of the run's supervisor: {state / SECRET}",
                cause=error.strerror,
                hint="make its folder writable and free some space, or choose another folder with "
                "--state",
                code="no-ledger",
            ) from None
    return f"ensemble-supervisor-{os.getuid()}-{mark}"


def _secret(state: Path, *, renew: bool) -> str:
    """Return the secret of the run. Create it if it is missing."""
    state.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state / SECRET, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        mark = b"" if renew else file.read()
        if len(mark) != _SECRET_SIZE:
            mark = os.urandom(_SECRET_SIZE // 2).hex().encode()
            file.seek(0)
            file.truncate()
            file.write(mark)
        return mark.decode("ascii")


class StartedSupervisor:
    """A new supervisor and the socket to it.

    Raises :class:`ExecutorError` if the supervisor cannot be started. The supervisor exits if the
    socket is closed before the first message.

    In a pilot, ``fence`` is the file that forbids every further start. The supervisor is then tied
    to this process: when this process is gone, it kills its jobs. It needs a ``state`` folder.
    """

    def __init__(
        self,
        tag: str,
        state: Path | None,
        run_id: str,
        name: str = "",
        *,
        fence: Path | None = None,
    ) -> None:
        name = name or address(run_id, state)
        with contextlib.ExitStack() as stack:

            def hold(fd: int) -> int:
                """Return a file descriptor above 2: the given one, or a copy of it that replaces
                it.
                """
                if fd <= 2:
                    low, fd = fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
                    os.close(low)
                stack.callback(os.close, fd)
                return fd

            try:
                mine, its = socket.socketpair()
                ours, theirs = hold(mine.detach()), hold(its.detach())
                null = hold(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
                errors = hold(_log(state))
                began = os.lseek(errors, 0, os.SEEK_END)
                command = _command(tag, name)
                tie: tuple[tuple[int, int, int], ...] = ()
                if fence is not None:
                    from ensemble_core.local.protocol import TIE

                    command.append(os.path.abspath(fence))
                    tie = ((os.POSIX_SPAWN_DUP2, hold(os.pidfd_open(os.getpid())), TIE),)
                self._child = os.posix_spawn(
                    sys.executable,
                    command,
                    job_environment(),
                    file_actions=(
                        (os.POSIX_SPAWN_DUP2, theirs, 0),
                        (os.POSIX_SPAWN_DUP2, null, 1),
                        (os.POSIX_SPAWN_DUP2, errors, 2),
                        *tie,
                    ),
                    setsid=True,
                    # Until the supervisor can handle them; SIGCONT stays pending until it looks.
                    setsigmask=(*ALLOCATION_END, signal.SIGCONT),
                    setsigdef=(signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ),
                )
                self.sock = socket.socket(fileno=os.dup(ours))
                self._errors, self._began = os.fdopen(os.dup(errors), "rb"), began
            except OSError as error:
                raise cannot_start(error.strerror or str(error)) from None
            except ValueError as error:  # Python is embedded in another program
                raise ExecutorError(
                    "the supervisor of local jobs cannot be started",
                    cause=f"sys.executable is {sys.executable!r}: {error}",
                    hint="start the run with a Python interpreter, not in a program that embeds "
                    "Python",
                    code="no-supervisor",
                ) from None

    def close(self) -> None:
        """End a supervisor that has not received a hello."""
        self.sock.close()
        self.last_error_line()

    def last_error_line(self) -> str:
        """Return the last line that the supervisor has printed as an error.

        Call this once, after the supervisor has answered or exited.
        """
        with contextlib.suppress(ChildProcessError):  # the wait fails if SIGCHLD is ignored
            os.waitpid(self._child, 0)
        with self._errors:
            text = os.pread(self._errors.fileno(), 65536, self._began).decode("utf-8", "replace")
        return (text.strip().splitlines() or [""])[-1]


def _command(tag: str, name: str) -> list[str]:
    # -I ignores all variables of Python, but Python may need PYTHONHOME to find its library.
    isolated = "-s" if "PYTHONHOME" in os.environ else "-I"
    program = _PROGRAM.format(home=str(Path(__file__).resolve().parents[2]))
    return [sys.executable, isolated, "-S", "-c", program, tag, name]


def _log(state: Path | None) -> int:
    """Return a file descriptor of the supervisor's log."""
    if state is None:
        return os.memfd_create(_LOG)
    state.mkdir(parents=True, exist_ok=True)
    return os.open(state / _LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def cannot_start(cause: str) -> ExecutorError:
    """Return the error if the system lacks what a supervisor needs."""
    return ExecutorError(
        "the local executor cannot start its supervisor",
        cause=cause,
        hint="raise the limits on processes and open files (ulimit -u, ulimit -n)",
        code="short-of-resources",
        transient=True,
    )
