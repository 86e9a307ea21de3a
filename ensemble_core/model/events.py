"""Events: what happened, as frozen and typed classes that can be serialized (``model.codec``).

Executors, timers, users' functions and the person at the keyboard all speak to the engine through
these classes and in no other way. Each carries its own ``timestamp`` (seconds since the epoch):
the engine has no other clock. Built by executors and the runtime; read by the engine, the journal
and whoever watches a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ensemble_core.model.codec import NOTHING, Record, quick_to_make

__all__ = [
    "CallFailed",
    "CallReturned",
    "Delivered",
    "Event",
    "ExecutorLost",
    "Identified",
    "JobEvent",
    "LookedUp",
    "Observed",
    "PluginEvent",
    "Problem",
    "Requested",
    "ResizeOutcome",
    "Resources",
    "Resumed",
    "Started",
    "StopRequested",
    "TimerElapsed",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Event(Record):
    """Something that happened at ``timestamp`` (seconds since the epoch)."""

    type: ClassVar[str] = "event"
    timestamp: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Started(Event):
    """The run begins. ``resources`` are the queue's gauges at that moment (see Resources)."""

    type: ClassVar[str] = "start"
    resources: Mapping[str, float] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Resumed(Event):
    """A later controller has taken the run up again, and asked the queue what became of its jobs.

    ``absent`` are jobs (our ids) of which no event was ever seen and that the queue does not know:
    they never arrived. ``gone`` are jobs that waited in a queue that is gone, and never ran. Events
    of the others follow. ``resources`` as in :class:`Started`. ``reopened``: the run had ended, and
    goes on because its file was changed.
    """

    type: ClassVar[str] = "resume"
    resources: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    absent: tuple[str, ...] = ()
    reopened: bool = False
    gone: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        for name in ("reopened", "gone"):
            if not getattr(self, name):
                del data[name]
        return data


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobEvent(Event):
    """An event of one job in the words of Flux RFC 21 (``submit``, ``start``, ``finish`` …).

    ``job`` is our id of the job (``GROUP.INDEX``), or, where ``ours`` is false, the queue's own id
    of somebody else's job. ``context`` is the event's context as RFC 21 defines it: ``finish`` has
    ``status`` (a wait status, as ``os.waitpid`` gives it), ``exception`` has ``type``,
    ``severity`` (0 is fatal) and ``note``. Executors add what an observer needs to find the
    output: ``start`` may have ``workdir`` and ``stdout``; ``submit`` may have ``queue_id``. Where
    the run has corrected the event's time, ``told_at`` is the one that the executor gave.
    """

    type: ClassVar[str] = "job"
    job: str
    name: str
    context: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    ours: bool = True

    @property
    def told_at(self) -> float:
        """Its time as the executor gave it: a resume asks for what came after that."""
        told = self.context.get("told_at")
        return told if isinstance(told, float) else self.timestamp


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Observed(Event):
    """One row of values that an observer read from a job's output.

    ``clock`` is the row's own time or step, or ``None``. ``anew``: the file was restarted before
    it, so a later controller finds this row first.
    """

    type: ClassVar[str] = "observed"
    job: str
    observer: str
    values: Mapping[str, float]
    clock: float | None = None
    anew: bool = False

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.anew:  # of nearly every row
            del data["anew"]
        return data


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Resources(Event):
    """Gauges of the queue that changed, by metric path (``nodes.up``, ``cores.free`` …)."""

    type: ClassVar[str] = "resources"
    values: Mapping[str, float]


#: Of no other classes are so many made.
quick_to_make(JobEvent)
quick_to_make(Resources)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TimerElapsed(Event):
    """A time that the engine waited for has come.

    ``timer`` is its purpose; ``key`` is the rule's id for an interval, the group's name for silent
    jobs, the request's id for a repeated resize, the job's id for an attempt.
    """

    type: ClassVar[str] = "timer"
    timer: Literal["heartbeat", "interval", "pace", "retry", "attempt", "silent"]
    key: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResizeOutcome(Event):
    """The outcome of a resize request.

    ``granted`` (``size`` is the new size), ``denied``, ``timeout`` (granted, but the nodes never
    came), or ``undelivered`` (nobody received it: it will be asked again).
    """

    type: ClassVar[str] = "resize-outcome"
    request: str
    outcome: Literal["granted", "denied", "timeout", "undelivered"]
    size: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallReturned(Event):
    """A custom function, a plugin's slow action or a generator returned.

    ``result`` is a list of plain specifications, each ``{"action": {...}}`` (perhaps with
    ``"fields": {...}`` that it may speak of), ``{"rule": {...}}`` or, where a submit asked for
    values, ``{"submit": GROUP, "with": {...}, "parameters": {NAME: [...]}}``; of a generator
    ``{"point": {...}}`` or ``{"prune": NUMBER}``. Checked before the event was made.
    """

    type: ClassVar[str] = "call-returned"
    call: str
    result: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallFailed(Event):
    """A custom function or a plugin's slow action raised, or returned what it must not."""

    type: ClassVar[str] = "call-failed"
    call: str
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Delivered(Event):
    """Notices, merged into one message, were sent to the address ``to``; ``error`` says why that
    failed for good, and is empty if it did not."""

    type: ClassVar[str] = "delivered"
    notices: tuple[str, ...]
    to: str
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Identified(Event):
    """The identities of jobs that are about to be submitted, by which a later run finds them
    (``--reuse``; see ``model.identity``).

    ``jobs`` maps our id to ``[identity, source]``, and to ``[identity, source, inputs]`` if files
    are part of it. ``sources`` and ``inputs`` have what these stand for, once in a controller's
    time. ``unchanged`` are jobs that have succeeded and whose inputs were the same at their end.
    """

    type: ClassVar[str] = "identified"
    jobs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    sources: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    inputs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LookedUp(Event):
    """The answer to a look-up: ``hits`` maps jobs to the earlier job (``RUN/JOB``) that stands in
    for each, and whose events follow; ``misses`` are to be run."""

    type: ClassVar[str] = "looked-up"
    hits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StopRequested(Event):
    """Somebody wants the run to end or to stop: a signal, a command, the time given to it.

    ``then`` says which. ``end``: its jobs are cancelled and it is over. It is stopped, so that a
    resume goes on with it, by ``cancel`` (its jobs are cancelled, and handed on again by the
    resume) and by ``keep`` (they are left to the queue). ``cancel-left`` is the first event of a
    controller that takes the run up for nothing else: as ``cancel``, of the jobs too that an
    earlier stop or end left to the queue.
    """

    type: ClassVar[str] = "stop"
    reason: str = "interrupted"
    exit_code: int = 130
    then: Literal["end", "cancel", "keep", "cancel-left"] = "end"

    @property
    def ends(self) -> bool:
        """True if the run is over after this event."""
        return self.then == "end"

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if self.ends:
            del data["then"]
        return data


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Requested(Event):
    """A user asks the run for an action beside its rules, from a shell or a program: ``action`` is
    one of ``submit``, ``cancel``, ``set``, ``enable``, ``disable`` as a rule of the file has it;
    parameters that a submit gives are merged over the group's. ``by`` says who asks."""

    type: ClassVar[str] = "request"
    by: str
    action: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExecutorLost(Event):
    """An executor's queue went away: no further event of its jobs will come."""

    type: ClassVar[str] = "executor-lost"
    executor: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Problem(Event):
    """A problem besides the jobs: a file that cannot be followed, a cancel that the queue rejected.

    An ``error`` makes the run's exit code 1. ``jobs`` are ours that could not be cancelled: their
    rows trigger rules again. If it ``lasts``, the summary and status repeat it; ``jobs`` are then
    those whose output was not understood.
    """

    type: ClassVar[str] = "problem"
    message: str
    level: Literal["warning", "error"] = "warning"
    jobs: tuple[str, ...] = ()
    lasts: bool = False

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.lasts:
            del data["lasts"]
        return data


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PluginEvent(Event):
    """An event of a plugin's own: ``name`` is the trigger it wakes, ``data`` the fields that its
    ``when`` may use; ``job`` is our id of the job it concerns, if it concerns one."""

    type: ClassVar[str] = "plugin"
    name: str
    data: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    job: str | None = None


Event.kinds = {cls.type: cls for cls in Event.__subclasses__()}
