"""The life of one job of a queue: what is known of it, made into events of the contract.

Pure; the executor brings what is heard and hands on what is told.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_batch.hooks import QueueJob
from ensemble_batch.job_events import JobEvents
from ensemble_batch.reports import Report
from ensemble_core import JobEvent

__all__ = ["JobLife"]


class JobLife(JobEvents):
    """One job that is not over. ``key`` is its batch's, empty until it has one; ``misses`` counts
    answers of the queue in a row that do not have it. ``handed_at`` is when it was handed in by our
    clock (0 while it was not), ``counts_at`` the time from which an answer that lacks it counts
    (monotonic seconds). One that is ``barred`` finds, if it should begin yet, that it may not.
    ``restarts`` counts how often the queue has started it again; ``reported`` is its end that waits
    for the queue's word on it, and ``heard`` when that was reported by our clock."""

    __slots__ = (
        "_began", "barred", "cancelled", "counts_at", "handed_at", "heard", "key", "misses",
        "reported", "restarts",
    )  # fmt: skip

    def __init__(self, job: str, files: Mapping[str, Any], out: list[JobEvent]) -> None:
        super().__init__(job, files, out)
        self.key = ""
        self.cancelled = self.barred = False
        self.misses = 0
        self.handed_at = self.counts_at = 0.0
        self._began: float | None = None
        self.restarts = 0
        self.reported: Report | None = None
        self.heard = 0.0

    def restore(
        self, events: Iterable[tuple[float, str, Mapping[str, Any]]], since: float
    ) -> list[JobEvent]:
        told = list(events)
        self._began = next((when for when, name, _ in told if name == "start"), None)
        memos = (context for _, name, context in told if name == "memo")
        self.restarts = max((int(context.get("restarts", 0)) for context in memos), default=0)
        return super().restore(told, since)

    def arrived(self, now: float) -> None:
        """The queue has it: since it was handed in, as a job may run before the queue says so."""
        self.arrive(self.handed_at or now, now)

    def started(self, at: float, host: str, now: float, seconds: float = 0.0) -> None:
        """It runs, since ``at`` by its node's clock, which may be an hour off; for at least so many
        seconds."""
        self.arrived(now)
        if "start" not in self.told:
            self._began = at if self.last <= at <= now else max(self.last, now - seconds)
            self.begin(self._began, now, host)

    def restarted(self, restarts: int, name: str, now: float) -> None:
        """The queue of this name has started it so often again: what was said of an earlier life's
        end is void."""
        if restarts > self.restarts:
            self.restarts, self.reported = restarts, None
            note = f"{name} has put it back into the queue: it runs again from its beginning"
            self.tell("memo", now, now, {"restarts": restarts, "note": note})

    def ended(self, report: Report, now: float, note: str, word: QueueJob | None = None) -> None:
        """Its wrapper has reported how it ended, and the queue perhaps why (``word``); ``note`` is
        said where we cancelled it. One that ended well before a signal reached its wrapper has
        succeeded, cancelled or not."""
        if report.kind == "fail":
            self.arrived(now)
            self._except(report.why, report.note, now, 126 << 8)
            return
        began, status = report.at - report.seconds, report.status
        self.started(began, report.host, now, report.seconds)
        when = report.at
        if not self.last <= when <= now:
            when = min(now, (self._began or now) + report.seconds)
        kind, why = None, ""
        # That its script failed, the queue concludes from its exit code, too.
        if word is not None and word.exception != "exec":
            kind, why = word.exception, word.note
        elif report.why == "timeout":
            kind, why = "timeout", "it was ended at its time limit"
        if self.cancelled and (kind is not None or status or report.why):
            kind, why = "cancel", note
        if kind is not None:
            self.fail(kind, why, when, now)
            status = status or int(signal.SIGTERM)
        self.end(status, when, now)

    def finished(self, row: QueueJob, now: float, note: str) -> None:
        """The queue, which alone knows it, says how it ended; ``note`` is said where we cancelled
        it. One that ended well before it was cancelled has succeeded."""
        seconds = 0.0
        if row.began is not None and row.ended is not None:
            seconds = max(0.0, row.ended - row.began)
        if row.began is not None or (row.exception is None and row.status is not None):
            self.started(now if row.began is None else row.began, row.host, now, seconds)
        when = now if row.ended is None else row.ended
        if not self.last <= when <= now:
            when = min(now, (self._began or now) + seconds)
        kind, why = row.exception, row.note
        if self.cancelled and (kind is not None or row.status != 0):
            kind, why = "cancel", note
        if kind is not None:
            cause = {} if row.cause is None else {"cause": row.cause}
            self.fail(kind, why, when, now, **cause)
        self.end(row.status if kind is None else row.status or None, when, now)

    def gone(self, kind: str | None, note: str, status: int | None, now: float) -> None:
        """The queue reports the job as over or unknown, and its wrapper has reported no end."""
        if kind is None and status is not None:
            self.started(now, "", now)
        if kind is not None:
            self._except(kind, note, now, status)
        else:
            self.end(status, now, now)

    def _except(self, kind: str, note: str, now: float, status: int | None) -> None:
        began = "start" in self.told
        self.fail(kind, note, now, now, **({} if began or status is None else {"status": status}))
        self.end(status or None, now, now)
