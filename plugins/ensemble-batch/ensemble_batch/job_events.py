"""Events of one job of a queue: RFC 21's life of a job, each step once, in order, in time.

What a queue and its jobs say comes late, twice, or not at all, and by clocks that differ; what is
told has times that grow, and ``clean`` exactly once. Pure. ``JobLife`` and other executors decide
what has happened, and say it here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import JobEvent

__all__ = ["JobEvents"]

#: What lies at least between two events of a job, in seconds.
_STEP = 1e-6
_ALLOCATED: Mapping[str, Any] = {"ranks": "all", "final": True}


class JobEvents:
    """One job that is not over.

    ``files`` is added to the context of its ``start``; ``out`` collects its events; ``queue_id`` is
    the queue's own. ``told`` are the names of its events so far, ``last`` is the time of the
    newest, ``over`` whether ``clean`` was told. ``now`` is our clock, ``when`` may be another's.
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
        """An earlier controller has told these; those after ``since``, to be told again."""
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
        """One step. Times grow, and lie in the future only where the last one did."""
        when = max(min(when, now), self.last + _STEP)
        self.last = when
        self.told.add(name)
        self._out.append(JobEvent(when, self.job, name, dict(context)))

    def arrive(self, when: float, now: float) -> None:
        """The queue has it."""
        if "submit" not in self.told:
            self.tell("submit", when, now, {"queue_id": self.queue_id} if self.queue_id else {})
        for name in ("validate", "depend", "priority"):
            if name not in self.told:
                self.tell(name, self.last, now, {})

    def begin(self, when: float, now: float, host: str) -> None:
        """It runs, on ``host`` if that is known."""
        if "start" not in self.told:
            self.tell("alloc", when, now, {})
            self.tell("start", when, now, {**self.files, "host": host} if host else self.files)

    def fail(self, kind: str, note: str, when: float, now: float, **more: Any) -> None:
        """A fatal exception; its end follows."""
        context = {"type": kind, "severity": 0, "note": note, **more}
        self.tell("exception", when, now, context)

    def end(self, status: int | None, when: float, now: float) -> None:
        """Events of the job's end, with this wait status if it ever began."""
        if "start" in self.told:
            status = int(signal.SIGKILL) if status is None else status
            self.tell("finish", when, now, {"status": status})
        if "alloc" in self.told:
            self.tell("release", now, now, _ALLOCATED)
            self.tell("free", now, now, {})
        self.tell("clean", now, now, {})
        self.over = True

    def refuse(self, kind: str, note: str, now: float) -> None:
        """It never came into the queue, and will not."""
        if "submit" not in self.told:
            self.tell("submit", now, now, {})
        self.fail(kind, note, now, now)
        self.end(None, now, now)
