"""Runs the commands of a queue, such as ``qsub``, with a deadline."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ensemble_core import ExecutorError, job_environment

#: Commands that may run without delay before the rate limit applies.
_BURST = 10
#: Seconds between checks of a command's standard error for ``kill_on``.
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int | None  # None: timed out or could not be started
    out: str
    err: str
    missing: str = ""  # why the command could not be started


def kill_command(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and its children."""
    # Its children would keep its output open.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def run_command(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    given: bytes = b"",
    deadline: float = 30.0,
    kill_on: bytes = b"",
    began: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> CommandResult:
    """Run a command of a queue to its end, or kill it after ``deadline`` seconds. Never raises.

    The argument ``given`` is the command's standard input. If the standard error contains
    ``kill_on``, the command is killed; its exit code is then negative. The callback ``began`` is
    called with the command's process.
    """
    try:
        process = subprocess.Popen(
            list(words),
            env=dict(environment),
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not interrupt what the queue has begun
        )
    except OSError as error:
        why = error.strerror or str(error)
        return CommandResult(None, "", f"{words[0]}: {why}", why)
    if began is not None:
        began(process)
    late = False
    with process:
        try:
            out, err = _communicate(process, given or None, deadline, kill_on)
        except subprocess.TimeoutExpired:
            kill_command(process)
            out, err = process.communicate()
            late = True
    texts = [part.decode("utf-8", "surrogateescape") for part in (out, err)]
    if late:
        texts[1] += f"\nno answer within {deadline:g} s"
    return CommandResult(None if late else process.returncode, texts[0], texts[1])


def _communicate(
    process: subprocess.Popen[bytes], given: bytes | None, deadline: float, kill_on: bytes
) -> tuple[bytes, bytes]:
    """Return the output of a command, which is killed if its errors contain ``kill_on``."""
    end = time.monotonic() + deadline
    while True:
        left = end - time.monotonic()
        try:
            return process.communicate(given, timeout=min(_LOOK, left) if kill_on else left)
        except subprocess.TimeoutExpired as error:
            if time.monotonic() >= end:
                raise
            given = None  # a later call sends the rest
            if kill_on and kill_on in (error.stderr or b""):
                kill_command(process)
                kill_on = b""


class QueueCommands:
    """Runs commands of a queue, with the environment that jobs get and ``LC_ALL=C``.

    The argument ``rate`` is the maximum number of commands per second, after a burst of ten.
    """

    def __init__(self, rate: float = math.inf) -> None:
        self._gap = 1 / rate
        #: When the next command would be due if all commands ran exactly at this rate.
        self._due = 0.0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()

    def _wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._due = max(self._due, now) + self._gap
            wait = self._due - now - _BURST * self._gap
        if self._closed.wait(max(0.0, wait)):
            raise ExecutorError(
                "the executor is closed: it runs no further commands of the queue",
                code="closed",
                transient=True,
            )

    def run(
        self,
        words: Sequence[str],
        given: bytes = b"",
        *,
        environment: Mapping[str, str] | None = None,
        deadline: float = 60.0,
        kill_on: bytes = b"",
    ) -> tuple[int, str, str]:
        """Run a command; return its exit code, output and errors.

        Raises a transient :class:`ExecutorError` if the command does not end within ``deadline``
        seconds, and a final one if the program does not exist.
        """
        started: list[subprocess.Popen[bytes]] = []

        def began(process: subprocess.Popen[bytes]) -> None:
            started.append(process)
            with self._lock:
                self._running.add(process)
                closed = self._closed.is_set()
            if closed:
                kill_command(process)

        self._wait()
        if environment is None:
            environment = {**job_environment(), "LC_ALL": "C"}
        try:
            done = run_command(
                *(words, environment),
                given=given,
                deadline=deadline,
                kill_on=kill_on,
                began=began,
            )
        finally:
            with self._lock:
                self._running.difference_update(started)
        if done.missing:
            raise ExecutorError(
                f"cannot run {words[0]}",
                cause=done.missing,
                hint="load the module that provides the queue's commands",
                code="no-command",
            )
        if done.code is None:
            raise ExecutorError(
                f"{words[0]} did not answer within {deadline:g} s",
                hint="check the queue: it is slow or not reachable",
                code="no-answer",
                transient=True,
            )
        return done.code, _plain(done.out), _plain(done.err)

    def kill(self) -> None:
        """Kill all running commands, and refuse new ones."""
        with self._lock:
            self._closed.set()
            running = list(self._running)
        for process in running:
            kill_command(process)


def _plain(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
