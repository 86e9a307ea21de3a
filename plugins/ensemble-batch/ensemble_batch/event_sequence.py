"""Events of one job of a queue: each event once, in the order of Flux's RFC 21.

Reports about a job may arrive late, twice or never, with times of different clocks.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import JobEvent

#: Minimum time between two events of a job, in seconds.
_STEP = 1e-6
_ALLOCATED: Mapping[str, Any] = {"ranks": "all", "final": True}


class JobEvents:
    """Creates the events of one job of a queue.

    In the methods, ``now`` is the time by this machine's clock, and ``when`` is the time in a
    report, which may come from another clock.
    """

    __slots__ = ("_out", "files", "job", "last", "over", "queue_id", "suspended", "told")

    def __init__(self, job: str, files: Mapping[str, Any], out: list[JobEvent]) -> None:
        self.job = job
        self.files = files  # added to the context of the event ``start``
        self.queue_id: str | None = None
        # Names of the events so far. A job that was requeued has no ``alloc`` and ``start``.
        self.told: set[str] = set()
        self.suspended = False
        self.last = 0.0  # time of the newest event
        self.over = False  # whether ``clean`` was emitted
        self._out = out  # receives the events

    def restore(
        self, events: Iterable[tuple[float, str, Mapping[str, Any]]], since: float
    ) -> list[JobEvent]:
        """Restore the events that an earlier controller emitted; return those after ``since``."""
        again = []
        for when, name, context in events:
            self._note(name)
            self.last = max(self.last, when)
            self.over = self.over or name == "clean"
            if when > since:
                again.append(JobEvent(when, self.job, name, context))
        self.last = max(self.last, since)
        return again

    def tell(self, name: str, when: float, now: float, context: Mapping[str, Any]) -> None:
        """Emit one event. Its time is not before the last event, and not in the future."""
        when = max(min(when, now), self.last + _STEP)
        self.last = when
        self._note(name)
        self._out.append(JobEvent(when, self.job, name, dict(context)))

    def _note(self, name: str) -> None:
        """Update the state after an event."""
        self.told.add(name)
        if name == "requeue":
            self.told -= {"alloc", "start"}
        if name in ("suspend", "unsuspend", "requeue"):
            self.suspended = name == "suspend"

    def arrive(self, when: float, now: float) -> None:
        """Record that the queue has the job."""
        if "submit" not in self.told:
            self.tell("submit", when, now, {"queue_id": self.queue_id} if self.queue_id else {})
        for name in ("validate", "depend", "priority"):
            if name not in self.told:
                self.tell(name, self.last, now, {})

    def begin(self, when: float, now: float, host: str) -> None:
        """Record that the job runs, on ``host`` if known."""
        if "start" not in self.told:
            self.tell("alloc", when, now, {})
            self.tell("start", when, now, {**self.files, "host": host} if host else self.files)

    def suspend(self, now: float, note: str) -> None:
        """Record that a running job stands still."""
        if "start" in self.told and not self.suspended:
            self.tell("suspend", now, now, {"note": note})

    def unsuspend(self, now: float) -> None:
        """Record that a suspended job continues."""
        if self.suspended:
            self.tell("unsuspend", now, now, {})

    def fail(self, kind: str, note: str, when: float, now: float, **more: Any) -> None:
        """Record a fatal exception of the job. A call of :meth:`end` must follow."""
        context = {"type": kind, "severity": 0, "note": note, **more}
        self.tell("exception", when, now, context)

    def end(self, status: int | None, when: float, now: float) -> None:
        """Record the job's end, with this wait status if the job ever began."""
        if "start" in self.told:
            status = int(signal.SIGKILL) if status is None else status
            self.tell("finish", when, now, {"status": status})
        if "alloc" in self.told:
            self.tell("release", now, now, _ALLOCATED)
            self.tell("free", now, now, {})
        self.tell("clean", now, now, {})
        self.over = True

    def refuse(self, kind: str, note: str, now: float) -> None:
        """Record that the job will never enter the queue."""
        if "submit" not in self.told:
            self.tell("submit", now, now, {})
        self.fail(kind, note, now, now)
        self.end(None, now, now)
