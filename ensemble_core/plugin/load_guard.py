"""Guard over plugins while they are loaded: whatever their code does, the message names the plugin.

What a plugin prints then goes to the standard error, because the standard output is the command's
(``--json``). ``os._exit`` raises :class:`SystemExit`, or else a run that never began would end with
exit code 0 and without a message. A plugin that takes long is named. Used by ``discovery`` and for
plugins' commands.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

__all__ = ["Printed", "Watchdog", "guarded"]

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


class Watchdog:
    """Names plugins that take long to load: one thread for all that are loaded together."""

    def __init__(self) -> None:
        #: The plugin that is being loaded, and since when.
        self._current: tuple[str, float] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def watching(self, shown: str) -> Iterator[None]:
        """Watch a plugin while it is loaded."""
        self._current = shown, time.monotonic()
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="loading", daemon=True)
                thread.start()
                self._thread = thread  # not before: after a Ctrl-C in between, join() would raise
            yield
        finally:
            self._current = None

    def _work(self) -> None:
        named = None
        while not self._over.wait(_PATIENCE / 10):
            current = self._current
            if current and current != named and time.monotonic() - current[1] >= _PATIENCE:
                named = current
                _tell(current[0])


@contextlib.contextmanager
def guarded(shown: str, watchdog: Watchdog) -> Iterator[Printed]:
    """Guard the loading of a plugin that messages call ``shown``."""
    process, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)  # a child process of the plugin
        raise SystemExit(status)

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it may be closed
            # The output of compiled code and child processes as well.
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        printed = stack.enter_context(contextlib.redirect_stdout(Printed()))
        stack.enter_context(watchdog.watching(shown))
        stack.callback(setattr, os, "_exit", leave)
        os._exit = refuse
        yield printed


def _tell(shown: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(
            f"warning: {shown} has been loading for {_PATIENCE:g} s; until it is loaded nothing "
            "goes on (Ctrl-C ends this)",
            file=sys.stderr,
            flush=True,
        )
