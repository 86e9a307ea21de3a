"""Decisions: the closed set of instructions that the engine returns.

The engine returns decisions in order. The runtime executes them, the journal stores them, and the
console shows them. In each decision, ``rule`` is the id of the rule that made it, or ``None`` if no
rule did. The field ``firing`` is the number of the rule's firing within the run; all decisions of
one firing have the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ensemble_core.model.codec import NOTHING, Record
from ensemble_core.model.jobs import Job

__all__ = [
    "AddRule",
    "Call",
    "Cancel",
    "Decision",
    "DisableRule",
    "EnableRule",
    "Fired",
    "Log",
    "LookUp",
    "Notify",
    "Resize",
    "Retry",
    "SetGenerator",
    "SetGroup",
    "Submit",
    "Switch",
    "Terminate",
    "WhenBusy",
]

#: What to do with jobs on nodes that are to be released; see :class:`Resize`.
WhenBusy = Literal["wait", "skip", "force"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Decision(Record):
    """One instruction of the engine.

    ``rule`` is the id of the rule that made it, and ``firing`` is the number of the rule's firing
    within the run. If no rule made it, they are ``None`` and 0.
    """

    type: ClassVar[str] = "decision"
    rule: str | None = None
    firing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Fired(Decision):
    """A rule fired. This is the first decision of each firing.

    - ``label``: the trigger as shown to users (``start``, ``count.sleep.success``, ``job-fail
      (lammps)``).
    - ``count``: how often this rule has fired, including this time.
    - ``job``: the event's job, if any.
    - ``value``: the value of the trigger's metric, if any.
    - ``each``: for an instance of a rule with ``each``, the parameters of the instance's slice.
    """

    type: ClassVar[str] = "fired"
    label: str = ""
    count: int = 1
    job: str | None = None
    value: float | None = None
    each: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.each:  # nearly always
            del data["each"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Submit(Decision):
    """Submit these jobs, all of which belong to one group."""

    type: ClassVar[str] = "submit"
    group: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LookUp(Decision):
    """Find out which of these jobs an earlier run has already done (``--reuse``).

    All jobs belong to one group. The jobs that no earlier run has done are then submitted.
    """

    type: ClassVar[str] = "look-up"
    group: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Retry(Decision):
    """Retry this job with changed ``fields``, ``wait`` seconds after its current attempt is over.

    With ``resume``, the statistics of the job continue over the attempts. This decision is only a
    record: after the wait, the engine returns a :class:`Submit` for the next attempt.
    """

    type: ClassVar[str] = "retry"
    job: str
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    wait: float = 0.0
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Cancel(Decision):
    """Cancel the jobs with these ids (our ids, not the queue's)."""

    type: ClassVar[str] = "cancel"
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Resize(Decision):
    """Request ``delta`` more (positive) or fewer (negative) nodes from the executor.

    ``request`` is the id of the request, which is idempotent: an executor that receives it again
    answers without carrying it out again. The engine repeats a request with a higher ``attempt`` if
    it does not know the answer, because the request could not be delivered or the controller ended.

    ``when_busy`` says what to do with a node that should be released while jobs run on it: release
    it as soon as it is idle (``wait``), keep it (``skip``), or release it at once, so that its jobs
    fail (``force``).
    """

    type: ClassVar[str] = "resize"
    request: str
    delta: int
    attempt: int = 1
    when_busy: WhenBusy = "wait"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AddRule(Decision):
    """Add a rule; ``spec`` is the rule as plain data."""

    type: ClassVar[str] = "add-rule"
    id: str
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EnableRule(Decision):
    """Enable these rules."""

    type: ClassVar[str] = "enable-rule"
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DisableRule(Decision):
    """Disable these rules until they are enabled again."""

    type: ClassVar[str] = "disable-rule"
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Switch(Decision):
    """Disable the rules of the instances ``off``, and enable and start those of the instances
    ``on``.

    With ``keep``, the run still uses the results of functions that rules of ``off`` have called.
    With ``reset``, the firing counters of the rules of ``on`` start from zero.
    """

    type: ClassVar[str] = "switch"
    off: tuple[str, ...]
    on: tuple[str, ...]
    keep: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetGroup(Decision):
    """Change fields of a job group. The change applies to later submits."""

    type: ClassVar[str] = "set-group"
    group: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetGenerator(Decision):
    """Pause a generator, continue it (``pause`` is ``False``), or request ``count`` more points.

    The generator also receives the points of the generators in ``learns``: those that have
    finished, and those that finish later.
    """

    type: ClassVar[str] = "set-generator"
    generator: str
    pause: bool | None = None
    count: int = 0
    learns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Call(Decision):
    """Call a function outside the engine's thread. The result comes back as an event.

    ``kind`` is one of

    - ``custom``: ``name`` is a function of the file's ``custom:`` part;
    - ``parameters``: ``name`` lists the functions that compute parameter values for a submit of the
      group ``options["group"]``;
    - ``action``: ``name`` is an action of a plugin;
    - ``generator``: ``name`` is a generator of the file; ``options`` has the points to ingest and
      the number of points to suggest.

    ``event`` is the event that led to the call, and ``job`` is the event's job; both are plain
    data. ``attempt`` is above 1 if an earlier controller made the call and ended without a result.
    If ``tolerated`` is true, a failure is only a warning (``on_error: warn``).
    """

    type: ClassVar[str] = "call"
    call: str
    kind: Literal["custom", "parameters", "action", "generator"]
    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    event: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    job: Mapping[str, Any] | None = None
    attempt: int = 1
    tolerated: bool = False

    def to_dict(self) -> dict[str, Any]:
        data = Decision.to_dict(self)
        if not self.tolerated:  # nearly always
            del data["tolerated"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Log(Decision):
    """Show the user a message."""

    type: ClassVar[str] = "log"
    message: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Notify(Decision):
    """Send the user a message outside the terminal.

    ``to`` holds addresses (``model.notification_addresses``); ``job`` is the event's job.
    ``attempt`` is above 1 if an earlier controller ended before it knew whether the message had
    arrived.
    """

    type: ClassVar[str] = "notify"
    notice: str
    message: str
    to: tuple[str, ...]
    job: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Terminate(Decision):
    """End or stop the run, after cancelling the jobs in ``cancel``. Nothing is submitted
    afterwards.

    ``reason`` is shown to the user. ``natural`` is true if the run ends because nothing more can
    happen. ``stopped`` is true if the run is only stopped and can be resumed.
    """

    type: ClassVar[str] = "terminate"
    exit_code: int = 0
    cancel: tuple[str, ...] = ()
    reason: str = ""
    natural: bool = False
    stopped: bool = False

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.stopped:
            del data["stopped"]
        return data


Decision.kinds = {cls.type: cls for cls in Decision.__subclasses__()}
