"""Events, the engine's only input: frozen dataclasses that ``model.codec`` can serialize.

The engine has no clock other than the timestamps of events (seconds since the epoch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

from ensemble_core.model.codec import NOTHING, Record
from ensemble_core.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Event(Record):
    """Something that happened at ``timestamp`` (seconds since the epoch)."""

    type: ClassVar[str] = "event"
    timestamp: float


class PlainEvents(list[Event]):
    """Events that this version of Ensemble has encoded and decoded, so that they need no check."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The run begins. ``resources`` has the queue's gauges at that time (see ``Resources``)."""

    type: ClassVar[str] = "start"
    resources: Mapping[str, float] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """A new controller has resumed the run and has asked the queue about its jobs.

    Events of its jobs follow, except for the jobs in the fields ``absent`` and ``gone``.
    """

    type: ClassVar[str] = "resume"
    rare_fields: ClassVar[tuple[str, ...]] = ("reopened", "gone", "request", "at")
    resources: Mapping[str, float] = field(default_factory=lambda: NOTHING)  # as in ``Started``
    absent: tuple[str, ...] = ()  # our ids of jobs that never arrived in the queue
    reopened: bool = False  # the run had ended, and continues
    gone: tuple[str, ...] = ()  # jobs that never ran, because their queue no longer exists
    request: Mapping[str, Any] = field(default_factory=lambda: NOTHING)  # a request that reopens it
    #: When the controller resumed the run. ``timestamp`` may be the time of the event before,
    #: because events from the time without a controller follow with their own times.
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """An event of one job, named as in Flux RFC 21 (``submit``, ``start``, ``finish`` …), or
    ``suspend``, ``unsuspend`` or ``requeue``.

    ``job`` is our id of the job (``GROUP.INDEX``). For a foreign job, ``ours`` is false and ``job``
    is the queue's id.

    RFC 21 defines the ``context``:

    - ``finish``: ``status`` is a wait status, as from ``os.waitpid``.
    - ``exception``: ``type``, ``severity`` (0 is fatal) and ``note``. The type ``interrupted``
      means that the queue has ended the job together with its allocation.
    - ``submit``: executors may add ``queue_id``.
    - ``start``: executors may add ``workdir`` and ``stdout``, so that observers find the output.

    The context of ``suspend``, ``unsuspend`` and ``requeue`` may have a ``note``: why.

    If the run has corrected the timestamp, ``reported_at`` in the context is the time that the
    executor reported.
    """

    type: ClassVar[str] = "job"
    job: str
    name: str
    context: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    ours: bool = True

    @property
    def reported_at(self) -> float:
        """The time that the executor reported. After a resume, the executor is asked for events
        since this time.
        """
        time = self.context.get("reported_at")
        return time if isinstance(time, float) else self.timestamp


@dataclass(frozen=True, slots=True)
class Observed(Event):
    """One row of values that an observer read from a job's output."""

    type: ClassVar[str] = "observed"
    rare_fields: ClassVar[tuple[str, ...]] = ("restarted", "unreadable")
    job: str
    observer: str
    values: Mapping[str, float]
    clock: float | None = None  #: the row's time or step
    restarted: bool = False  #: whether the file was truncated or replaced before this row
    unreadable: tuple[str, ...] = ()  #: the values that are nan because they could not be read


@dataclass(frozen=True, slots=True)
class Resources(Event):
    """New values of the queue's gauges, by metric path (``nodes.up``, ``cores.free`` …)."""

    type: ClassVar[str] = "resources"
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TimerElapsed(Event):
    """A timer of the engine has elapsed."""

    type: ClassVar[str] = "timer"
    timer: Literal["heartbeat", "interval", "pace", "retry", "attempt", "silent", "for", "within"]
    #: The timer's rule (``interval``), group (``silent``), metric (``within``), resize request or
    #: job; with ``for``, a number.
    key: str = ""


@dataclass(frozen=True, slots=True)
class ResizeOutcome(Event):
    """The outcome of a resize request.

    - ``granted``: ``size`` is the new size.
    - ``denied``: the size stays.
    - ``timeout``: the request was granted, but the nodes never arrived.
    - ``undelivered``: nobody received the request, so it will be repeated.
    """

    type: ClassVar[str] = "resize-outcome"
    request: str
    outcome: Literal["granted", "denied", "timeout", "undelivered"]
    size: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallReturned(Event):
    """A custom function, the ``run`` of an action, or a generator returned.

    ``result`` is a list of checked specifications, as plain data:

    - ``{"action": {...}}``, optionally with ``"fields": {...}`` that the action may use;
    - ``{"rule": {...}}``;
    - ``{"submit": GROUP, "with": {...}, "parameters": {NAME: [...]}}`` for a submit whose parameter
      values a function has computed;
    - ``{"point": {...}}`` or ``{"prune": NUMBER}`` from a generator.
    """

    type: ClassVar[str] = "call-returned"
    call: str
    result: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class CallFailed(Event):
    """A custom function or an action's ``run`` raised an error, or returned an invalid result."""

    type: ClassVar[str] = "call-failed"
    call: str
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Delivered(Event):
    """Notifications were sent to the address ``to`` as one message, or could not be sent.

    ``error`` is the reason for a failure; empty on success.
    """

    type: ClassVar[str] = "delivered"
    notices: tuple[str, ...]
    to: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Signalled(Event):
    """The executor has carried out the decision ``Signal`` with this ``request``, or could not.

    ``error`` is the reason for a failure; empty on success.
    """

    type: ClassVar[str] = "signalled"
    request: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Identified(Event):
    """The identities of jobs that are about to be submitted, for later runs with ``--reuse``.

    ``jobs`` maps our id to ``[identity, source]``, or to ``[identity, source, inputs]`` if files
    are part of the identity (see ``model.identity``). ``source`` and ``inputs`` are keys of the
    fields ``sources`` and ``inputs`` of this event or an earlier one.
    """

    type: ClassVar[str] = "identified"
    jobs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    sources: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    inputs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    #: Successful jobs whose inputs were still the same when the jobs ended.
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LookedUp(Event):
    """The answer to the decision ``look-up``: which jobs an earlier run has already done.

    The events of the earlier jobs follow.
    """

    type: ClassVar[str] = "looked-up"
    #: For each job that need not run: the earlier job (``RUN/JOB``) that replaces it.
    hits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    misses: tuple[str, ...] = ()  # jobs that have to run


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """A signal, a command or a time limit requests that the run ends or stops.

    ``then`` is one of

    - ``end``: cancel the jobs; the run is over;
    - ``cancel``: cancel the jobs and stop; a resume submits them again;
    - ``keep``: leave the jobs to the queue and stop;
    - ``cancel-left``: as ``cancel``, and also cancel the jobs that an earlier stop or end left to
      the queue.
    """

    type: ClassVar[str] = "stop"
    rare_fields: ClassVar[tuple[str, ...]] = ("then",)
    reason: str = "interrupted"
    exit_code: int = 130
    then: Literal["end", "cancel", "keep", "cancel-left"] = "end"

    @property
    def ends(self) -> bool:
        """True if the run is over after this event."""
        return self.then == "end"


@dataclass(frozen=True, slots=True)
class Requested(Event):
    """A user requests an action during the run, from the shell or from a program.

    ``action`` is written as in a rule: ``submit``, ``cancel``, ``set``, ``enable`` or ``disable``;
    ``retry`` and ``cancel`` can name ``jobs``.
    Parameters in a ``submit`` replace those of the group. ``by`` is the name of the user.
    """

    type: ClassVar[str] = "request"
    by: str
    action: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExecutorLost(Event):
    """An executor has lost its queue. The jobs of this queue will have no further events.

    If ``drained``, the queue has ended in order, with its allocation: it has jobs that wait on
    record, so a resume finds them, and no other job.
    """

    type: ClassVar[str] = "executor-lost"
    rare_fields: ClassVar[tuple[str, ...]] = ("drained",)
    executor: str
    reason: str
    hint: str = ""
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Problem(Event):
    """A problem other than a failed job, such as an unreadable file or a rejected cancel.

    With the level ``info``, it is a message without a problem, such as that a pilot is ready.
    """

    type: ClassVar[str] = "problem"
    rare_fields: ClassVar[tuple[str, ...]] = ("lasts",)
    message: str
    level: Literal["info", "warning", "error"] = "warning"  #: ``error``: the run's exit code is 1
    #: Jobs that could not be cancelled. They continue, and rows of their output trigger rules again
    #: (during a cancel, rows trigger none). If ``lasts``: jobs whose output could not be parsed.
    jobs: tuple[str, ...] = ()
    lasts: bool = False  #: whether the summary and the status repeat the problem


@dataclass(frozen=True, slots=True)
class PluginEvent(Event):
    """An event that a plugin defines.

    ``name`` is the name of the trigger; ``data`` has the fields that a rule's ``when`` may use.
    ``job`` is our id of the job that the event concerns, or ``None``.
    """

    type: ClassVar[str] = "plugin"
    name: str
    data: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    job: str | None = None


Event.kinds = {cls.type: cls for cls in Event.__subclasses__()}
