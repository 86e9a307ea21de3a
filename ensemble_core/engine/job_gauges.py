"""Gauges of the run's own jobs, such as the number of waiting jobs.

Counting starts when a gauge is first used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ensemble_core.engine.random_draw import draw
from ensemble_core.engine.rule_index import RuleIndex
from ensemble_core.metrics.store import BACKLOG, MetricStore
from ensemble_core.model.jobs import Job, JobState

if TYPE_CHECKING:
    from ensemble_core.engine.group_state import GroupState
    from ensemble_core.engine.job_record import JobRecord

_QUEUE: dict[int, str] = {state: f"queue.{state.name.lower()}" for state in JobState}
_SUSPENDED = "queue.suspended"
#: Gauges that have the number of nodes of one waiting job as their value (0 if no job waits). Rules
#: on them are checked at submits and heartbeats.
_OF_ONE = ("waiting.next", "waiting.smallest", "waiting.largest", "waiting.random")


class JobGauges:
    """Gauges of the jobs of this run. They are updated once ``active`` is true."""

    __slots__ = (
        "_active", "_groups", "_lines", "_metrics", "_nodes", "_records", "_sizes", "_states",
        "_suspended", "_waiting", "active", "heartbeats", "index", "queue_reported",
    )  # fmt: skip

    def __init__(
        self,
        groups: Mapping[str, GroupState],
        records: Mapping[str, JobRecord],
        metrics: MetricStore,
        index: RuleIndex,
    ) -> None:
        #: True if the executor itself reports ``queue.*`` and ``waiting.nodes``. Its values are
        #: then used, except for ``queue.active`` and ``queue.suspended``.
        self.queue_reported = False
        #: Number of heartbeats so far; each one draws ``waiting.random`` again.
        self.heartbeats = 0
        self.index = index
        self.active = False
        self._groups = groups
        self._records = records
        self._metrics = metrics
        self._active = 0
        self._states = [0] * len(JobState)
        self._suspended = 0
        self._nodes = 0
        self._waiting = 0
        #: How many waiting jobs need a given number of nodes.
        self._sizes: dict[int, int] = {}
        #: For each urgency, the number of nodes of each waiting job, in the order of submission.
        #: These are ordered dicts, because finding the first entry of a plain dict gets slower as
        #: entries are removed.
        self._lines: dict[int, OrderedDict[str, int]] = {}

    def keep(self) -> None:
        """Count the current jobs now, and all changes from now on."""
        if self.active:
            return
        self.active = True
        for group in self._metrics.counts:
            self._active += self._metrics.count(group, "active")
        for record in self._records.values():
            if record.state == "suspended":
                self._suspended += 1
            elif record.state not in ("looking", "held") and record.reused is None:
                self._states[record.phase] += 1
        over = sum(each["submitted"] for each in self._metrics.counts.values()) - len(self._records)
        self._states[JobState.INACTIVE] = over
        for record in sorted(self._records.values(), key=lambda each: each.submitted):
            if record.job.id in self._groups[record.job.group].waiting:
                self._begin_to_wait(record.job)

    # -- updates, while they are active ------------------------------------------------------------

    def count_active(self, by: int) -> None:
        """Update the number of active jobs."""
        self._active += by
        self._touch("queue.active", self._active)

    def enqueue(self, job: Job) -> None:
        """Count a job as waiting in the queue."""
        self._states[JobState.NEW] += 1
        self.wait_again(job)

    def wait_again(self, job: Job) -> None:
        """Count a job as waiting in the queue, after the count of its state was updated."""
        self._begin_to_wait(job)
        if self.index.gauges:
            self._update_waiting()
            for gauge in _OF_ONE:
                if gauge in self.index.gauges:
                    self._touch(gauge, self.value(gauge))

    def _begin_to_wait(self, job: Job) -> None:
        nodes = job.nodes
        self._nodes += nodes
        self._waiting += 1
        self._sizes[nodes] = self._sizes.get(nodes, 0) + 1
        self._lines.setdefault(job.urgency, OrderedDict())[job.id] = nodes

    def dequeue(self, job: Job) -> None:
        """Stop counting a job as waiting, because it has resources or is over."""
        nodes = job.nodes
        self._nodes -= nodes
        self._waiting -= 1
        left = self._sizes[nodes] - 1
        if left:
            self._sizes[nodes] = left
        else:
            del self._sizes[nodes]
        line = self._lines[job.urgency]
        del line[job.id]
        if not line:
            del self._lines[job.urgency]
        if self.index.gauges:
            self._update_waiting()

    def move(self, before: int, after: int) -> None:
        """Count a change of a job's state."""
        states = self._states
        states[before] -= 1
        states[after] += 1
        if self.index.gauges and not self.queue_reported:
            self._touch(_QUEUE[before], states[before])
            self._touch(_QUEUE[after], states[after])

    def suspend(self, by: int) -> None:
        """Count a running job as suspended, or (``by`` = -1) a suspended job as running."""
        self._suspended += by
        self._states[JobState.RUN] -= by
        self._touch(_SUSPENDED, self._suspended)
        if not self.queue_reported:
            self._touch(_QUEUE[JobState.RUN], self._states[JobState.RUN])

    def leave(self, state: int) -> None:
        """Stop counting a job in its current state, because it will be handed over again."""
        self._states[state] -= 1
        if self.index.gauges and not self.queue_reported:
            self._touch(_QUEUE[state], self._states[state])

    def taken(self, group: str) -> None:
        """Update the gauge of a group's backlog."""
        gauge = BACKLOG + group
        if gauge in self.index.gauges:
            self._touch(gauge, self.value(gauge))

    def _update_waiting(self) -> None:
        if not self.queue_reported:
            self._touch("waiting.nodes", self._nodes)
        self._touch("waiting.jobs", self._waiting)

    def _touch(self, gauge: str, value: float | None) -> None:
        watch = self.index.gauges.get(gauge)
        if watch is not None and value is not None:
            self._metrics.gauges[gauge] = value
            self.index.touched[watch] = None

    # -- queries -------------------------------------------------------------------------------

    @property
    def phases(self) -> Sequence[int]:
        """Number of jobs in each state of RFC 21; suspended jobs do not count."""
        return self._states

    def refresh(self, gauge: str) -> None:
        """Update a gauge in the metric store, if it is one of the run's own gauges."""
        value = self.value(gauge)
        if value is not None:
            self._metrics.gauges[gauge] = value

    def fill(self) -> None:
        """Update all gauges, for code that reads every metric."""
        names = [
            *_QUEUE.values(),
            "queue.active",
            _SUSPENDED,
            "waiting.nodes",
            "waiting.jobs",
            *_OF_ONE,
        ]
        for gauge in (*names, *(BACKLOG + group for group in self._groups)):
            if gauge != _QUEUE[JobState.NEW]:
                self.refresh(gauge)

    def value(self, gauge: str) -> float | None:
        """Return the value of a gauge, or ``None`` if the executor reports it."""
        if gauge.startswith(BACKLOG):
            return self._groups[gauge.removeprefix(BACKLOG)].backlog
        self.keep()
        if gauge in _OF_ONE:
            return self._waiting_gauge(gauge)
        if gauge == "queue.active":
            return self._active
        if gauge == _SUSPENDED:
            return self._suspended
        if gauge == "waiting.jobs":
            return self._waiting
        if self.queue_reported:
            return None
        if gauge == "waiting.nodes":
            return self._nodes
        return next((self._states[at] for at, name in _QUEUE.items() if name == gauge), None)

    def _waiting_gauge(self, gauge: str) -> int:
        if not self._waiting:
            return 0
        if gauge == "waiting.smallest":
            return min(self._sizes)
        if gauge == "waiting.largest":
            return max(self._sizes)
        if gauge == "waiting.next":
            # A queue's next job is the oldest one with the highest urgency.
            return next(iter(self._lines[max(self._lines)].values()))
        counts = self._metrics.counts
        submitted = sum(counts[name]["submitted"] - len(x.held) for name, x in self._groups.items())
        position = draw("waiting.random", f"{submitted}.{self.heartbeats}", self._waiting)
        for nodes in sorted(self._sizes):
            position -= self._sizes[nodes]
            if position < 0:
                return nodes
        raise AssertionError("the count of waiting jobs is inconsistent")
