"""Kill points: named places in a controller where a test can kill it.

A call ``reach(name)`` marks such a place. :mod:`~ensemble_testing.crash.instrumentation` adds these
calls; a fake queue may contain some too. A call only increases a counter, unless :func:`kill_at`
has chosen this call: then it kills the process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

__all__ = ["kill_at", "reach", "reached"]

_lock = threading.Lock()
_kind: str | None = None
_number = 0
_total = 0
#: Number of times that each place was reached.
reached: Counter[str] = Counter()


def kill_at(kind: str | None, number: int) -> None:
    """Kill this process at the ``number``-th call of ``reach(kind)``; 0 means never.

    If ``kind`` is ``None``, calls with any name count.
    """
    global _kind, _number
    _kind, _number = kind, number


def reach(kind: str) -> None:
    """Mark a place. The process may end here as if by ``kill -9``."""
    global _total
    with _lock:
        reached[kind] += 1
        _total += 1
        if _number and _number == (_total if _kind is None else reached[kind] * (kind == _kind)):
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
