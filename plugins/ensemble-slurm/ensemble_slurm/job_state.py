"""Job states: merges reports, polls and accounting into one right event stream for each job.

Wrappers report the start and the end of what they run; ``squeue`` (and ``sacct``) say what Slurm
knows; sbatch and we ourselves know of submitting and cancelling. All of it may come late, twice, in
any order, or not at all. What is told is RFC 21's life of a job: each step once, in order, with
times that grow, and ``clean`` exactly once.

Who is believed: the wrapper for what the command did; Slurm for why a job was ended from outside.
So an end by SIGTERM or SIGKILL waits until Slurm has said why (``doubtful``), as does a cancelled
job, of which nothing may be left when its ``clean`` is told. Pure; the loop's thread owns it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ensemble_core import Cause, JobEvent
from ensemble_slurm.parse import Row
from ensemble_slurm.reports import Report
from ensemble_slurm.states import ending, is_over, is_running

__all__ = ["JobStates", "Tracked"]

_ALLOCATED: Mapping[str, Any] = {"ranks": "all", "final": True}
#: What lies at least between two events of a job, in seconds.
_STEP = 1e-6
#: Looks in a row that do not show a job until it is given up.
_MISSES = 3
#: How much longer Slurm has to say why where it is still at its epilog.
_EPILOG = 10


class _End(NamedTuple):
    """An end that was reported and waits for Slurm's word."""

    status: int
    why: str
    at: float
    #: When it was heard, by our clock: the node's may be another.
    heard: float


class Tracked:
    """A job that is not over.

    ``extra`` is added to the context of its ``start``; ``told`` are the names of its events so far,
    ``last`` is the time of the newest. ``life`` counts how often Slurm has started it again.
    """

    __slots__ = (
        "cancelled",
        "end",
        "extra",
        "last",
        "life",
        "missed",
        "name",
        "queue_id",
        "told",
    )

    def __init__(self, name: str, extra: Mapping[str, Any]) -> None:
        self.name = name
        self.extra = extra
        self.queue_id: str | None = None
        self.life = 0
        self.told: set[str] = set()
        self.last = 0.0
        self.cancelled = False
        self.end: _End | None = None
        self.missed = 0

    @property
    def doubtful(self) -> bool:
        """Whether Slurm is to say soon what became of it."""
        return self.end is not None or (self.cancelled and self.queue_id is not None)


class JobStates:
    """The jobs of one run that are not over.

    ``note`` is what to say of a job that we cancelled. ``patience`` are the seconds after which a
    reported end is told although Slurm has not said why.
    """

    def __init__(self, note: str, patience: float = 60.0) -> None:
        self._note = note
        self._patience = patience
        self.jobs: dict[str, Tracked] = {}
        self._names: dict[str, str] = {}
        self._doubtful: dict[str, Tracked] = {}
        self._out: list[JobEvent] = []
        #: Ids in Slurm that report under a job's name and are not that job: submitted twice.
        self.doubles: set[str] = set()

    # -- what is asked for ---------------------------------------------------------------------

    def expect(self, job: str, extra: Mapping[str, Any]) -> Tracked:
        """A job is handed over, or looked for again."""
        tracked = self.jobs[job] = Tracked(job, extra)
        return tracked

    def restore(
        self,
        job: str,
        extra: Mapping[str, Any],
        queue_id: str | None,
        events: Iterable[tuple[float, str, Mapping[str, Any]]],
    ) -> Tracked:
        """A job that an earlier controller knew, of which these events were told."""
        tracked = self.expect(job, extra)
        for when, name, context in events:
            tracked.told.add(name)
            tracked.last = max(tracked.last, when)
            if name == "memo":
                tracked.life = max(tracked.life, int(context.get("restarts", 0)))
        if queue_id is not None:
            self._know(tracked, queue_id)
        return tracked

    def job_of(self, queue_id: str) -> str | None:
        """Our id of a job that Slurm calls so, if it is not over."""
        return self._names.get(queue_id)

    def doubtful(self) -> list[Tracked]:
        """Jobs of which Slurm is to say soon what became of them."""
        return [tracked for tracked in self._doubtful.values() if tracked.doubtful]

    def take(self) -> list[JobEvent]:
        """The events since this was last asked."""
        events, self._out = self._out, []
        return events

    # -- what is heard -------------------------------------------------------------------------

    def accepted(self, job: str, queue_id: str, now: float) -> None:
        """Slurm has taken a job and calls it so."""
        tracked = self.jobs.get(job)
        if tracked is None:
            return
        if tracked.queue_id is None:
            self._know(tracked, queue_id)
        elif tracked.queue_id != queue_id:
            self.doubles.add(queue_id)
            return
        self._arrive(tracked, now)

    def refuse(self, job: str, kind: str, note: str, now: float) -> None:
        """A job never came into the queue, and will not."""
        tracked = self.jobs.get(job)
        if tracked is None:
            return
        context = {"type": kind, "severity": 0, "note": note}
        if "submit" not in tracked.told:
            self._tell(tracked, "submit", now, now, {})
        self._tell(tracked, "exception", now, now, context)
        self._clean(tracked, now)

    def cancelling(self, job: str) -> str | None:
        """We cancel a job; what Slurm calls it, if it has it."""
        tracked = self.jobs.get(job)
        if tracked is None:
            return None
        tracked.cancelled = True
        self._doubtful[job] = tracked
        return tracked.queue_id

    def report(self, report: Report, now: float, *, late: bool = False) -> None:
        """A wrapper speaks. ``late``: it was written down some time ago, so its own time counts."""
        tracked = self.jobs.get(report.job)
        if tracked is None:
            return
        if tracked.queue_id is None:
            self._know(tracked, report.queue_id)
        elif tracked.queue_id != report.queue_id:
            self.doubles.add(report.queue_id)
            return
        if report.life < tracked.life:
            return
        self._arrive(tracked, report.at - report.seconds if late else now, now)
        self._live(tracked, report.life, now)
        tracked.missed = 0
        at = min(report.at, now) if late else now
        if report.kind == "start":
            self._start(tracked, at, now, report.host)
        elif report.kind == "fail":
            self._failed(tracked, report, at, now)
        elif tracked.end is None:
            self._start(tracked, at - report.seconds, now, report.host)
            killed = report.status & 0x7F in (signal.SIGKILL, signal.SIGTERM)
            tracked.end = _End(report.status, report.why, at, now)
            if report.why == "timeout":
                self._finish(tracked, "timeout", "it was ended at its time limit", at, now)
            elif report.why != "stopped" and not killed:
                self._finish(tracked, None, "", at, now)
            else:
                self._doubtful[tracked.name] = tracked

    def seen(self, row: Row, now: float) -> None:
        """Slurm says this of a job; rows of others are passed over."""
        name = self._names.get(row.job if row.task is None else f"{row.job}_{row.task}")
        tracked = None if name is None else self.jobs.get(name)
        if tracked is None:
            return
        tracked.missed = 0
        self._arrive(tracked, row.submitted or now, now)
        self._live(tracked, row.restarts, now)
        if is_over(row.state):
            self._over(tracked, row, now)
        elif tracked.end is not None and now - tracked.end.heard > self._patience * (
            # An epilog may take minutes, and the job may go back into the queue after it.
            _EPILOG if row.state == "COMPLETING" else 1
        ):
            kind, note = ("cancel", self._note) if tracked.cancelled else (None, "")
            self._finish(tracked, kind, note, tracked.end.at, now)
        elif is_running(row.state) and row.state != "COMPLETING":
            self._start(tracked, row.started or now, now, row.nodes)

    def missing(self, job: str, now: float) -> None:
        """Slurm does not know a job that it had taken."""
        tracked = self.jobs.get(job)
        if tracked is None or tracked.queue_id is None:
            return
        tracked.missed += 1
        if tracked.missed < _MISSES:
            return
        if tracked.end is not None:
            kind, note = ("cancel", self._note) if tracked.cancelled else (None, "")
            self._finish(tracked, kind, note, tracked.end.at, now)
            return
        self.lose(job, now)

    def lose(self, job: str, now: float) -> None:
        """Nobody will ever say what became of a job."""
        tracked = self.jobs.get(job)
        if tracked is None:
            return
        kind, note = "lost", "Slurm does not know this job any more, and it has left no word"
        if tracked.cancelled:
            kind, note = "cancel", self._note
        tracked.end = _End(int(signal.SIGKILL), "", now, now)
        self._finish(tracked, kind, note, now, now)

    # -- the steps of a life -------------------------------------------------------------------

    def _know(self, tracked: Tracked, queue_id: str) -> None:
        tracked.queue_id = queue_id
        self._names[queue_id] = tracked.name

    def _tell(
        self, tracked: Tracked, name: str, when: float, now: float, context: Mapping[str, Any]
    ) -> None:
        """Times grow, and lie in the future only where the last one did."""
        when = max(min(when, now), tracked.last + _STEP)
        tracked.last = when
        tracked.told.add(name)
        self._out.append(JobEvent(when, tracked.name, name, context))

    def _arrive(self, tracked: Tracked, when: float, now: float | None = None) -> None:
        now = when if now is None else now
        if "submit" not in tracked.told:
            self._tell(tracked, "submit", when, now, {"queue_id": tracked.queue_id})
        for name in ("validate", "depend", "priority"):
            if name not in tracked.told:
                self._tell(tracked, name, tracked.last, now, {})

    def _live(self, tracked: Tracked, life: int, now: float) -> None:
        """Slurm has started the job again: what the earlier life said of its end is void."""
        if life <= tracked.life:
            return
        tracked.life = life
        tracked.end = None
        note = "Slurm has put it back into the queue: it runs again from its beginning"
        self._tell(tracked, "memo", now, now, {"restarts": life, "note": note})

    def _start(self, tracked: Tracked, when: float, now: float, host: str) -> None:
        if "start" in tracked.told:
            return
        self._tell(tracked, "alloc", when, now, {})
        context = {**tracked.extra, "host": host} if host else dict(tracked.extra)
        self._tell(tracked, "start", when, now, context)

    def _failed(self, tracked: Tracked, report: Report, when: float, now: float) -> None:
        status = 126 << 8
        context = {"type": report.why, "severity": 0, "note": report.note, "status": status}
        self._tell(tracked, "exception", when, now, context)
        if "start" in tracked.told:
            self._tell(tracked, "finish", when, now, {"status": status})
        self._clean(tracked, now)

    def _over(self, tracked: Tracked, row: Row, now: float) -> None:
        when = row.ended or now
        reported = tracked.end
        status = row.status if reported is None else reported.status
        ours = self._note if tracked.cancelled else None
        end = ending(row.state, row.reason, status, ours=ours)
        if reported is not None:
            when = reported.at
            if row.state == "FAILED":
                end = end._replace(exception=None)
        if row.nodes and reported is None:
            self._start(tracked, row.started or when, now, row.nodes)
        tracked.end = _End(end.status, "", when, now)
        self._finish(tracked, end.exception, end.note, when, now, end.cause)

    def _finish(
        self,
        tracked: Tracked,
        kind: str | None,
        note: str,
        when: float,
        now: float,
        cause: Cause | None = None,
    ) -> None:
        if kind is not None:
            context: dict[str, Any] = {"type": kind, "severity": 0, "note": note}
            if cause is not None:
                context["cause"] = cause
            self._tell(tracked, "exception", when, now, context)
        if "start" in tracked.told:
            status = 0 if tracked.end is None else tracked.end.status
            if kind is not None and status == 0:
                status = int(signal.SIGTERM)
            self._tell(tracked, "finish", when, now, {"status": status})
        self._clean(tracked, now)

    def _clean(self, tracked: Tracked, now: float) -> None:
        if "alloc" in tracked.told:
            self._tell(tracked, "release", now, now, _ALLOCATED)
            self._tell(tracked, "free", now, now, {})
        self._tell(tracked, "clean", now, now, {})
        del self.jobs[tracked.name]
        self._doubtful.pop(tracked.name, None)
        # A slurmctld that lost its newest jobs gives their ids to others.
        if tracked.queue_id is not None and self._names.get(tracked.queue_id) == tracked.name:
            del self._names[tracked.queue_id]
