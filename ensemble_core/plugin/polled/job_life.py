"""The life of one job of a polled queue: what is known of it, made into events of the contract.

Each step is told once, in order, with times that grow. Pure; ``PolledExecutor`` brings what is
heard and hands on what is told.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from ensemble_core.model.events import JobEvent
from ensemble_core.plugin.polled.job_script import Report, status_of

__all__ = ["JobLife"]

#: What lies at least between two events of a job, in seconds.
_STEP = 1e-6
_ALLOCATED: Mapping[str, Any] = {"ranks": "all", "final": True}


class JobLife:
    """One job that is not over. ``files`` is the context of its ``start``; ``key`` is its batch's,
    empty until it has one. ``out`` collects its events."""

    def __init__(self, job: str, files: Mapping[str, Any], out: list[JobEvent]) -> None:
        self.job = job
        self.files = files
        self.key = ""
        self.queue_id: str | None = None
        self.told: set[str] = set()
        self.last = 0.0
        self.cancelled = False
        self.over = False
        #: Answers of the queue in a row that do not have it.
        self.misses = 0
        self._began: float | None = None
        self._out = out

    def restore(self, events: list[tuple[float, str, Mapping[str, Any]]], since: float) -> None:
        """An earlier controller has told these; those after ``since`` are told again."""
        for when, name, context in events:
            self.told.add(name)
            self.last = max(self.last, when)
            self.over = self.over or name == "clean"
            if name == "start":
                self._began = when
            if when > since:
                self._out.append(JobEvent(when, self.job, name, context))
        self.last = max(self.last, since)

    def _tell(self, name: str, when: float, now: float, context: Mapping[str, Any]) -> None:
        when = max(min(when, now), self.last + _STEP)
        self.last = when
        self.told.add(name)
        self._out.append(JobEvent(when, self.job, name, dict(context)))

    def arrived(self, now: float) -> None:
        """The queue has it."""
        if "submit" not in self.told:
            self._tell("submit", now, now, {"queue_id": self.queue_id} if self.queue_id else {})
        for name in ("validate", "depend", "priority"):
            if name not in self.told:
                self._tell(name, self.last, now, {})

    def started(self, at: float, host: str, now: float) -> None:
        """It runs, since ``at`` by its node's clock."""
        self.arrived(now)
        if "start" in self.told:
            return
        self._began = at if self.last <= at <= now else now  # a clock may be an hour off
        self._tell("alloc", self._began, now, {})
        self._tell("start", self._began, now, {**self.files, "host": host} if host else self.files)

    def ended(self, report: Report, now: float, note: str) -> None:
        """Its wrapper has written down how it ended; ``note`` is said where we cancelled it."""
        if report.why.startswith("fail-"):
            self.arrived(now)
            self._except(report.why.removeprefix("fail-"), report.note, now, 126 << 8)
            return
        self.started(report.began, report.host, now)
        status, seconds = status_of(report.code), max(0.0, report.ended - report.began)
        when = report.ended
        if not self.last <= when <= now:
            when = min(now, (self._began or now) + seconds)
        if self.cancelled:
            self._tell("exception", when, now, _fatal("cancel", note))
            status = status or int(signal.SIGTERM)
        elif report.why == "timeout":
            self._tell("exception", when, now, _fatal("timeout", "it was ended at its time limit"))
            status = status or int(signal.SIGTERM)
        self._finish(status, when, now)

    def gone(self, kind: str | None, note: str, status: int | None, now: float) -> None:
        """The queue says that it is over, or knows nothing of it; its wrapper has said nothing."""
        if kind is None and status is not None:
            self.started(now, "", now)
        if kind is not None:
            self._except(kind, note, now, status)
        else:
            self._finish(int(signal.SIGKILL) if status is None else status, now, now)

    def refused(self, kind: str, note: str, now: float) -> None:
        """It never came into the queue, or will never start there."""
        if "submit" not in self.told:
            self._tell("submit", now, now, {})
        self._except(kind, note, now, None)

    def _except(self, kind: str, note: str, now: float, status: int | None) -> None:
        context = _fatal(kind, note)
        if status is not None and "start" not in self.told:
            context["status"] = status
        self._tell("exception", now, now, context)
        if "start" in self.told:
            self._finish(status or int(signal.SIGKILL), now, now)
        else:
            self._clean(now)

    def _finish(self, status: int, when: float, now: float) -> None:
        self._tell("finish", when, now, {"status": status})
        self._clean(now)

    def _clean(self, now: float) -> None:
        if "alloc" in self.told:
            self._tell("release", now, now, _ALLOCATED)
            self._tell("free", now, now, {})
        self._tell("clean", now, now, {})
        self.over = True


def _fatal(kind: str, note: str) -> dict[str, Any]:
    return {"type": kind, "severity": 0, "note": note}
