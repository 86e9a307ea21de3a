"""Ctrl-C, SIGTERM and SIGHUP while a run is under way; only ``ensemble run`` installs these.

The first asks the run to stop: nothing more is submitted and its jobs are cancelled. Another Ctrl-C
leaves at once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

__all__ = ["Interrupts"]

_WORDS = {
    signal.SIGINT: "interrupted (Ctrl-C)",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGHUP: "the terminal went away (SIGHUP)",
}
#: One key press may arrive twice (from the terminal and from a parent that passes it on).
_ECHO = 0.3


class Interrupts:
    """Turns signals into stops while its ``with`` block runs, and restores what was there.

    ``stop`` is given the reason, the exit code and whether this is the second time; it is called
    in the main thread between two instructions, so it must not wait for a lock.
    """

    def __init__(self, stop: Callable[[str, int, bool], None]) -> None:
        self._stop = stop
        self._first: float | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may install handlers; its owner handles them
        for number in _WORDS:
            before = signal.getsignal(number)
            # What was ignored stays ignored: nohup, and background jobs of a shell script.
            if before is signal.SIG_IGN or before is None:
                continue
            self._before[number] = before
            signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # as getsignal gave it
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        which = signal.Signals(number)
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._stop(_WORDS[which], 128 + number, False)
        elif which is not signal.SIGHUP and now - self._first > _ECHO:
            self._stop(_WORDS[which], 128 + number, True)
