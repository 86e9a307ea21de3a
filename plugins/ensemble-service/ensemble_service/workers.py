"""Threads for what may take long: the calls of the resizer, which ``resizes`` puts here."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Workers"]


class Workers:
    """Threads that do what is put to them; as many as are needed, up to ``most``.

    They do not keep the process from ending: a resizer that hangs is left behind. Whoever puts work
    says when it is done, on the same thread, so that counting needs no lock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._works: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._busy = 0
        self._count = 0

    def put(self, work: Callable[[], Any]) -> None:
        """Have it done in a thread. ``work`` raises nothing. Raises ``RuntimeError`` where there
        is no thread and none can be had: then it was not put."""
        if self._count < min(self._busy + 1, self._most):
            name = f"ensemble-resizer-{self._count + 1}"
            try:
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._count += 1
            except RuntimeError:
                if not self._count:
                    raise
        self._busy += 1
        self._works.put(work)

    def done(self) -> None:
        """One that was put is over."""
        self._busy -= 1

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        for _ in range(self._count):
            self._works.put(None)
