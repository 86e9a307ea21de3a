"""Keeps what plugins print while they are loaded out of the command's output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

#: Held while stdout is redirected. A thread that writes to stdout also holds it: its lines would
#: otherwise go to stderr while another thread loads plugins.
STDOUT = threading.RLock()


class StdoutReplacement:
    """Replacement for ``sys.stdout`` that writes to stderr while a plugin is loaded."""

    def __init__(self) -> None:
        #: True once text was written.
        self.anything = False

    def write(self, text: str) -> int:
        self.anything = self.anything or bool(text)
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[StdoutReplacement]:
    """Redirect stdout to stderr, because a command's own output (``--json``) goes to stdout.

    The file descriptor is redirected, to include the output of compiled code and child processes.
    """
    with STDOUT, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # stdout may be closed
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        yield stack.enter_context(contextlib.redirect_stdout(StdoutReplacement()))
