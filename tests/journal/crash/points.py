"""Places at which a controller may be killed, and the killing.

``reach(name)`` is called by what stands in the way of a controller (see ``doomed.py``) and by the
queue of these tests. Nothing happens there unless :func:`doom` was called in this process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

__all__ = ["doom", "reach", "reached"]

_lock = threading.Lock()
_kind: str | None = None
_number = 0
_total = 0
#: How often each place was reached.
reached: Counter[str] = Counter()


def doom(kind: str | None, number: int) -> None:
    """Die when a place is reached for the ``number``-th time (from 1; 0: never): any place, or
    only those of one kind."""
    global _kind, _number
    _kind, _number = kind, number


def reach(kind: str) -> None:
    """A place is reached; the process may end here as if by ``kill -9``."""
    global _total
    with _lock:
        reached[kind] += 1
        _total += 1
        if _number and _number == (_total if _kind is None else reached[kind] * (kind == _kind)):
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
