"""Tracking of the run's jobs: emits each of their events once, in order, on the run's clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ensemble_core import JobEvent
from ensemble_core.local.ledger_reader import LedgerReading
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.ledger import STEP, Entry, Transaction

#: Events that the controller emits itself at the submission.
FIRST = frozenset({"submit", "validate", "depend", "priority"})


class TrackedJob:
    """A job that the run waits for. Times are in seconds since the epoch.

    - ``since``: the time of the last event that the run has
    - ``last``: the time of the last event that was emitted, or would have been
    - ``newest``: the time of the last event of the node, by its clock

    ``suspended`` is true while the job is suspended.
    """

    __slots__ = ("cancelled", "entry", "last", "names", "newest", "since", "suspended")

    def __init__(self, entry: Entry, since: float | None) -> None:
        self.entry = entry
        self.last = entry.last_of_first
        self.since = self.last if since is None else since
        self.newest = 0.0
        self.names: set[str] = set()
        self.cancelled = False
        self.suspended = False


class Tracking:
    """The jobs that the run waits for."""

    def __init__(self, transaction: Transaction, fleet: Fleet) -> None:
        self._transaction, self._fleet = transaction, fleet
        self._jobs: dict[str, TrackedJob] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, name: str) -> TrackedJob | None:
        return self._jobs.get(name)

    def add(self, entry: Entry, since: float | None = None) -> TrackedJob:
        """Track a job. ``since`` is the time of its last event that the run has; ``None``: the run
        has those of the submission.
        """
        tracked = self._jobs[entry.job.id] = TrackedJob(entry, since)
        if since is not None:
            self._emit(tracked, entry.first_events())
        return tracked

    def deliver(self, event: JobEvent) -> None:
        """Emit an event of a job's head, and release the job if it is the last one."""
        tracked = self._jobs.get(event.job)
        if tracked is None or event.timestamp <= tracked.newest:
            return
        tracked.newest = event.timestamp
        if event.name in FIRST:
            return
        if event.name in ("suspend", "unsuspend"):
            suspended = event.name == "suspend"
            if tracked.suspended is suspended:  # the outer queue has said so before
                return
            tracked.suspended = suspended
        tracked.names.add(event.name)
        if event.timestamp <= tracked.last:
            event = JobEvent(tracked.last + STEP, event.job, event.name, event.context)
        tracked.last = event.timestamp
        self._emit(tracked, [event])
        if event.name == "start":
            self._fleet.started(event.job, event.timestamp)
        elif event.name == "clean":
            self._over(tracked, event.timestamp)

    def suspend(self, name: str, event: JobEvent, since: float) -> None:
        """Emit that the outer queue has suspended or continued the pilot of a job that runs.

        ``since``: when it did so.
        """
        tracked, suspended = self._jobs.get(name), event.name == "suspend"
        if tracked is None or "start" not in tracked.names or "finish" in tracked.names:
            return
        if tracked.suspended is not suspended:
            tracked.suspended = suspended
            tracked.last = max(since, tracked.last + STEP)
            self._emit(tracked, [JobEvent(tracked.last, name, event.name, event.context)])

    def finish(self, tracked: TrackedJob, kind: str, note: str, ended: float | None = None) -> None:
        """End a job here: its events are in the ledger before they are emitted.

        ``ended``: when it ended, if that is not now.
        """
        name = tracked.entry.job.id
        now = self._transaction.clock() if ended is None else ended
        now = max(now, tracked.last + STEP, tracked.since + STEP)  # the queue's clock may be behind
        events = []
        if "finish" not in tracked.names:
            context = {"type": kind, "severity": 0, "note": note}
            events.append(JobEvent(now, name, "exception", context))
            if "start" in tracked.names:
                events.append(JobEvent(now + STEP, name, "finish", {"status": 9}))
        events.append(JobEvent(now + 2 * STEP, name, "clean"))
        for event in events:
            self._transaction.record("e", name, event.timestamp, event.name, dict(event.context))
        self._transaction.then(lambda: self._emit(tracked, events))
        self._over(tracked)

    def replay_end(self, tracked: TrackedJob) -> None:
        """Emit the end of a job that an earlier controller has finished."""
        self._emit(tracked, tracked.entry.ended)
        self._over(tracked)

    def settle(
        self,
        names: Sequence[str],
        reading: LedgerReading,
        why: str,
        *,
        requeue: bool,
        ended: float | None = None,
    ) -> list[str]:
        """Take over what a ledger says of jobs, read after the fence of their pilot was set.

        ``ended``: when the pilot ended, if that is not now.
        ``requeue``: jobs that had started in the pilot run again, if it is certain that none of
        their processes is left.
        Return the jobs that never started. All others are over after that.
        """
        for event in reading.events:
            self.deliver(event)
        waiting = []
        for name in names:
            tracked = self._jobs.get(name)
            if tracked is None:
                continue
            if tracked.entry.ended:
                self.replay_end(tracked)
            elif tracked.cancelled or reading.state(name) == "waiting":
                if self._waits_again(tracked, f"cancelled; {why}"):
                    waiting.append(name)
            else:
                safe = requeue and reading.quit is not None
                self.finish(tracked, "interrupted" if safe else "preempted", why, ended)
        return waiting

    def recalled(self, names: Iterable[str]) -> None:
        """Let jobs wait again that their node has dropped before their start."""
        for name in names:
            tracked = self._jobs.get(name)
            if tracked and self._waits_again(tracked, "cancelled while it waited for a pilot"):
                self._transaction.record("w", [name])
                self._fleet.recalled(name, self._transaction.clock())

    def _waits_again(self, tracked: TrackedJob, note: str) -> bool:
        """Return whether a job that did not start waits again. Finish it if it was cancelled."""
        if tracked.cancelled:
            self.finish(tracked, "cancel", note)
            return False
        tracked.newest = 0.0  # the clock of the next node may be behind
        return True

    def _emit(self, tracked: TrackedJob, events: Iterable[JobEvent]) -> None:
        """Emit those events that the run does not have yet."""
        new = [event for event in events if event.timestamp > tracked.since]
        if new:
            self._transaction.emit(new)

    def _over(self, tracked: TrackedJob, ended: float | None = None) -> None:
        name = tracked.entry.job.id
        del self._jobs[name]
        if name in self._fleet.placed:
            self._fleet.release(name, self._transaction.clock(), ended)
