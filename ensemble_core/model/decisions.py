"""Decisions: the closed set of instructions that the engine returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

from ensemble_core.model.codec import NOTHING, Record
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass

#: What to do with jobs on nodes that are to be released; see :class:`Resize`.
WhenBusy = Literal["wait", "skip", "force"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Record):
    """One instruction of the engine."""

    type: ClassVar[str] = "decision"
    rule: str | None = None  #: id of the rule that made the decision, if any
    firing: int = 0  #: number of the rule's firing within the run; 0 without a rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired(Decision):
    """A rule fired. This is the first decision of each firing."""

    type: ClassVar[str] = "fired"
    rare_fields: ClassVar[tuple[str, ...]] = ("each",)
    label: str = ""  # the trigger as shown to users, such as ``count.sleep.success``
    count: int = 1  # how often this rule has fired, including this time
    job: str | None = None  # the event's job, if any
    value: float | None = None  # the value of the trigger's metric, if any
    #: Parameters of the slice, if the rule fires once for each slice (``each``).
    each: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Decision):
    """Submit these jobs, all of which belong to one group."""

    type: ClassVar[str] = "submit"
    group: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp(Decision):
    """Find out which of these jobs an earlier run has already done (``--reuse``).

    All jobs belong to one group. The jobs that no earlier run has done are then submitted.
    """

    type: ClassVar[str] = "look-up"
    group: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Decision):
    """Retry this job with changed ``fields``, ``wait`` seconds after its current attempt is over.

    A :class:`Submit` follows after the wait.
    """

    type: ClassVar[str] = "retry"
    job: str
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    wait: float = 0.0
    resume: bool = False  # whether the job's statistics continue over the attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Decision):
    """Count this job as failed with the cause ``result``, although it exited with code 0: its
    group's ``fail_if`` is true. If the run was cancelling it, it counts as cancelled.
    """

    type: ClassVar[str] = "fail"
    job: str
    condition: str
    outcome: Literal["failed", "cancelled"] = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Decision):
    """Cancel the jobs with these ids (our ids, not the queue's)."""

    type: ClassVar[str] = "cancel"
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(Decision):
    """Send a signal, such as ``USR1``, to the processes of these running jobs.

    The event ``Signalled`` with this ``request`` answers. If it has not arrived before a resume,
    the decision is repeated with a higher ``attempt``, so a job may get the signal twice then.
    """

    type: ClassVar[str] = "signal"
    request: str
    signal: str
    jobs: tuple[str, ...]
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoid(Decision):
    """Submit no more jobs of the run to these nodes.

    The decision ``Cancel`` that follows withdraws ``jobs``, which wait in the queue. They are
    submitted again, as the same attempts.
    """

    type: ClassVar[str] = "avoid"
    nodes: tuple[str, ...]
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Decision):
    """Request ``delta`` more (positive) or fewer (negative) nodes from the executor.

    ``request`` is the id of the request. Requests are idempotent: an executor that receives the
    same id again only answers. A repeated request has a higher ``attempt``.

    ``when_busy`` says what happens if a node that is to be released has running jobs:

    - ``wait``: release it as soon as it is idle;
    - ``skip``: keep it;
    - ``force``: release it at once, so that its jobs fail.
    """

    type: ClassVar[str] = "resize"
    request: str
    delta: int
    attempt: int = 1
    when_busy: WhenBusy = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRule(Decision):
    """Add a rule; ``spec`` is the rule as plain data."""

    type: ClassVar[str] = "add-rule"
    id: str
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnableRule(Decision):
    """Enable these rules."""

    type: ClassVar[str] = "enable-rule"
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableRule(Decision):
    """Disable these rules until they are enabled again."""

    type: ClassVar[str] = "disable-rule"
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(Decision):
    """Disable the rules of the instances ``off``, and enable those of ``on``."""

    type: ClassVar[str] = "switch"
    off: tuple[str, ...]
    on: tuple[str, ...]
    #: Whether the run still uses the results of functions that rules of ``off`` have called.
    keep: bool = False
    reset: bool = False  # whether the firing counters of the rules of ``on`` start from zero


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroup(Decision):
    """Change fields of a job group. The change applies to later submits; if a user requested it,
    also to jobs that are not in the queue yet; that of ``at_once``, ``uses`` and ``retry`` at once.
    """

    type: ClassVar[str] = "set-group"
    group: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits(Decision):
    """Change limits of the run at once; ``None`` removes a limit."""

    type: ClassVar[str] = "set-limits"
    limits: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGenerator(Decision):
    """Pause a generator, continue it (``pause`` is ``False``), or request ``count`` more points.

    The generator also receives the finished points of the generators in ``learns``, now and later.
    """

    type: ClassVar[str] = "set-generator"
    generator: str
    pause: bool | None = None
    count: int = 0
    learns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Decision):
    """Call a function outside the engine's thread. The result comes back as an event.

    ``name`` depends on ``kind``:

    - ``custom``: a function of the file's ``custom:`` part;
    - ``parameters``: the functions that compute parameter values for a submit of the group
      ``options["group"]``;
    - ``action``: an action of a plugin;
    - ``generator``: a generator of the file; ``options`` has the points to ingest and the number of
      points to suggest.
    """

    type: ClassVar[str] = "call"
    rare_fields: ClassVar[tuple[str, ...]] = ("tolerated",)
    call: str
    kind: Literal["custom", "parameters", "action", "generator"]
    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    #: The event that led to the call.
    event: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    job: Mapping[str, Any] | None = None  # the event's job
    attempt: int = 1  # above 1 if an earlier controller did not receive the result
    tolerated: bool = False  # a failure is only a warning (``on_error: warn``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Decision):
    """Show the user a message."""

    type: ClassVar[str] = "log"
    message: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify(Decision):
    """Send the user a message outside the terminal."""

    type: ClassVar[str] = "notify"
    notice: str
    message: str
    to: tuple[str, ...]  # addresses (``model.notification_addresses``)
    job: str | None = None  # the event's job
    #: Above 1 if an earlier controller does not know whether the message arrived.
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate(Decision):
    """Cancel the jobs in ``cancel``, then end or stop the run. Nothing is submitted afterwards."""

    type: ClassVar[str] = "terminate"
    rare_fields: ClassVar[tuple[str, ...]] = ("stopped",)
    exit_code: int = 0
    cancel: tuple[str, ...] = ()  # the jobs to cancel
    reason: str = ""
    natural: bool = False  # the run ends because nothing more can happen
    stopped: bool = False  # the run can be resumed


Decision.kinds = {cls.type: cls for cls in Decision.__subclasses__()}
