"""Interrupts of a run: Ctrl-C and other signals, ``ensemble cancel`` and ``ensemble stop``.

After the first signal, the run stops so that it can be resumed; after a second one, the controller
exits immediately.
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
from typing import Literal

from ensemble_core.journal.request_files import end_requester, is_leave_requested, stop_requester
from ensemble_core.runtime.controller import STOPPED

#: ``stop``: stop the run so that it can be resumed. ``drain``: do the same; if the run is in an
#: allocation, it ends. ``end``: cancel the jobs and end the run. ``leave``: exit without waiting.
How = Literal["stop", "drain", "end", "leave"]

_WORDS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "the terminal was closed (SIGHUP)",
    # Flux sends this signal at the time limit, to a job or to a run inside an allocation.
    signal.SIGALRM: "the time limit around this run has passed (SIGALRM)",
}
#: Seconds between checks for requests of other processes.
_LOOK = 0.5
#: Two signals within this many seconds count as one, because a key press may arrive twice: from the
#: terminal, and from a parent process that passes it on.
_ECHO = 0.3


class Interrupts:
    """Context manager that calls ``stop`` after a signal, ``ensemble cancel`` or ``ensemble stop``.

    ``stop`` receives the reason, the exit code and how to stop. It is called on a separate thread.
    """

    def __init__(
        self,
        stop: Callable[[str, int, How], None],
        folder: Path | None = None,
        desk: Callable[[], None] | None = None,  # called periodically, for other requests
    ) -> None:
        self._stop = stop
        self._folder = folder
        self._desk = desk
        self._cancelled_by: str | None = None
        self._stopped_by: str | None = None
        self._first: float | None = None
        self._wakeup_fd_before: int | None = None
        self._before: dict[signal.Signals, object] = {}
        self._listening, self._waking = os.pipe()
        # Python runs signal handlers only on the main thread, which may wait for hours. So this
        # thread receives the signals, through Python's wakeup pipe.
        self._thread = threading.Thread(target=self._listen, name="ensemble-signals", daemon=True)

    def __enter__(self) -> Interrupts:
        self._thread.start()
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may handle signals: its owner does so
        os.set_blocking(self._waking, False)
        self._wakeup_fd_before = signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        for number in _WORDS:
            before = signal.getsignal(number)
            # Ignored signals stay ignored, as for nohup and background jobs of shell scripts.
            if before is signal.SIG_IGN or before is None:
                continue
            self._before[number] = before
            signal.signal(number, _ignore)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # as getsignal gave it
        if self._wakeup_fd_before is not None:
            signal.set_wakeup_fd(self._wakeup_fd_before)
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
                    self._on_signal(signal.Signals(number))
            if self._folder is not None:
                self._check_requests(self._folder)
            if self._desk is not None:
                self._desk()

    def _check_requests(self, folder: Path) -> None:
        """Pass on requests of other processes to cancel or stop the run, or to exit."""
        if self._cancelled_by is None:
            self._cancelled_by = end_requester(folder)
            if self._cancelled_by is not None:
                self._stop(f"cancelled by {self._cancelled_by}", 130, "end")
            elif self._stopped_by is None:
                self._stopped_by = stop_requester(folder)
                if self._stopped_by is not None:
                    self._stop(f"stopped by {self._stopped_by}", STOPPED, "stop")
        elif is_leave_requested(folder):
            self._folder = None
            self._stop(f"cancelled by {self._cancelled_by}", 130, "leave")

    def _on_signal(self, which: signal.Signals) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._stop(_WORDS[which], 128 + which, "drain" if which is signal.SIGTERM else "stop")
        elif which is not signal.SIGHUP and now - self._first > _ECHO:
            self._stop(_WORDS[which], 128 + which, "leave")


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing, because the thread handles the signal.

    Without a handler, it would end the process.
    """
