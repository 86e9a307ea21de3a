"""Ctrl-C and the signals by which terminals and queues end programs, while a run is under way.

Only ``ensemble run`` installs these. The first asks the run to stop: nothing more is submitted and
its jobs are cancelled. Another Ctrl-C leaves at once. A thread of its own hears of signals through
a pipe that the interpreter writes to: a handler runs only when the main thread gets to it, and a
signal that comes just before that thread begins to wait for an event would wait with it, perhaps
for hours.
"""

from __future__ import annotations

import os
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
    # What Flux sends to a job, and so to a run inside an allocation, whose time is over.
    signal.SIGALRM: "the time limit around this run has passed (SIGALRM)",
}
#: One key press may arrive twice (from the terminal and from a parent that passes it on).
_ECHO = 0.3


class Interrupts:
    """Turns signals into stops while its ``with`` block runs, and restores what was there.

    ``stop`` is given the reason, the exit code and whether this is the second time; it is called
    on a thread of this object.
    """

    def __init__(self, stop: Callable[[str, int, bool], None]) -> None:
        self._stop = stop
        self._first: float | None = None
        self._before: dict[signal.Signals, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._woken_before = -1
        self._thread = threading.Thread(target=self._listen, name="ensemble-signals", daemon=True)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may install handlers; its owner handles them
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._woken_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread.start()
        for number in _WORDS:
            before = signal.getsignal(number)
            # What was ignored stays ignored: nohup, and background jobs of a shell script.
            if before is signal.SIG_IGN or before is None:
                continue
            self._before[number] = before
            signal.signal(number, _nothing)
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
        if self._pipe is not None:
            signal.set_wakeup_fd(self._woken_before)
            os.write(self._pipe[1], b"\0")
            self._thread.join()
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = None

    def _listen(self) -> None:
        assert self._pipe is not None
        while True:
            for number in os.read(self._pipe[0], 64):
                if not number:
                    return
                if number in tuple(self._before):
                    self._heard(signal.Signals(number))

    def _heard(self, which: signal.Signals) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._stop(_WORDS[which], 128 + which, False)
        elif which is not signal.SIGHUP and now - self._first > _ECHO:
            self._stop(_WORDS[which], 128 + which, True)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Stands for the default, which would end the process; the listening thread does the rest."""
