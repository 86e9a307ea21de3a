"""Events: frozen, typed, serializable classes (``model.codec``) for everything that happens.

They are the only input of the engine: from executors, timers, users' functions and commands. Each
has a ``timestamp`` (seconds since the epoch), which is the engine's only clock. Built by executors
and the runtime; read by the engine, the journal and displays.
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
    """A new controller has resumed the run and has asked the queue about its jobs.

    ``absent``: jobs (our ids) that had no event and that the queue does not know, so they never
    arrived there. ``gone``: jobs that waited in a queue that no longer exists, so they never ran.
    Events of all other jobs follow. ``resources``: as in :class:`Started`. ``reopened``: the run
    had ended, and continues because its file was changed.
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
    """An event of one job, named as in Flux RFC 21 (``submit``, ``start``, ``finish`` …).

    ``job`` is our id of the job (``GROUP.INDEX``); for a foreign job (``ours`` is false) it is the
    queue's id. ``context`` is defined by RFC 21: ``finish`` has ``status`` (a wait status, as from
    ``os.waitpid``), ``exception`` has ``type``, ``severity`` (0 is fatal) and ``note``. Executors
    may add ``queue_id`` to ``submit``, and ``workdir`` and ``stdout`` to ``start``, so that
    observers find the output. If the run has corrected the event's time, ``told_at`` holds the
    executor's.
    """

    type: ClassVar[str] = "job"
    job: str
    name: str
    context: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    ours: bool = True

    @property
    def told_at(self) -> float:
        """The event's time according to the executor. A resume asks for events after this time."""
        time = self.context.get("told_at")
        return time if isinstance(time, float) else self.timestamp


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Observed(Event):
    """One row of values that an observer read from a job's output.

    ``clock`` is the row's time or step, or ``None``. ``anew``: the file was truncated or replaced
    before this row, so this row is now the file's first.
    """

    type: ClassVar[str] = "observed"
    job: str
    observer: str
    values: Mapping[str, float]
    clock: float | None = None
    anew: bool = False

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.anew:  # nearly always
            del data["anew"]
        return data


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Resources(Event):
    """Changed gauges of the queue, by metric path (``nodes.up``, ``cores.free`` …)."""

    type: ClassVar[str] = "resources"
    values: Mapping[str, float]


#: By far the most frequent events.
quick_to_make(JobEvent)
quick_to_make(Resources)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TimerElapsed(Event):
    """A timer of the engine has elapsed.

    ``timer`` is its purpose. ``key`` is the rule's id for an interval, the group's name for silent
    jobs, the request's id for a repeated resize, the job's id for an attempt.
    """

    type: ClassVar[str] = "timer"
    timer: Literal["heartbeat", "interval", "pace", "retry", "attempt", "silent"]
    key: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ResizeOutcome(Event):
    """The outcome of a resize request.

    ``outcome`` is ``granted`` (``size`` is the new size), ``denied``, ``timeout`` (granted, but the
    nodes never came), or ``undelivered`` (the request was not received and will be repeated).
    """

    type: ClassVar[str] = "resize-outcome"
    request: str
    outcome: Literal["granted", "denied", "timeout", "undelivered"]
    size: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallReturned(Event):
    """A custom function, a plugin's slow action or a generator returned.

    ``result`` is a list of plain specifications, checked before the event was made:

    - ``{"action": {...}}``, optionally with ``"fields": {...}`` that the action may use;
    - ``{"rule": {...}}``;
    - ``{"submit": GROUP, "with": {...}, "parameters": {NAME: [...]}}`` for a submit that needs
      values;
    - ``{"point": {...}}`` or ``{"prune": NUMBER}`` of a generator.
    """

    type: ClassVar[str] = "call-returned"
    call: str
    result: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallFailed(Event):
    """A custom function or a plugin's slow action raised, or returned an invalid result."""

    type: ClassVar[str] = "call-failed"
    call: str
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Delivered(Event):
    """Notices, merged into one message, were sent to the address ``to``.

    ``error`` is the reason of a final failure, or empty.
    """

    type: ClassVar[str] = "delivered"
    notices: tuple[str, ...]
    to: str
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Identified(Event):
    """The identities of jobs that are about to be submitted, for a later run's ``--reuse``.

    ``jobs`` maps our id to ``[identity, source]``, or to ``[identity, source, inputs]`` if files
    are part of the identity (``model.identity``). ``source`` and ``inputs`` are keys of the
    mappings ``sources`` and ``inputs``; a controller reports each key once. ``unchanged``: jobs
    that succeeded and whose inputs had not changed when they ended.
    """

    type: ClassVar[str] = "identified"
    jobs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    sources: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    inputs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LookedUp(Event):
    """The answer to a look-up.

    ``hits`` maps each reusable job to the earlier job (``RUN/JOB``), whose events follow. The jobs
    in ``misses`` have to run.
    """

    type: ClassVar[str] = "looked-up"
    hits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StopRequested(Event):
    """A signal, a command or a time limit requests that the run ends or stops.

    ``then`` is

    - ``end``: cancel its jobs; the run is over;
    - ``cancel``: cancel its jobs and stop; a resume submits them again;
    - ``keep``: leave its jobs to the queue and stop;
    - ``cancel-left``: as ``cancel``, including jobs that an earlier stop or end left to the queue.
      The first event of a controller that resumes the run only for that.
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
    """A user requests an action from a shell or a program.

    ``action`` is written as in a rule: ``submit``, ``cancel``, ``set``, ``enable`` or ``disable``.
    Parameters of a submit override the group's. ``by`` names the user.
    """

    type: ClassVar[str] = "request"
    by: str
    action: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExecutorLost(Event):
    """An executor has lost its queue: no further events of its jobs will come."""

    type: ClassVar[str] = "executor-lost"
    executor: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Problem(Event):
    """A problem that is not a job's failure: an unreadable file, a rejected cancel.

    An ``error`` makes the run's exit code 1. ``jobs`` are our jobs that could not be cancelled, so
    that their rows trigger rules again. If the problem ``lasts``, the summary and the status repeat
    it; then ``jobs`` are the jobs whose output was not understood.
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
    """An event that a plugin defines.

    ``name`` is the trigger, ``data`` has the fields that its ``when`` may use. ``job`` is our id of
    the job that it concerns, or ``None``.
    """

    type: ClassVar[str] = "plugin"
    name: str
    data: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    job: str | None = None


Event.kinds = {cls.type: cls for cls in Event.__subclasses__()}
