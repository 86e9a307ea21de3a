"""Events of one job of a queue: each step of RFC 21's job life once, in order.

Reports of a queue and its jobs come late, twice or never, by clocks that differ. The emitted times
never decrease, and ``clean`` comes exactly once. ``JobLife`` and other executors decide what has
happened and report it here. Pure.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import JobEvent

__all__ = ["JobEvents"]

#: Minimum time between two events of a job, in seconds.
_STEP = 1e-6
_ALLOCATED: Mapping[str, Any] = {"ranks": "all", "final": True}


class JobEvents:
    """One job that is not over.

    ``files`` is added to the context of its ``start``; ``out`` collects its events; ``queue_id`` is
    the queue's id. ``told`` has the names of its events so far, ``last`` is the time of the newest,
    and ``over`` tells whether ``clean`` was emitted. ``now`` is our clock; ``when`` may be
    another's.
    """

    __slots__ = ("_out", "files", "job", "last", "over", "queue_id", "told")

    def __init__(self, job: str, files: Mapping[str, Any], out: list[JobEvent]) -> None:
        self.job = job
        self.files = files
        self.queue_id: str | None = None
        self.told: set[str] = set()
        self.last = 0.0
        self.over = False
        self._out = out

    def restore(
        self, events: Iterable[tuple[float, str, Mapping[str, Any]]], since: float
    ) -> list[JobEvent]:
        """Take over the events that an earlier controller emitted; return those after ``since``, to
        repeat.
        """
        again = []
        for when, name, context in events:
            self.told.add(name)
            self.last = max(self.last, when)
            self.over = self.over or name == "clean"
            if when > since:
                again.append(JobEvent(when, self.job, name, context))
        self.last = max(self.last, since)
        return again

    def tell(self, name: str, when: float, now: float, context: Mapping[str, Any]) -> None:
        """Emit one event. Its time is not before the last one's, nor otherwise in the future."""
        when = max(min(when, now), self.last + _STEP)
        self.last = when
        self.told.add(name)
        self._out.append(JobEvent(when, self.job, name, dict(context)))

    def arrive(self, when: float, now: float) -> None:
        """Record that the queue has the job."""
        if "submit" not in self.told:
            self.tell("submit", when, now, {"queue_id": self.queue_id} if self.queue_id else {})
        for name in ("validate", "depend", "priority"):
            if name not in self.told:
                self.tell(name, self.last, now, {})

    def begin(self, when: float, now: float, host: str) -> None:
        """Record that it runs, on ``host`` if known."""
        if "start" not in self.told:
            self.tell("alloc", when, now, {})
            self.tell("start", when, now, {**self.files, "host": host} if host else self.files)

    def fail(self, kind: str, note: str, when: float, now: float, **more: Any) -> None:
        """Record a fatal exception. Its end must follow."""
        context = {"type": kind, "severity": 0, "note": note, **more}
        self.tell("exception", when, now, context)

    def end(self, status: int | None, when: float, now: float) -> None:
        """Record the job's end, with this wait status if it ever began."""
        if "start" in self.told:
            status = int(signal.SIGKILL) if status is None else status
            self.tell("finish", when, now, {"status": status})
        if "alloc" in self.told:
            self.tell("release", now, now, _ALLOCATED)
            self.tell("free", now, now, {})
        self.tell("clean", now, now, {})
        self.over = True

    def refuse(self, kind: str, note: str, now: float) -> None:
        """Record that it will never enter the queue."""
        if "submit" not in self.told:
            self.tell("submit", now, now, {})
        self.fail(kind, note, now, now)
        self.end(None, now, now)
