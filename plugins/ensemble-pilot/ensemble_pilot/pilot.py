"""A kind of pilot, a pilot and its nodes: what the fleet knows of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ensemble_core import Job

__all__ = [
    *("AT_END", "LIVE", "TRANSITIONS", "Kind", "Node", "Pilot", "State", "never_any", "share"),
]

State = Literal["requested", "starting", "ready", "draining", "ended", "fenced", "over"]

#: The states of a pilot, and which of them may follow.
#:
#: - ``requested``: it waits in the outer queue, or its request is on the way.
#: - ``starting``: the outer queue has started it; its nodes are not all connected.
#: - ``ready``: all its nodes have connected. Only now it gets jobs.
#: - ``draining``: it is given back, and gets no more jobs.
#: - ``ended``: the outer queue says that it has ended. That may be wrong.
#: - ``fenced``: its fence is in place, and its ledgers were read after that. Nothing more starts.
#: - ``over``: no job is bound to its nodes any more.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    "requested": frozenset({"starting", "ready", "draining", "ended"}),
    "starting": frozenset({"ready", "draining", "ended"}),
    "ready": frozenset({"draining", "ended"}),
    "draining": frozenset({"ended"}),
    "ended": frozenset({"fenced"}),
    "fenced": frozenset({"over"}),
    "over": frozenset(),
}
#: The states of a pilot that gets jobs, or will.
LIVE = ("requested", "starting", "ready")
#: The part of ``margin`` that a pilot keeps at its end. The rest is for its start: a job that takes
#: ``duration`` minus ``margin`` still fits when the pilot is ready.
AT_END = 0.5


@dataclass(frozen=True)
class Kind:
    """A kind of pilot. Durations are in seconds; 0 as ``duration`` means no time limit.

    ``cores``, ``gpus`` and ``memory`` (in bytes; 0: that of the machine) are those of each node.
    ``patience`` is the first guess of how long a pilot waits in the outer queue. ``flux``: jobs of
    several tasks start through Flux. The name is empty if a run has one kind, which has no name.
    """

    name: str = ""
    nodes: int = 1
    cores: int = 1
    gpus: int = 0
    memory: int = 0
    duration: float = 0.0
    most: int = 1
    least: int = 0
    idle: float = 300.0
    margin: float = 120.0
    backlog: int = 2
    patience: float = 60.0
    flux: bool = False

    def never(self, job: Job) -> tuple[str, str, str] | None:
        """Return why no pilot can run a job: the field, the reason, and what to do, or ``None``."""
        if job.nodes > 1 and not self.flux:
            return (
                "nodes",
                f"the job needs {job.nodes} nodes, but a job inside a pilot runs on one node",
                "let jobs of several nodes start through Flux, with "
                + ("'inside: flux' in the kind" if self.name else "-o inside=flux")
                + ", request tasks instead of nodes, or run it with the executor of the queue",
            )
        if job.nodes > self.nodes:
            return (
                "nodes",
                f"the job needs {job.nodes} nodes, but a pilot has {self.nodes}",
                "request fewer, or larger pilots with "
                + (f"'nodes: {job.nodes}' in the kind" if self.name else f"-o nodes={job.nodes}"),
            )
        cores, gpus, memory = share(job)
        sizes = (("cores", cores, self.cores), ("gpus", gpus, self.gpus))
        for what, need, have in sizes:
            if need > have:
                return (
                    "tasks" if job.tasks > 1 else f"{what}_per_task",
                    f"the job needs {need} {what} on one node, but a node of a pilot has {have}",
                    "request less, or larger nodes with "
                    + (f"'{what}: {need}' in the kind" if self.name else f"-o {what}={need}"),
                )
        if self.memory and memory > self.memory:
            why = (
                f"the job needs {memory / 2**30:.3g}G of memory, but a node of a pilot has "
                f"{self.memory / 2**30:.3g}G"
            )
            return "memory_per_task", why, "request less, or pilots with more memory"
        longest = self.duration - self.margin
        if self.duration and job.duration > longest:
            why = (
                f"the job's time limit is {job.duration:g} s, but a pilot has {longest:g} s for "
                f"jobs ('duration' {self.duration:g} s minus 'margin' {self.margin:g} s)"
            )
            return "duration", why, "shorten the job's duration, or lengthen that of the pilots"
        return None


def share(job: Job) -> tuple[int, int, int]:
    """Return the cores, GPUs and memory that a job needs on each of its nodes."""
    if job.nodes == 1:
        return job.cores, job.gpus, job.memory
    tasks = -(-max(job.tasks, job.nodes) // job.nodes)
    return tasks * job.cores_per_task, tasks * job.gpus_per_task, tasks * job.memory_per_task


class _Holder(Protocol):
    """Something that can refuse a job: a kind of pilot, or the demand for pilots of a kind."""

    @property
    def name(self) -> str: ...

    def never(self, job: Job) -> tuple[str, str, str] | None: ...


def never_any(kinds: Collection[_Holder], job: Job) -> tuple[str, str, str] | None:
    """Return why no pilot of these kinds can run a job, as :meth:`Kind.never` does.

    If the job names a kind, only that kind counts.
    """
    able = [kind for kind in kinds if kind.name == job.executor] or kinds
    reasons = []
    for kind in able:
        found = kind.never(job)
        if found is None:
            return None
        reasons.append((kind.name, *found))
    name, key, why, hint = reasons[0]
    if len(reasons) > 1:
        why = "; ".join(f"{name}: {why}" for name, _, why, _ in reasons)
        return key, f"no kind of pilot can hold the job: {why}", hint
    return key, f"{name}: {why}" if name else why, hint


@dataclass(eq=False)
class Node:
    """A node of a pilot. ``rank`` counts from 0. ``memory`` is in bytes, ``None`` if unknown."""

    pilot: Pilot
    rank: int
    cores: int = 0
    gpus: int = 0
    memory: int | None = None
    connected: bool = False
    free_cores: int = 0
    free_gpus: int = 0
    free_memory: float = math.inf
    #: Jobs that are placed here and not over.
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        return self.pilot.number, self.rank


@dataclass(eq=False)
class Pilot:
    """A pilot. ``requested``, ``ends`` and ``idle_since`` are times; ``ends`` may be unknown.

    ``was_ready`` is true once the pilot has been ready, also if a later controller asks. A pilot
    that is ``leaving`` gets no more jobs, and is given back when its jobs are over, or, if it is
    ``forced``, at once.
    """

    number: int
    kind: Kind
    requested: float
    state: State = "requested"
    nodes: list[Node] = field(default_factory=list)
    ends: float | None = None
    idle_since: float = 0.0
    was_ready: bool = False
    leaving: bool = False
    forced: bool = False
    began: float | None = None
    #: Core-seconds of jobs that have ended here; the cores of those that run, and the sum of cores
    #: times start.
    used: float = 0.0
    #: Until when an earlier controller has counted.
    counted: float = 0.0
    running_cores: int = 0
    running_since: float = 0.0

    def used_until(self, now: float) -> float:
        """Return how many core-seconds jobs have used here."""
        return self.used + max(0.0, self.running_cores * self.until(now) - self.running_since)

    def until(self, now: float) -> float:
        """Return ``now``, or the end of the pilot if that was earlier."""
        return now if self.ends is None else min(now, self.ends)

    def to(self, state: State) -> None:
        """Change the state. Raises :class:`ValueError` if :data:`TRANSITIONS` does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"pilot {self.number} cannot change from {self.state} to {state}")
        self.state = state

    @property
    def title(self) -> str:
        """How messages name the pilot."""
        return f"pilot {self.number}" + (f" ({self.kind.name})" if self.kind.name else "")

    @property
    def job(self) -> str:
        """The pilot's job in the outer queue."""
        return f"pilot.{self.number}"

    @property
    def busy(self) -> bool:
        return any(node.jobs for node in self.nodes)

    def left(self, now: float) -> float:
        """Return for how many seconds the pilot still runs jobs."""
        return math.inf if self.ends is None else self.ends - AT_END * self.kind.margin - now

    @property
    def live(self) -> bool:
        """Return True if the pilot gets jobs, or will."""
        return self.state in LIVE and not self.leaving
