"""Job table of the engine: the jobs that are not over yet, and each group's standing.

A job is in the table from the decision to submit it until its ``clean`` event; of one that is over
nothing is kept but the counts. Written by the engine alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ensemble_core.engine.rule_index import RuleIndex, Watch
from ensemble_core.metrics.store import VARIABLES, MetricStore
from ensemble_core.model.causes import Cause, cause_of, said_cause
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import RFC21_EVENTS, Job, JobGroup, JobState

__all__ = ["GroupState", "JobRecord", "JobTable", "Link", "Strangers", "exit_code"]

Outcome = Literal["success", "failed", "cancelled"]
_OUTCOME_OCCASION: dict[Outcome, str] = {
    "success": "job-success",
    "failed": "job-fail",
    "cancelled": "job-cancel",
}
#: The variable of how long jobs ran that ended so.
_DURATIONS: dict[Outcome, str] = {outcome: f"duration.{outcome}" for outcome in _OUTCOME_OCCASION}

#: The state that an event brings a job to (RFC 21).
_STATE_AFTER: dict[str, JobState] = {
    "submit": JobState.NEW,
    "validate": JobState.DEPEND,
    "depend": JobState.PRIORITY,
    "priority": JobState.SCHED,
    "alloc": JobState.RUN,
    "start": JobState.RUN,
    "finish": JobState.CLEANUP,
    "clean": JobState.INACTIVE,
}

#: Events that a job has at most once: a second one is an echo and changes nothing.
_ONCE = ("submit", "validate", "depend", "alloc", "start", "finish", "free", "clean")


def exit_code(status: int) -> int:
    """The exit code as a shell reports it: 128 + signal for a job that a signal ended.

    >>> exit_code(256), exit_code(9)
    (1, 137)
    """
    signal = status & 0x7F
    return 128 + signal if signal else (status >> 8) & 0xFF


#: States that are an occasion of their own; of DEPEND and PRIORITY the events of that name speak.
_STATE_OCCASION = {
    JobState.SCHED: "job-sched",
    JobState.RUN: "job-run",
    JobState.CLEANUP: "job-cleanup",
    JobState.INACTIVE: "job-inactive",
}


class _Step(NamedTuple):
    """What an event of one name does to a job.

    ``once`` is its bit, if a job has it only once; ``changes`` says that the record changes beside
    its state; ``state`` is the one that it leads to (0: none). It makes the occasions ``moving``
    if the job's state changes by it, ``occasions`` otherwise.
    """

    once: int
    changes: bool
    state: int
    occasions: tuple[str, ...]
    moving: tuple[str, ...]


def _step(name: str) -> _Step:
    state = _STATE_AFTER.get(name, JobState.NEW)
    changes = name in ("submit", "start", "exception", "finish", "clean")
    own = (f"job-{name}",)
    moving = (*own, _STATE_OCCASION[state]) if state in _STATE_OCCASION else own
    once = 1 << _ONCE.index(name) if name in _ONCE else 0
    return _Step(once, changes, state.value, own, moving)


_STEPS = {name: _step(name) for name in RFC21_EVENTS}
_QUEUE: dict[int, str] = {state: f"queue.{state.name.lower()}" for state in JobState}


@dataclass(slots=True, eq=False)
class Link:
    """One firing in a chain of firings that caused one another.

    ``depth`` counts the firings since a job last finished; ``finishes`` says when that was.
    """

    rule: str
    parent: Link | None
    depth: int
    finishes: int

    def names(self) -> list[str]:
        """The rules of the chain, first to last."""
        link: Link | None = self
        found: list[str] = []
        while link is not None and link.finishes == self.finishes:
            found.append(link.rule)
            link = link.parent
        return found[::-1]


@dataclass(slots=True, eq=False, repr=False)
class JobRecord:
    """A job that is not over yet."""

    job: Job
    submitted: float
    link: Link | None
    state: int = JobState.NEW.value
    started: float | None = None
    finished: float | None = None
    status: int | None = None
    exception: str | None = None
    note: str = ""
    #: Why it ended, where its executor said so.
    cause: Cause | None = None
    outcome: Outcome | None = None
    queue_id: object = None
    seen: int = 0
    #: Whether a rule that concerns itself with failure matched an event of this job.
    concern: bool = False
    #: Whether the executor was told to cancel it.
    cancelling: bool = False
    #: Whether it then could not be.
    refused: bool = False
    #: When its newest event was; 0 before the first.
    newest: float = 0.0
    #: The context of its ``start``, which says where its output is, and, of an observed job,
    #: the rows read so far by observer.
    files: Mapping[str, Any] | None = None
    rows: dict[str, int] | None = None

    @property
    def why(self) -> Cause | None:
        """Why it ended; ``None`` while nothing says that it does."""
        if self.outcome is None and self.exception is None:
            return None
        return self.cause or cause_of(self.exception, self.status)


@dataclass(slots=True, eq=False, repr=False)
class GroupState:
    """One group's standing. ``waiting`` are its jobs without resources, oldest first; ``counts``
    are the metric store's own, ``watches`` those of them that rules wait for."""

    group: JobGroup
    counts: dict[str, int]
    watches: dict[str, Watch] = field(default_factory=dict)
    next_index: int = 0
    waiting: dict[str, JobRecord] = field(default_factory=dict)
    running: int = 0
    #: How many of its jobs failed by each cause.
    causes: dict[str, int] = field(default_factory=dict)

    def ages(self, now: float) -> Iterator[float]:
        """How long each waiting job has waited so far, in seconds."""
        for record in self.waiting.values():
            yield max(0.0, now - record.submitted)


class JobTable:
    """The jobs that are not over, by our id, and what is counted of all of them.

    Every change is handed to the metrics, and every metric that a rule waits for to the index.
    """

    def __init__(
        self, groups: Mapping[str, JobGroup], metrics: MetricStore, index: RuleIndex
    ) -> None:
        self.groups: dict[str, GroupState] = {}
        self.records: dict[str, JobRecord] = {}
        self.submitted = 0
        self.finishes = 0
        #: Whether the executor itself reports the gauges ``queue.*`` and ``waiting.nodes``.
        self.queue_reported = False
        self._metrics = metrics
        self._states = [0] * len(JobState)
        self._waiting_nodes = 0
        self.adopt({}, groups, index)

    def adopt(
        self, before: Mapping[str, JobGroup], groups: Mapping[str, JobGroup], index: RuleIndex
    ) -> None:
        """Go on with a changed file. A group that it defines as before keeps what rules set."""
        self._index = index
        for name, group in groups.items():
            state = self.groups.get(name)
            if state is None:
                state = self.groups[name] = GroupState(group, self._metrics.counts[name])
            elif before.get(name) != group:
                state.group = group
        for name, state in self.groups.items():
            state.watches = index.counts.setdefault(name, {})

    def add(self, jobs: Iterable[Job], now: float, link: Link | None) -> None:
        """These jobs are about to be submitted."""
        for job in jobs:
            record = self.records[job.id] = JobRecord(job, now, link)
            group = self.groups[job.group]
            group.waiting[job.id] = record
            self.submitted += 1
            self._count(group, "submitted")
            self._states[JobState.NEW] += 1
            self._waiting_nodes += job.nodes
        self._touch("waiting.nodes", self._waiting_nodes)

    def take(self, record: JobRecord, event: JobEvent) -> tuple[str, ...] | None:
        """Work one event of a job of ours in; the occasions it makes, or ``None`` for an echo."""
        name = event.name
        record.newest = event.timestamp
        step = _STEPS.get(name)
        if step is None:
            return (f"job-{name}",)
        once, changes, state, occasions, moving = step
        if once:
            if record.seen & once:
                return None
            record.seen |= once
        outcome = self._change(record, event) if changes else None
        before = record.state
        if state > before:
            occasions = moving
            record.state = state
            states = self._states
            states[before] -= 1
            states[state] += 1
            if self._index.gauges:
                self._touch(_QUEUE[before], states[before])
                self._touch(_QUEUE[state], states[state])
        return occasions if outcome is None else (*occasions, outcome)

    def _change(self, record: JobRecord, event: JobEvent) -> str | None:
        """What an event changes beside a job's state; the occasion of its outcome, if that is known
        by it."""
        name = event.name
        if name == "submit":
            record.submitted = event.timestamp
            record.queue_id = event.context.get("queue_id")
        elif name == "start":
            record.files = event.context
            self._start(record, event.timestamp)
        elif name == "exception":
            self._except(record, event)
        elif name == "finish":
            status = event.context.get("status", 0)
            record.status = status if isinstance(status, int) else None
            record.finished = event.timestamp
            if "cause" in event.context and record.exception is None:
                record.cause = said_cause(event.context)
            self.finishes += 1
            return self._outcome(record)
        else:  # clean
            del self.records[record.job.id]
            if record.outcome is None:
                return self._outcome(record)
        return None

    def _except(self, record: JobRecord, event: JobEvent) -> None:
        if event.context.get("severity", 0) == 0 and record.exception is None:
            record.exception = str(event.context.get("type", ""))
            record.note = str(event.context.get("note", ""))
            if record.outcome is None:
                record.cause = said_cause(event.context)
            status = event.context.get("status")
            if record.status is None and isinstance(status, int):
                record.status = status  # of a job that could not be launched: 126 or 127

    def _start(self, record: JobRecord, now: float) -> None:
        record.started = now
        job = record.job
        group = self.groups[job.group]
        if group.waiting.pop(job.id, None) is not None:
            group.running += 1
            self._waiting_nodes -= job.nodes
            if self._index.gauges:
                self._touch("waiting.nodes", self._waiting_nodes)
            if now >= record.submitted:
                self._record(job.group, "pending", now - record.submitted, now)

    def _outcome(self, record: JobRecord) -> str:
        """Decide and count how a job ended; the occasion that this is."""
        job = record.job
        group = self.groups[job.group]
        if group.waiting.pop(job.id, None) is None:
            group.running -= 1
        else:
            self._waiting_nodes -= job.nodes
            self._touch("waiting.nodes", self._waiting_nodes)
        outcome: Outcome = "cancelled"
        if record.exception != "cancel":
            good = record.exception is None and record.status == 0
            outcome = "success" if good else "failed"
            self._count(group, "finished")
        record.outcome = outcome
        self._count(group, outcome)
        if outcome == "failed":
            why = record.why or "unknown"
            group.causes[why] = group.causes.get(why, 0) + 1
        if record.started is not None and record.finished is not None:
            duration = record.finished - record.started
            if duration >= 0:
                if outcome != "cancelled":
                    self._record(job.group, "duration", duration, record.finished)
                self._record(job.group, _DURATIONS[outcome], duration, record.finished)
        return _OUTCOME_OCCASION[outcome]

    def _count(self, group: GroupState, counter: str) -> None:
        group.counts[counter] += 1
        watch = group.watches.get(counter)
        if watch is not None:
            self._index.touched[watch] = None

    def _record(self, group: str, variable: str, value: float, now: float) -> None:
        if value - value != 0.0:
            return  # the metric does not change, so no rule that waits for it is to look
        key = (group, variable)
        series = self._metrics.series.get(key)
        if series is not None:
            series.record(value, now)
            watches = self._index.series.get(key)
            if watches is not None:
                self._index.touched.update(watches)

    def forget(self, record: JobRecord) -> None:
        """A job that never reached an executor is cancelled: it is over at once."""
        record.exception = "cancel"
        self.take(record, JobEvent(record.newest, record.job.id, "clean"))

    def observe(
        self, record: JobRecord, observer: str, values: Mapping[str, float], now: float
    ) -> None:
        """Take a row that an observer read in the job's output."""
        group = record.job.group
        if record.rows is None:
            record.rows = {}
        record.rows[observer] = record.rows.get(observer, 0) + 1
        for variable, value in values.items():
            if variable.partition(".")[0] in VARIABLES:
                continue  # the group's own; no output may mix into them
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                continue  # an observer's slip: a wrong value is worse than a missing one
            if self._metrics.everything and number - number == 0.0:
                self._metrics.add(group, variable)
            self._record(group, variable, number, now)

    def _touch(self, gauge: str, value: float) -> None:
        watch = self._index.gauges.get(gauge)
        if watch is not None and not self.queue_reported:
            self._metrics.gauges[gauge] = value
            self._index.touched[watch] = None

    def fill_gauges(self) -> None:
        """Bring the gauges of the queue up to date, for somebody who reads all of them."""
        if not self.queue_reported:
            for state, gauge in _QUEUE.items():
                if state is not JobState.NEW:
                    self._metrics.gauges[gauge] = self._states[state]
            self._metrics.gauges["waiting.nodes"] = self._waiting_nodes

    def fields(self, record: JobRecord) -> dict[str, Any]:
        """What a condition may know of this job."""
        job = record.job
        fields: dict[str, Any] = {
            **job.parameters,
            "job": job.id,
            "group": job.group,
            "index": job.index,
        }
        if record.queue_id is not None:
            fields["queue_id"] = record.queue_id
        if record.started is not None:
            fields["pending"] = record.started - record.submitted
        if record.status is not None:
            fields["status"] = record.status
            fields["exit_code"] = exit_code(record.status)
            if record.started is not None and record.finished is not None:
                fields["duration"] = record.finished - record.started
        if record.exception is not None:
            fields["type"] = record.exception
            fields["note"] = record.note
        # A parameter of that name is meant where there is one.
        if record.outcome == "success":
            fields.setdefault("cause", record.cause or "exit")
        elif record.outcome is not None or record.exception is not None:
            fields.setdefault("cause", record.why)
        if job.duration:
            fields.setdefault("limit", job.duration)
        return fields

    @staticmethod
    def described(record: JobRecord) -> dict[str, Any]:
        """The job itself as plain data, for functions and slow actions: what it runs, where, and
        how it ended, as far as that is known."""
        job, files = record.job, record.files or {}
        # What a keeper of jobs says of it; another place may mean another folder by a relative one.
        workdir = files.get("workdir") or job.workdir
        known: dict[str, Any] = {
            "job": job.id,
            "group": job.group,
            "index": job.index,
            "command": list(job.command),
            "workdir": workdir if isinstance(workdir, str) and workdir.startswith("/") else None,
            "parameters": dict(job.parameters),
            "nodes": job.nodes,
            "tasks": job.tasks,
            "started": record.started,
        }
        if record.outcome is not None:
            known["outcome"] = record.outcome
        return known


@dataclass(slots=True)
class _Stranger:
    """A job of somebody else's that is not over yet."""

    state: int = JobState.NEW.value
    exception: str | None = None
    status: int | None = None
    cause: Cause | None = None


class Strangers:
    """What is derived of other people's jobs, for rules that see the whole queue.

    Nothing of a job is kept once it is over, and nothing at all while no rule asks.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Stranger] = {}

    def take(self, event: JobEvent) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The occasions that an event makes, and what conditions may know of the job."""
        job = self._jobs.get(event.job)
        if job is None:
            job = self._jobs[event.job] = _Stranger()
        name, context = event.name, event.context
        step = _STEPS.get(name) or _step(name)
        occasions = list(step.occasions)
        ended = job.state >= JobState.CLEANUP
        if step.state > job.state:
            job.state = step.state
            occasions = list(step.moving)
        if name == "exception" and context.get("severity", 0) == 0 and job.exception is None:
            job.exception = str(context.get("type", ""))
            job.cause = said_cause(context)
        elif name == "finish":
            status = context.get("status")
            job.status = status if isinstance(status, int) else None
            if job.exception is None:
                job.cause = said_cause(context)
        if name in ("finish", "clean") and not ended:
            if job.exception == "cancel":
                occasions.append("job-cancel")
            else:
                good = job.exception is None and job.status == 0
                occasions.append("job-success" if good else "job-fail")
        if name == "clean":
            del self._jobs[event.job]
        fields: dict[str, Any] = {**context, "name": name, "job": event.job}
        if job.status is not None:
            fields.update(status=job.status, exit_code=exit_code(job.status))
        if ended or name in ("finish", "clean") or job.exception is not None:
            fields["cause"] = job.cause or cause_of(job.exception, job.status)
        return tuple(dict.fromkeys(occasions)), fields
