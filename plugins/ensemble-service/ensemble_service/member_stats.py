"""Member statistics: gauges, and job counts by group and state, for heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from ensemble_core import Event, JobEvent, JobState, Resources
from ensemble_service.proto import ensemble_pb2 as pb

#: Maximum number of groups in a heartbeat. If there are more, the oldest groups are omitted.
_MOST_GROUPS = 200
#: The state of a job after each event.
_AFTER = {
    "submit": JobState.DEPEND,
    "depend": JobState.PRIORITY,
    "priority": JobState.SCHED,
    "alloc": JobState.RUN,
    "start": JobState.RUN,
    "finish": JobState.CLEANUP,
}


class _Job:
    """An active job."""

    __slots__ = (
        "began", "cancelled", "failed", "group", "ran", "runs_since", "state", "suspended",
        "waits_since",
    )  # fmt: skip

    def __init__(self, group: _Group, submitted: float) -> None:
        self.group = group
        self.waits_since = submitted
        self.runs_since: float | None = None
        self.ran = 0.0  # seconds until then
        self.suspended = False
        self.state = JobState.NEW
        self.failed = self.cancelled = self.began = False


class _Group:
    """Job counts of one group, and sums of its jobs' times in seconds."""

    def __init__(self) -> None:
        self.waiting = self.running = self.success = self.failed = self.cancelled = 0
        self.durations = self.pendings = 0.0
        self.finished = self.began = 0


class MemberStats:
    """Counts jobs and stores gauges. Thread-safe.

    ``changes`` increases whenever a gauge changes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._groups: dict[str, _Group] = {}
        self._states = dict.fromkeys(JobState, 0)
        self._suspended = 0
        self._gauges: dict[str, float] = {}
        self.changes = 0

    def gauges(self, values: Mapping[str, float]) -> None:
        """Update these gauges.

        If a value is not a number, raises ``TypeError`` or ``ValueError`` and changes nothing.
        """
        numbers = {path: float(value) for path, value in values.items()}
        with self._lock:
            if any(self._gauges.get(path) != value for path, value in numbers.items()):
                self._gauges.update(numbers)
                self.changes += 1

    def add(self, run: str, events: Iterable[Event]) -> None:
        """Count events of a run, in order."""
        for event in events:
            if isinstance(event, Resources):
                self.gauges(event.values)
            elif isinstance(event, JobEvent) and event.ours:
                with self._lock:
                    self._job(run, event)

    def leave(self, run: str) -> None:
        """Stop counting a run's active jobs."""
        with self._lock:
            for key in [key for key in self._jobs if key[0] == run]:
                job = self._jobs.pop(key)
                self._move(job, None)

    def _job(self, run: str, event: JobEvent) -> None:
        key = (run, event.job)
        job = self._jobs.get(key)
        name = event.name
        if job is None:
            if name == "clean":
                return
            group = self._group(event.job.rpartition(".")[0] or event.job)
            job = self._jobs[key] = _Job(group, event.timestamp)
            self._states[JobState.NEW] += 1
            group.waiting += 1
        self._run(job, name, event.timestamp)
        if name == "start":
            job.began = True
            job.group.pendings += max(0.0, event.timestamp - job.waits_since)
            job.group.began += 1
        elif name == "requeue":
            job.waits_since = event.timestamp
        elif name == "finish":
            job.failed = job.failed or event.context.get("status") != 0
            if job.began:
                job.group.durations += max(0.0, job.ran)
                job.group.finished += 1
        elif name == "exception" and event.context.get("severity") == 0:
            job.failed = True
            job.cancelled = job.cancelled or event.context.get("type") in ("cancel", "interrupted")
        if name == "clean":
            del self._jobs[key]
            self._move(job, None)
            if job.cancelled:
                job.group.cancelled += 1
            elif job.failed:
                job.group.failed += 1
            else:
                job.group.success += 1
        elif name == "requeue":
            self._move(job, min(job.state, JobState.SCHED))
        else:
            self._move(job, max(job.state, _AFTER.get(name, job.state)))

    def _run(self, job: _Job, name: str, time: float) -> None:
        """Count the time that a job runs, and whether it is suspended."""
        suspended, runs = job.suspended, job.runs_since is not None
        if name == "start" or (name == "unsuspend" and suspended):
            job.runs_since, job.suspended = time, False
        elif name in ("suspend", "requeue", "finish"):
            job.suspended = name == "suspend" and (suspended or runs)
            job.ran += 0.0 if job.runs_since is None else time - job.runs_since
            job.runs_since = None
        self._suspended += job.suspended - suspended

    def _move(self, job: _Job, state: JobState | None) -> None:
        group = job.group
        if state is None:
            self._suspended -= job.suspended
        self._states[job.state] -= 1
        if job.state.waiting:
            group.waiting -= 1
        else:
            group.running -= 1
        if state is None:
            return
        job.state = state
        self._states[state] += 1
        if state.waiting:
            group.waiting += 1
        else:
            group.running += 1

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
            for other in list(self._groups)[: max(0, len(self._groups) - _MOST_GROUPS)]:
                if not self._groups[other].waiting and not self._groups[other].running:
                    del self._groups[other]
        return group

    def beat(self) -> pb.Beat:
        """Return the current heartbeat message."""
        beat = pb.Beat()
        with self._lock:
            for state, count in self._states.items():
                beat.gauges[f"queue.{state.name.lower()}"] = count
            beat.gauges["queue.run"] -= self._suspended
            beat.gauges.update(self._gauges)
            for name, group in list(self._groups.items())[-_MOST_GROUPS:]:
                beat.groups.add(
                    name=name,
                    waiting=group.waiting,
                    running=group.running,
                    success=group.success,
                    failed=group.failed,
                    cancelled=group.cancelled,
                )
                if group.finished:
                    beat.metrics[f"mean.{name}-duration"] = group.durations / group.finished
                if group.began:
                    beat.metrics[f"mean.{name}-pending"] = group.pendings / group.began
        return beat
