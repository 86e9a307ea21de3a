"""Jobs, their states and events (those of Flux, RFC 21), their running time and their signals."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from ensemble_core.model.codec import NOTHING, Record
from ensemble_core.model.placeholders import REQUESTS, fill
from ensemble_core.quick_dataclass import dataclass

#: Names of job events in Flux RFC 21. Executors of other queues use the same names.
RFC21_EVENTS: tuple[str, ...] = (
    "submit",
    "jobspec-update",
    "resource-update",
    "validate",
    "invalidate",
    "set-flags",
    "dependency-add",
    "dependency-remove",
    "depend",
    "priority",
    "flux-restart",
    "urgency",
    "alloc",
    "prolog-start",
    "prolog-finish",
    "epilog-start",
    "epilog-finish",
    "free",
    "start",
    "release",
    "finish",
    "clean",
    "exception",
    "memo",
    "annotations",
    "debug",
)

#: Job events that RFC 21 does not define, because Flux has no such states. ``suspend``: the queue
#: has stopped a started job for a while; ``unsuspend``: the job runs again; ``requeue``: the job
#: waits again, in the same attempt.
INTERRUPTIONS: tuple[str, ...] = ("suspend", "unsuspend", "requeue")

#: Names of all job events.
JOB_EVENTS: tuple[str, ...] = RFC21_EVENTS + INTERRUPTIONS

#: The signals that users can send to jobs, without ``SIG``. Other signals either end, stop or
#: continue a process whatever the program does, or have a meaning of their own. PBS lets jobs
#: ignore SIGHUP.
SIGNALS = ("USR1", "USR2", "INT", "TERM", "QUIT")


class JobState(enum.IntEnum):
    """States of a job (RFC 21), in the order in which jobs go through them. INACTIVE is final."""

    NEW = 0
    DEPEND = 1
    PRIORITY = 2
    SCHED = 3
    RUN = 4
    CLEANUP = 5
    INACTIVE = 6

    @property
    def final(self) -> bool:
        return self is JobState.INACTIVE

    @property
    def waiting(self) -> bool:
        """True if the job is in the queue and has no resources yet."""
        return self < JobState.RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Record):
    """One submission of a job group, as an executor receives it."""

    rare_fields: ClassVar[tuple[str, ...]] = (
        "memory_per_task", "grace", "warn", "avoid", "outputs", "within", "discard", "forwards",
        "replica", "attempt", "requeued",
    )  # fmt: skip
    #: ``GROUP.INDEX`` or ``GROUP.INDEX-ATTEMPT``. Executors receive :attr:`queue_name` instead.
    id: str
    group: str
    index: int  #: Counts the group's jobs from 0 over the whole run.
    command: tuple[str, ...]
    nodes: int = 1
    tasks: int = 1  #: Number of copies of ``command`` on all nodes together.
    cores_per_task: int = 1
    gpus_per_task: int = 0
    memory_per_task: int = 0  #: Bytes; 0: no request.
    duration: float = 0.0  #: Time limit in seconds; 0: no limit.
    #: Seconds between SIGTERM and SIGKILL; ``None``: the executor's default.
    grace: float | None = None
    #: The ``signal`` that the job gets ``before`` (seconds) its time limit; empty: none.
    warn: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    workdir: str | None = None  #: ``None``: the folder where the run was started.
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    #: A path; ``None``: a file in the run's folder. The same holds for ``stderr``.
    stdout: str | None = None
    stderr: str | None = None
    urgency: int = 16
    avoid: tuple[str, ...] = ()  #: Nodes on which the job must not run.
    parameters: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    observe: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    executor: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    #: Files that the job must leave, relative to its workdir, and how many seconds after its end to
    #: wait for each of them.
    outputs: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: The environments in which the command starts, the outermost first. Executors receive the
    #: whole command instead.
    within: tuple[Mapping[str, Any], ...] = ()
    #: Files and folders below the workdir to remove when the job is over, each with ``success`` or
    #: ``always``.
    discard: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    #: Whether the command passes signals on to the processes that it starts.
    forwards: bool = False
    replica: int = 0  #: Counts the jobs of one combination of parameters from 0.
    attempt: int = 0  #: Counts the attempts of one index from 0.
    #: How often the attempt was submitted again because a stop of the run had cancelled it.
    requeued: int = 0

    @property
    def label(self) -> str:
        """The job's id in its environment: ``GROUP.INDEX`` or ``GROUP.INDEX-ATTEMPT``. A requeued
        job keeps its label.
        """
        return f"{self.group}.{self.index}" + (f"-{self.attempt}" if self.attempt else "")

    @property
    def queue_name(self) -> str:
        """The job's name in the queue, which changes whenever the job is requeued.

        >>> Job(id="melt.3", group="melt", index=3, command=("lmp",), requeued=2).queue_name
        'melt.3~2'
        """
        return f"{self.id}~{self.requeued}" if self.requeued else self.id

    @property
    def cores(self) -> int:
        """Number of cores of the whole job: ``tasks * cores_per_task``."""
        return self.tasks * self.cores_per_task

    @property
    def gpus(self) -> int:
        """Number of GPUs of the whole job: ``tasks * gpus_per_task``."""
        return self.tasks * self.gpus_per_task

    @property
    def memory(self) -> int:
        """Memory of the whole job in bytes: ``tasks * memory_per_task``."""
        return self.tasks * self.memory_per_task

    def fill(self, text: str, also: Mapping[str, object] = NOTHING) -> str:
        """Replace ``{group}``, ``{index}``, ``{id}``, ``{replica}``, ``{attempt}``, ``{limit}``,
        ``{nodes}``, ``{tasks}``, ``{cores_per_task}``, ``{gpus_per_task}``, ``{memory_per_task}``,
        names of parameters and those in ``also`` in a text by this job's values.

        For plugins whose options may contain placeholders, for example in a path.

        >>> Job(id="melt.3", group="melt", index=3, command=("lmp",)).fill("log.{index}")
        'log.3'
        """
        names = {
            **also,
            **{name: getattr(self, name) for name in REQUESTS},
            "replica": self.replica,
            "attempt": self.attempt,
            "limit": self.duration,
            **self.parameters,
            "group": self.group,
            "index": self.index,
            "id": self.id,
        }
        return fill(text, names)


#: Names that can be NAME in ``{job.NAME}``, in addition to parameters and ``outputs[…]``.
JOB_FIELDS = frozenset(
    {
        "id", "group", "index", "attempt", "replica", "queue_id", "host", "workdir", "stdout",
        "stderr", *REQUESTS, "duration", "urgency", "executor",
    }
)  # fmt: skip


@dataclass(slots=True, eq=False)
class RunningTime:
    """The seconds that an attempt ran, without the time in which it was suspended or requeued.

    For readers of events. The engine keeps the same sums in ``JobRecord``.

    >>> ran = RunningTime()
    >>> for name, time in [("start", 10), ("suspend", 14), ("unsuspend", 20), ("finish", 23)]:
    ...     ran.take(name, time)
    >>> ran.first, ran.seconds
    (10, 7.0)
    """

    first: float | None = None  #: The first start.
    since: float | None = None  #: Since when it runs; ``None``: it does not run.
    seconds: float = 0.0  #: How long it ran until then.
    suspended: bool = False

    def take(self, name: str, time: float) -> None:
        """Take an event of the attempt into account."""
        if name == "start" or (name == "unsuspend" and self.suspended):
            self.first = time if self.first is None else self.first
            self.since, self.suspended = time, False
        elif name in ("suspend", "requeue", "finish"):
            self.suspended = name == "suspend" and self.since is not None
            if self.since is not None:
                self.seconds += time - self.since
                self.since = None

    def until(self, time: float) -> float:
        """Return the seconds that the attempt ran until this time, its newest."""
        return self.seconds + (0.0 if self.since is None else time - self.since)
