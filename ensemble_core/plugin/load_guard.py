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
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

__all__ = ["Printed", "guarded", "together"]

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


class _Watch:
    """The thread that tells of plugins that take long, one for all that are loaded together."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._shown: str | None = None
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, shown: str) -> None:
        with self._news:
            self._shown, self._due = shown, time.monotonic() + _PATIENCE
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="loading", daemon=True)
            thread.start()
            self._thread = thread  # not before: a Ctrl-C in between would leave one none can join

    def end(self) -> None:
        self._shown = None

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        with self._news:
            while not self._closed:
                left = self._due - time.monotonic()
                if left > 0:
                    self._news.wait(left)
                elif self._shown is None:
                    self._news.wait(_PATIENCE)
                else:
                    shown, self._shown = self._shown, None
                    _tell(shown)


#: That of the plugins that are loaded together in this context.
_watch: ContextVar[_Watch | None] = ContextVar("loading", default=None)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """While several plugins are loaded one after the other, each of them guarded."""
    watch = _Watch()
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
        watch.close()


@contextlib.contextmanager
def guarded(shown: str) -> Iterator[Printed]:
    """While a plugin is loaded that messages call ``shown``."""
    watch = _watch.get()
    if watch is None:
        with together(), guarded(shown) as printed:
            yield printed
        return
    process, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)  # a child of the plugin's own
        raise SystemExit(status)

    printed = Printed()
    with _descriptor_aside(), contextlib.redirect_stdout(printed):
        os._exit = refuse
        watch.begin(shown)
        try:
            yield printed
        finally:
            watch.end()
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
