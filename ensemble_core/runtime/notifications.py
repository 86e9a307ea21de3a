"""Notifier: delivers the messages of a run, on one thread for each address.

An address that hangs does not delay the others. Messages to the same address within ``MERGED``
seconds are merged.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from ensemble_core.model.decisions import Notify
from ensemble_core.model.events import Delivered, Event

#: For how many seconds after a message further messages to the same address are collected.
MERGED = 30.0
#: Backoff in seconds before the second and the third attempt. At the end of the run, it is skipped.
_WAITS = (1.0, 4.0)


class Notifier:
    """Delivers messages, and calls ``put`` with an event ``Delivered`` for each delivery."""

    def __init__(
        self, run: str, put: Callable[[Sequence[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._run = run
        self._put = put
        self._clock = clock
        self._queues: dict[str, queue.SimpleQueue[Notify | None]] = {}
        self._lock = threading.Lock()
        self._hurry = threading.Event()

    def send(self, notice: Notify) -> None:
        """Deliver a message to its addresses. Returns immediately; safe from any thread."""
        with self._lock:
            for address in notice.to:
                if address not in self._queues:
                    own: queue.SimpleQueue[Notify | None] = queue.SimpleQueue()
                    try:
                        threading.Thread(
                            target=self._work, args=(address, own), name="notify", daemon=True
                        ).start()
                    except RuntimeError as error:  # the system cannot start more threads
                        self._report_delivery([notice], address, str(error))
                        continue
                    self._queues[address] = own
                self._queues[address].put(notice)

    def send_now(self) -> None:
        """Send collected messages now, without backoff. Called at the end of the run."""
        self._hurry.set()
        with self._lock:
            for each in self._queues.values():
                each.put(None)

    def _work(self, address: str, notices: queue.SimpleQueue[Notify | None]) -> None:
        """Send the messages for one address, until the process ends."""
        earliest = 0.0
        while True:
            found = [notices.get()]
            while not self._hurry.is_set() and (left := earliest - time.monotonic()) > 0:
                try:
                    found.append(notices.get(timeout=left))
                except queue.Empty:
                    break
            while not notices.empty():
                found.append(notices.get())
            sent = [each for each in found if each is not None]
            if sent:
                self._report_delivery(sent, address, self._deliver(address, sent))
                earliest = time.monotonic() + MERGED

    def _deliver(self, address: str, notices: Sequence[Notify]) -> str:
        """Deliver messages, with up to three attempts. Return an empty text, or why this failed."""
        from ensemble_core.runtime.message_delivery import Refused, deliver

        failed = ""
        for wait in (0.0, *_WAITS):
            if failed:
                self._hurry.wait(wait)
            try:
                deliver(address, self._run, notices)
                return ""
            except Refused as error:
                return str(error)
            except Exception as error:  # an error in a library must not end the run
                failed = str(error) or type(error).__name__
        return f"{failed} (3 tries)"

    def _report_delivery(self, notices: Sequence[Notify], address: str, error: str) -> None:
        names = tuple(each.notice for each in notices)
        self._put((Delivered(self._clock(), names, address, error),))
