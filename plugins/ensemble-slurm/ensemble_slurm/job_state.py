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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ensemble_batch import JobEvents

from ensemble_core import Cause, JobEvent
from ensemble_slurm.parse import Row
from ensemble_slurm.reports import Report
from ensemble_slurm.states import ending, is_over, is_running

__all__ = ["JobStates", "Tracked"]

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


class Tracked(JobEvents):
    """A job that is not over. ``life`` counts how often Slurm has started it again, ``missed``
    looks in a row that do not show it; ``reported`` is its end that waits for Slurm's word."""

    __slots__ = ("cancelled", "life", "missed", "reported")

    def __init__(self, job: str, files: Mapping[str, Any], out: list[JobEvent]) -> None:
        super().__init__(job, files, out)
        self.life = 0
        self.cancelled = False
        self.reported: _End | None = None
        self.missed = 0

    @property
    def doubtful(self) -> bool:
        """True if Slurm is to say soon what became of it."""
        return self.reported is not None or (self.cancelled and self.queue_id is not None)


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

    def expect(self, job: str, files: Mapping[str, Any]) -> Tracked:
        """A job is handed over, or looked for again; ``files`` are those of its ``start``."""
        tracked = self.jobs[job] = Tracked(job, files, self._out)
        return tracked

    def restore(
        self,
        job: str,
        files: Mapping[str, Any],
        queue_id: str | None,
        events: Sequence[tuple[float, str, Mapping[str, Any]]],
        since: float = 0.0,
    ) -> tuple[Tracked, list[JobEvent]]:
        """A job that an earlier controller knew, of which these events were told; and those of them
        after ``since``, to be told again. One that is over is not among ``jobs``."""
        tracked = Tracked(job, files, self._out)
        again = tracked.restore(events, since)
        lives = [int(context.get("restarts", 0)) for _, name, context in events if name == "memo"]
        tracked.life = max(lives, default=0)
        if not tracked.over:
            self.jobs[job] = tracked
            if queue_id is not None:
                self._know(tracked, queue_id)
        return tracked, again

    def job_of(self, queue_id: str) -> str | None:
        """Our id of a job that Slurm calls so, if it is not over."""
        return self._names.get(queue_id)

    def doubtful(self) -> list[Tracked]:
        """Jobs of which Slurm is to say soon what became of them."""
        return [tracked for tracked in self._doubtful.values() if tracked.doubtful]

    def take(self) -> list[JobEvent]:
        """The events since this was last asked."""
        events, self._out[:] = self._out[:], []
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
        tracked.arrive(now, now)

    def refuse(self, job: str, kind: str, note: str, now: float) -> None:
        """A job never came into the queue, and will not."""
        tracked = self.jobs.get(job)
        if tracked is None:
            return
        tracked.refuse(kind, note, now)
        self._drop(tracked)

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
        tracked.arrive(report.at - report.seconds if late else now, now)
        self._live(tracked, report.life, now)
        tracked.missed = 0
        at = min(report.at, now) if late else now
        if report.kind == "start":
            tracked.begin(at, now, report.host)
        elif report.kind == "fail":
            self._failed(tracked, report, at, now)
        elif tracked.reported is None:
            tracked.begin(at - report.seconds, now, report.host)
            killed = report.status & 0x7F in (signal.SIGKILL, signal.SIGTERM)
            tracked.reported = _End(report.status, report.why, at, now)
            if report.why == "timeout":
                self._finish(tracked, "timeout", "it was ended at its time limit", at, now)
            elif report.why != "stopped" and not killed:
                self._finish(tracked, None, "", at, now)
            else:
                self._doubtful[tracked.job] = tracked

    def seen(self, row: Row, now: float) -> None:
        """Slurm says this of a job; rows of others are passed over."""
        name = self._names.get(row.job if row.task is None else f"{row.job}_{row.task}")
        tracked = None if name is None else self.jobs.get(name)
        if tracked is None:
            return
        tracked.missed = 0
        tracked.arrive(row.submitted or now, now)
        self._live(tracked, row.restarts, now)
        if is_over(row.state):
            self._over(tracked, row, now)
        elif tracked.reported is not None and now - tracked.reported.heard > self._patience * (
            # An epilog may take minutes, and the job may go back into the queue after it.
            _EPILOG if row.state == "COMPLETING" else 1
        ):
            kind, note = ("cancel", self._note) if tracked.cancelled else (None, "")
            self._finish(tracked, kind, note, tracked.reported.at, now)
        elif is_running(row.state) and row.state != "COMPLETING":
            tracked.begin(row.started or now, now, row.nodes)

    def missing(self, job: str, now: float) -> None:
        """Slurm does not know a job that it had taken."""
        tracked = self.jobs.get(job)
        if tracked is None or tracked.queue_id is None:
            return
        tracked.missed += 1
        if tracked.missed < _MISSES:
            return
        if tracked.reported is not None:
            kind, note = ("cancel", self._note) if tracked.cancelled else (None, "")
            self._finish(tracked, kind, note, tracked.reported.at, now)
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
        tracked.reported = _End(int(signal.SIGKILL), "", now, now)
        self._finish(tracked, kind, note, now, now)

    # -- the steps of a life -------------------------------------------------------------------

    def _know(self, tracked: Tracked, queue_id: str) -> None:
        tracked.queue_id = queue_id
        self._names[queue_id] = tracked.job

    def _live(self, tracked: Tracked, life: int, now: float) -> None:
        """Slurm has started the job again: what the earlier life said of its end is void."""
        if life <= tracked.life:
            return
        tracked.life = life
        tracked.reported = None
        note = "Slurm has put it back into the queue: it runs again from its beginning"
        tracked.tell("memo", now, now, {"restarts": life, "note": note})

    def _failed(self, tracked: Tracked, report: Report, when: float, now: float) -> None:
        status = 126 << 8
        tracked.fail(report.why, report.note, when, now, status=status)
        tracked.end(status, when, now)
        self._drop(tracked)

    def _over(self, tracked: Tracked, row: Row, now: float) -> None:
        when = row.ended or now
        reported = tracked.reported
        status = row.status if reported is None else reported.status
        ours = self._note if tracked.cancelled else None
        end = ending(row.state, row.reason, status, ours=ours)
        if reported is not None:
            when = reported.at
            if row.state == "FAILED":
                end = end._replace(exception=None)
        if row.nodes and reported is None:
            tracked.begin(row.started or when, now, row.nodes)
        tracked.reported = _End(end.status, "", when, now)
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
        status = 0 if tracked.reported is None else tracked.reported.status
        if kind is not None:
            tracked.fail(kind, note, when, now, **({} if cause is None else {"cause": cause}))
            status = status or int(signal.SIGTERM)
        tracked.end(status, when, now)
        self._drop(tracked)

    def _drop(self, tracked: Tracked) -> None:
        del self.jobs[tracked.job]
        self._doubtful.pop(tracked.job, None)
        # A slurmctld that lost its newest jobs gives their ids to others.
        if tracked.queue_id is not None and self._names.get(tracked.queue_id) == tracked.job:
            del self._names[tracked.queue_id]
