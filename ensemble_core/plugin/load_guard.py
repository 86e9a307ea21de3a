"""Handles plugins that print, exit or hang while they are loaded."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

__all__ = ["StdoutReplacement", "Watchdog", "guard_load"]

#: After this many seconds of loading, a warning names the plugin.
_PATIENCE = 5.0


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


class Watchdog:
    """Warns about plugins that take long to load. One thread watches all of them."""

    def __init__(self) -> None:
        #: The plugin that is being loaded, and the time when its loading began.
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
                self._thread = thread  # last, because join() needs a started thread
            yield
        finally:
            self._current = None

    def _work(self) -> None:
        named = None
        while not self._over.wait(_PATIENCE / 10):
            current = self._current
            if current and current != named and time.monotonic() - current[1] >= _PATIENCE:
                named = current
                _warn_slow(current[0])


@contextlib.contextmanager
def guard_load(shown: str, watchdog: Watchdog) -> Iterator[StdoutReplacement]:
    """Guard the loading of a plugin. ``shown`` is the plugin's name in messages.

    If the plugin calls ``os._exit``, :class:`SystemExit` is raised instead: otherwise, the plugin
    could end the command with exit code 0 and no message.
    """
    process, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)  # in a child process of the plugin, os._exit works normally
        raise SystemExit(status)

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # stdout may be closed
            # Plugins must not write to stdout, because the command's output (``--json``) goes
            # there. Redirect the file descriptor, to include the output of compiled code and child
            # processes.
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        printed = stack.enter_context(contextlib.redirect_stdout(StdoutReplacement()))
        stack.enter_context(watchdog.watching(shown))
        stack.callback(setattr, os, "_exit", leave)
        os._exit = refuse
        yield printed


def _warn_slow(shown: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(
            f"warning: {shown} has been loading for {_PATIENCE:g} s, and the command waits for it "
            "(press Ctrl-C to abort)",
            file=sys.stderr,
            flush=True,
        )
