"""Events of one job of a queue, made from the reports of its wrapper script and of the queue.

Reports may arrive late, twice or never, with times of different clocks. Each event is emitted once,
in the order of Flux's RFC 21.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ensemble_batch.queue_hooks import QueueJob
from ensemble_core import Cause, JobEvent


def status_of(code: int) -> int:
    """Return the wait status for a shell's exit code, where 129 to 159 means 128 plus a signal.

    >>> status_of(3), status_of(137), status_of(255)
    (768, 9, 65280)
    """
    return code - 128 if 128 < code < 160 else (code & 0xFF) << 8


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a wrapper script on one execution of a job; a restart is another execution."""

    # ``fail``: the command could not be started. ``again``: the queue has restarted the job, which
    # asks whether it may run.
    kind: Literal["start", "end", "fail", "again"]
    at: float  # seconds since the epoch, by the node's clock
    status: int = 0  # after ``end``: the wait status of the command
    #: After ``end``: ``timeout`` if the wrapper ended the command, ``stopped`` if the queue told
    #: the wrapper to end, ``deleted`` if it said that the job was deleted, ``memory`` if the kernel
    #: killed a process of it for lack of memory, ``requeue`` if the queue may start it again after
    #: this exit code, otherwise empty. After ``fail``: a code.
    why: str = ""
    note: str = ""  # after ``fail``: the reason in words
    seconds: float = 0.0  # how long the command ran
    host: str = ""
    job: str = ""
    queue_id: str = "-"
    life: int = 0  # number of restarts by the queue

    @property
    def doubtful(self) -> bool:
        """Return whether the queue may have ended the job, so that only the queue knows why."""
        killed = self.status & 0x7F in (signal.SIGKILL, signal.SIGTERM)
        told = self.why in ("stopped", "deleted", "memory", "requeue")
        return self.kind == "end" and self.why != "timeout" and (told or killed)


def parse_time(text: str) -> float:
    """Parse a time. Raise :class:`ValueError` if it is not a finite number."""
    time = float(text)
    if not math.isfinite(time):
        raise ValueError(f"{text!r} is no time")
    return time


def end_report(code: str, why: str, began: str, ended: str, host: str) -> Report:
    """Parse the words of an end report. Raise :class:`ValueError` if they are invalid."""
    seconds = max(0.0, parse_time(ended) - parse_time(began))
    why = "" if why == "-" else why
    if not 0 <= int(code) < 256:
        raise ValueError(f"{code} is no exit code")
    return Report("end", parse_time(ended), status_of(int(code)), why, seconds=seconds, host=host)


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


class JobLife(JobEvents):
    """State of one job, until the job is over."""

    __slots__ = (
        "_began", "absent", "barred", "cancel_sent_at", "cancelled", "counts_at", "doomed_at",
        "handed_at", "heard", "holds", "key", "misses", "reported", "restarts", "verdict",
        "witnessed",
    )  # fmt: skip

    def __init__(self, job: str, files: Mapping[str, Any], out: list[JobEvent]) -> None:
        super().__init__(job, files, out)
        self.key = ""  # of the job's batch; empty while the job has no batch
        # barred: the job can no longer start
        # holds: the run has submitted the job with urgency 0
        # witnessed: its wrapper has reported a start, also in an earlier life. The queue may also
        # call a job running although its node cannot start it.
        self.cancelled = self.barred = self.holds = self.witnessed = False
        self.cancel_sent_at = math.inf  # in monotonic seconds
        self.misses = 0  # consecutive replies of the queue that omitted the job
        # For how many seconds such replies listed other jobs.
        self.absent = 0.0
        # Why the job is about to be reported as lost, and since when in monotonic seconds.
        self.verdict, self.doomed_at = "", 0.0
        # When the job was submitted by our clock (0: not yet), and the time in monotonic seconds
        # after which a reply that omits the job counts.
        self.handed_at = self.counts_at = 0.0
        self._began: float | None = None
        self.restarts = 0  # by the queue
        self.reported: Report | None = None  # the wrapper's, until the queue explains the end
        self.heard = 0.0  # when the end was reported, by our clock

    def restore(
        self, events: Iterable[tuple[float, str, Mapping[str, Any]]], since: float
    ) -> list[JobEvent]:
        told = list(events)
        self._began = next((when for when, name, _ in told[::-1] if name == "start"), None)
        self.witnessed = self._began is not None  # the record does not say who reported the start
        requeues = (context for _, name, context in told if name == "requeue")
        self.restarts = max((int(context.get("restarts", 0)) for context in requeues), default=0)
        return super().restore(told, since)

    @property
    def has_begun(self) -> bool:
        """True if the job ever ran, also before the queue requeued it."""
        return self._began is not None

    def arrived(self, now: float) -> None:
        """Record that the queue has the job, from the time of submission."""
        # A job may run before the queue replies.
        self.arrive(self.handed_at or now, now)

    def started(self, at: float, host: str, now: float, seconds: float = 0.0) -> None:
        """Record that the job has been running since ``at``, and for at least ``seconds``.

        The time ``at`` comes from the clock of the job's node, which may be an hour off.
        """
        self.arrived(now)
        self.absent = 0.0
        if "start" not in self.told:
            self._began = at if self.last <= at <= now else max(self.last, now - seconds)
            self.begin(self._began, now, host)

    def requeued(self, restarts: int, name: str, when: float, now: float) -> None:
        """Record that the queue ``name`` has requeued the job; an end reported earlier is void.

        The argument ``restarts`` is how often it has done so.
        """
        if restarts > self.restarts:
            self.restarts, self.reported = restarts, None
            note = f"{name} requeued it; it starts from the beginning"
            self.tell("requeue", when, now, {"restarts": restarts, "note": note})

    def ended(self, report: Report, now: float, note: str, word: QueueJob | None = None) -> None:
        """Record the end that the job's wrapper reported, and the queue's reason (``word``) if
        known.

        The text ``note`` is used if we cancelled the job. A job that succeeded before a signal
        reached its wrapper has succeeded, cancelled or not.
        """
        if report.kind == "fail":
            self.arrived(now)
            failure = report.why
            # The queue has taken its node, or could not start it there.
            if failure == "requeued":
                failure = "preempted" if self.witnessed else "node-failure"
            self._except(failure, report.note, now, 126 << 8)
            return
        began, status = report.at - report.seconds, report.status
        self.started(began, report.host, now, report.seconds)
        when = report.at
        if not self.last <= when <= now:
            when = min(now, (self._began or now) + report.seconds)
        kind, why = None, ""
        by = "" if word is None else word.by
        # The queue derives "script failed" from the exit code too, so that adds nothing.
        if word is not None and word.exception not in (None, "exec"):
            kind, why = word.exception, word.note
        elif report.why == "timeout":
            kind, why = "timeout", "it reached its time limit"
        elif report.why == "deleted":
            kind, why = "cancel", "deleted in the queue, not by this run"
        elif report.why == "memory":
            kind, why = "out-of-memory", "the kernel killed a process of it for lack of memory"
        if kind is not None or status or report.why:
            kind, why = self._own_doing(note) or (kind, why)
        if kind is not None:
            self.fail(kind, why, when, now, **({"by": by} if by else {}))
            sent = signal.SIGKILL if kind == "out-of-memory" else signal.SIGTERM
            status = status or int(sent)
        self.end(status, when, now)

    def finished(self, row: QueueJob, now: float, note: str) -> None:
        """Record the end that the queue reported, for a job without a wrapper.

        The text ``note`` is used if we cancelled the job. A job that succeeded before it was
        cancelled has succeeded.
        """
        seconds, cause = 0.0, row.cause
        if row.exception == "exec" and cause is None and "start" in self.told:
            # It had started, so the queue did not fail to start it.
            cause = _cause_of(row.status)
        if row.began is not None and row.ended is not None:
            seconds = max(0.0, row.ended - row.began)
        if row.began is not None or (row.exception is None and row.status is not None):
            self.started(now if row.began is None else row.began, row.host, now, seconds)
        when = now if row.ended is None else row.ended
        if not self.last <= when <= now:
            when = min(now, (self._began or now) + seconds)
        kind, why, own = row.exception, row.note, None
        if kind is not None or row.status != 0:
            own = self._own_doing(note)
            kind, why = own or (kind, why)
        if kind is not None:
            more: dict[str, Any] = {} if own or cause is None else {"cause": cause}
            more |= {"by": row.by} if row.by else {}
            self.fail(kind, why, when, now, **more)
        self.end(row.status if kind is None else row.status or None, when, now)

    def _own_doing(self, note: str) -> tuple[str, str] | None:
        """Return the exception and its note if we ended the job."""
        if self.cancelled:
            return "cancel", note
        return ("lost", self.verdict) if self.verdict else None

    def gone(
        self, kind: str | None, note: str, status: int | None, now: float, by: str = ""
    ) -> None:
        """Record that the queue reports the job as over or unknown, while its wrapper has reported
        no end.
        """
        if kind is None and status is not None:
            self.started(now, "", now)
        if kind is not None:
            self._except(kind, note, now, status, by)
        else:
            self.end(status, now, now)

    def _except(self, kind: str, note: str, now: float, status: int | None, by: str = "") -> None:
        more: dict[str, Any] = {"by": by} if by else {}
        if status is not None and "start" not in self.told:
            more["status"] = status
        self.fail(kind, note, now, now, **more)
        self.end(status or None, now, now)


def _cause_of(status: int | None) -> Cause:
    """Return the cause of the end of a job that ran, from its wait status if it is known."""
    if status is None:
        return "unknown"
    return "signal" if status & 0x7F or 128 < status >> 8 < 160 else "exit"
