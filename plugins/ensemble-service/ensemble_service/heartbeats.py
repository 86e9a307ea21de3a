"""Heartbeats of a member: what they contain, how often they are sent, and the reporter of a queue.

The member agent sends them, or the :class:`Reporter` of a run on its own queue, which the service
then shows as a member.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from ensemble_core import EnsembleError, Event, JobEvent, JobState, Resources
from ensemble_service.access import member_name
from ensemble_service.call_errors import MISMATCHED, diagnose
from ensemble_service.channel import address, open_channel, read_token
from ensemble_service.connection import Connection
from ensemble_service.proto import ensemble_pb2 as pb

#: Seconds between heartbeats: usual, and shortest.
BEAT, SOONEST = 2.0, 0.2
#: Limits of a heartbeat: number of gauges and of metrics, number of groups (a member omits the
#: oldest), characters of a name.
_MOST_VALUES, _MOST_GROUPS, _LONGEST_NAME = 1_000, 200, 200
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


def read_beat(
    beat: pb.Beat,
) -> tuple[dict[str, float], dict[str, float], tuple[pb.Group, ...], int]:
    """Return gauges, metrics and groups within the limits, and the number of those beyond them."""
    gauges, metrics = _limited(beat.gauges), _limited(beat.metrics)
    # Copy the groups, because a reference to a part of a message keeps the whole message in memory.
    named = (group for group in beat.groups if _is_name(group.name))
    groups = tuple(_copy(group) for group in islice(named, _MOST_GROUPS))
    left = len(beat.gauges) - len(gauges) + len(beat.metrics) - len(metrics)
    return gauges, metrics, groups, left + len(beat.groups) - len(groups)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable()


def _copy(group: pb.Group) -> pb.Group:
    copy = pb.Group()
    copy.CopyFrom(group)
    return copy


def _limited(values: Mapping[str, float]) -> dict[str, float]:
    named = ((path, value) for path, value in values.items() if _is_name(path))
    return dict(islice(named, _MOST_VALUES))


#: Error codes for which ``refused`` is called. Waiting does not help, but a renewed token may.
_LASTING = MISMATCHED | {"permission-denied", "unauthenticated", "unimplemented"}

_log = logging.getLogger("ensemble.member")


class Reporter:
    """Sender of heartbeats for the member ``name`` to the service at ``host:port``.

    - ``token_file``: file with the credential, read for each connection
    - ``ca``, ``insecure``: as for :class:`ServiceClient`
    - ``executor``, ``version``, ``capabilities``: description of the member
    - ``refused``: called on another thread with errors such as a rejected credential; once per
      error code until the service answers again

    Reconnects forever, even after such an error.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        token_file: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        executor: str = "",
        version: str = "",
        capabilities: Collection[str] = (),
        refused: Callable[[EnsembleError], None] | None = None,
    ) -> None:
        self._hello = pb.Hello(
            member=member_name(name),
            executor=executor,
            version=version,
            capabilities=sorted(capabilities),
            host=socket.gethostname(),
        )
        self._refused = refused
        self._told: set[str] = set()
        self._stats = MemberStats()
        self._ended = threading.Event()

        def channel() -> Any:
            token = read_token(token_file) if token_file else None
            return open_channel(host, port, token=token, ca=ca, insecure=insecure)

        self._connection: Connection[pb.FromMember, pb.ToMember] = Connection(
            channel,
            "Member",
            address(host, port),
            first=lambda: pb.FromMember(hello=self._hello),
            heard=self._on_message,
            down=self._down,
            away=partial(diagnose, host, port, ca=ca, insecure=insecure),
        )
        self._beats = threading.Thread(
            target=self._send_heartbeats, name="ensemble-beats", daemon=True
        )

    def start(self) -> None:
        """Connect, and report until :meth:`stop`."""
        self._connection.start()
        self._beats.start()

    def gauges(self, values: Mapping[str, float]) -> None:
        """Update these gauges."""
        self._stats.gauges(values)

    def add(self, run: str, events: Iterable[Event]) -> None:
        """Count events of a run, in order. Only this run reports here, so its tag suffices."""
        self._stats.add(run, events)

    def stop(self) -> None:
        """Send a last heartbeat and leave the service."""
        if not self._ended.is_set():
            self._connection.send(pb.FromMember(beat=self._stats.beat()))
        self._ended.set()
        self._connection.finish(BEAT)
        if self._beats.ident is not None and self._beats is not threading.current_thread():
            self._beats.join(BEAT)

    def _on_message(self, message: pb.ToMember) -> None:
        self._told.clear()
        if message.WhichOneof("what") != "call" or not message.call.epoch:
            return
        call = message.call
        answer = pb.Answer(run=call.run, member=call.member, epoch=call.epoch, id=call.id)
        why = f"{self._hello.member} is controlled by its own run, beside its queue"
        answer.fault.CopyFrom(pb.Fault(message=why, code="steered-here"))
        self._connection.send(pb.FromMember(answer=answer))

    def _down(self, error: EnsembleError) -> None:
        if error.code in _LASTING and error.code not in self._told and not self._ended.is_set():
            self._told.add(error.code)
            if self._refused is not None:
                self._refused(error)

    def _send_heartbeats(self) -> None:
        changes, last = -1, 0.0
        while not self._ended.wait(SOONEST):
            now = time.monotonic()
            if now - last < BEAT and self._stats.changes == changes:
                continue
            changes, last = self._stats.changes, now
            self._connection.send(pb.FromMember(beat=self._stats.beat()))
