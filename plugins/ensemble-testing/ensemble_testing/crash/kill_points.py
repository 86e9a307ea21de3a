"""Kill points: named places in a controller where a crash test can kill it.

At such a place, the instrumented controller calls :func:`reach`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

_lock = threading.Lock()
_kind: str | None = None
_number = 0
_total = 0
#: Number of times that each place was reached.
reached: Counter[str] = Counter()


def kill_at(kind: str | None, number: int) -> None:
    """Kill this process when it reaches the place ``kind`` for the ``number``-th time.

    If ``kind`` is ``None``, all places count. If ``number`` is 0, the process is not killed.
    """
    global _kind, _number
    _kind, _number = kind, number


def reach(kind: str) -> None:
    """Count a visit of this place, and kill the process if :func:`kill_at` says so."""
    global _total
    with _lock:
        reached[kind] += 1
        _total += 1
        if _number and _number == (_total if _kind is None else reached[kind] * (kind == _kind)):
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
