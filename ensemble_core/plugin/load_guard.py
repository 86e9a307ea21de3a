"""Guard over plugins while they are loaded: whatever their code does, it is told whose it was.

What a plugin prints then goes to the standard error, for the standard output is the command's
(``--json``). ``os._exit`` does not end the program without a word. One that takes long is named
while it does. Used by ``discovery`` and for plugins' commands.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

__all__ = ["Printed", "guarded"]

#: Seconds after which a plugin that is still being loaded is named.
_PATIENCE = 5.0


class Printed:
    """The standard error, in the place of the standard output. ``anything``: whether it was."""

    def __init__(self) -> None:
        self.anything = False

    def write(self, text: str) -> int:
        self.anything = self.anything or bool(text)
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextlib.contextmanager
def guarded(shown: str) -> Iterator[Printed]:
    """While a plugin is loaded that messages call ``shown``."""
    told = threading.Timer(_PATIENCE, _tell, (shown,))
    told.daemon = True
    process, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)  # a child of the plugin's own
        raise SystemExit(status)

    printed = Printed()
    with _descriptor_aside(), contextlib.redirect_stdout(printed):
        os._exit = refuse
        told.start()
        try:
            yield printed
        finally:
            told.cancel()
            os._exit = leave


def _tell(shown: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(
            f"warning: {shown} has been loading for {_PATIENCE:g} s; until it is loaded nothing "
            "goes on (Ctrl-C ends this)",
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def _descriptor_aside() -> Iterator[None]:
    """Sends the output of compiled code and child processes to the standard error as well."""
    try:
        kept = os.dup(1)
    except OSError:
        yield  # it was closed
        return
    try:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
