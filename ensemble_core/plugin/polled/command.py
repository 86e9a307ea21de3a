"""Commands of a queue, run to their end or to their deadline. Used by ``PolledExecutor``."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from ensemble_core.errors import ExecutorError
from ensemble_core.plugin.executor import job_environment

__all__ = ["QueueCommands"]


class QueueCommands:
    """Runs one command at a time, in a session of its own: Ctrl-C is not to break off what a queue
    may have begun."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        words: Sequence[str],
        given: bytes = b"",
        *,
        deadline: float = 60.0,
    ) -> tuple[int, str, str]:
        """Exit code, output and errors. Raises a transient :class:`ExecutorError` where a command
        does not end within ``deadline`` seconds, another where it is not there."""
        try:
            process = subprocess.Popen(
                list(words),
                env={**job_environment(), "LC_ALL": "C"},
                stdin=subprocess.PIPE if given else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ExecutorError(
                f"{words[0]} cannot be run",
                cause=error.strerror or str(error),
                hint="load the module that provides the queue's commands",
                code="no-command",
            ) from None
        self._process = process
        with process:
            try:
                out, err = process.communicate(given or None, timeout=deadline)
            except subprocess.TimeoutExpired:
                self.kill()  # and what it has started, which would keep its output open
                raise ExecutorError(
                    f"{words[0]} gave no answer within {deadline:g} s",
                    hint="the queue is slow or away",
                    code="no-answer",
                    transient=True,
                ) from None
            finally:
                self._process = None
        return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill the command that runs, if one does."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
