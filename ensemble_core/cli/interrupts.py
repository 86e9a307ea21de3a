"""Interrupts of a run: Ctrl-C, the signals by which terminals and queues end programs, and what
``ensemble cancel`` asks for.

Only a controller installs these. The first asks the run to stop: nothing more is submitted and
its jobs are cancelled. Another Ctrl-C leaves at once. A thread of its own hears of signals through
a pipe that the interpreter writes to: a handler runs only when the main thread gets to it, and a
signal that comes just before that thread begins to wait for an event would wait with it, perhaps
for hours.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ensemble_core.journal.run_store import leave_asked, stop_asked

__all__ = ["Interrupts"]

_WORDS = {
    signal.SIGINT: "interrupted (Ctrl-C)",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGHUP: "the terminal went away (SIGHUP)",
    # What Flux sends to a job, and so to a run inside an allocation, whose time is over.
    signal.SIGALRM: "the time limit around this run has passed (SIGALRM)",
}
#: Seconds between looks whether another process asked the run to stop.
_LOOK = 0.5
#: One key press may arrive twice (from the terminal and from a parent that passes it on).
_ECHO = 0.3


class Interrupts:
    """Turns signals into stops while its ``with`` block runs, and restores what was there; and what
    ``ensemble cancel`` leaves in the run's ``folder``, if it has one.

    ``stop`` is given the reason, the exit code and whether this is the second time; it is called
    on a thread of this object, and so is ``desk``, now and then: it answers what users ask.
    """

    def __init__(
        self,
        stop: Callable[[str, int, bool], None],
        folder: Path | None = None,
        desk: Callable[[], None] | None = None,
    ) -> None:
        self._stop = stop
        self._folder = folder
        self._desk = desk
        self._cancelled_by: str | None = None
        self._first: float | None = None
        self._woken_before: int | None = None
        self._before: dict[signal.Signals, object] = {}
        self._listening, self._waking = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="ensemble-signals", daemon=True)

    def __enter__(self) -> Interrupts:
        self._thread.start()
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may install handlers; its owner handles them
        os.set_blocking(self._waking, False)
        self._woken_before = signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        for number in _WORDS:
            before = signal.getsignal(number)
            # What was ignored stays ignored: nohup, and background jobs of a shell script.
            if before is signal.SIG_IGN or before is None:
                continue
            self._before[number] = before
            signal.signal(number, _nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # as getsignal gave it
        if self._woken_before is not None:
            signal.set_wakeup_fd(self._woken_before)
        os.write(self._waking, b"\0")
        self._thread.join()
        os.close(self._waking)
        os.close(self._listening)

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        while True:
            heard = poll.poll(None if self._folder is None else _LOOK * 1000)
            for number in os.read(self._listening, 64) if heard else ():
                if not number:
                    return
                if number in tuple(self._before):
                    self._heard(signal.Signals(number))
            if self._folder is not None:
                self._look(self._folder)
            if self._desk is not None:
                self._desk()

    def _look(self, folder: Path) -> None:
        """Stop when somebody asks for it; again, where it is not to wait for what cannot be
        cancelled."""
        if self._cancelled_by is None:
            self._cancelled_by = stop_asked(folder)
            if self._cancelled_by is not None:
                self._stop(f"cancelled by {self._cancelled_by}", 130, False)
        elif leave_asked(folder):
            self._folder = None
            self._stop(f"cancelled by {self._cancelled_by}", 130, True)

    def _heard(self, which: signal.Signals) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._stop(_WORDS[which], 128 + which, False)
        elif which is not signal.SIGHUP and now - self._first > _ECHO:
            self._stop(_WORDS[which], 128 + which, True)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Stands for the default, which would end the process; the listening thread does the rest."""
