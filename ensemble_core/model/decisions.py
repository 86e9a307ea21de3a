"""Decisions: the closed set of instructions that the engine gives.

The engine returns these in order; the runtime carries them out, the journal keeps them, the
console shows them. ``rule`` is the id of the rule that decided (``None``: the run itself), and
``firing`` numbers the firings of the whole run, so that what belongs together is known.
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

#: What becomes of nodes that are to be given back while jobs run on them.
WhenBusy = Literal["wait", "skip", "force"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Decision(Record):
    """One instruction. ``rule`` decided it in firing number ``firing`` (0: no rule did)."""

    type: ClassVar[str] = "decision"
    rule: str | None = None
    firing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Fired(Decision):
    """A rule fired: the head of the decisions that carry the same ``firing``.

    ``label`` is the trigger as people know it (``start``, ``count.sleep.success``, ``job-fail
    (lammps)``), ``count`` how often this rule has fired with this one, ``job`` the event's job and
    ``value`` the metric's value, where there is one. ``each`` are the parameters of the slice that
    an instance of the rule is about.
    """

    type: ClassVar[str] = "fired"
    label: str = ""
    count: int = 1
    job: str | None = None
    value: float | None = None
    each: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def to_dict(self) -> dict[str, Any]:
        data = Record.to_dict(self)
        if not self.each:  # of nearly every firing
            del data["each"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Submit(Decision):
    """Submit these jobs, all of one group."""

    type: ClassVar[str] = "submit"
    group: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LookUp(Decision):
    """Find out which of these jobs, all of one group, an earlier run did already (``--reuse``). The
    others are submitted then."""

    type: ClassVar[str] = "look-up"
    group: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Retry(Decision):
    """Submit this job once more when it is over, ``wait`` seconds later, as the next attempt of its
    index, with these fields changed. ``resume``: its statistics go on where they stood. Nothing is
    to be carried out: the attempt is a :class:`Submit` when it comes."""

    type: ClassVar[str] = "retry"
    job: str
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    wait: float = 0.0
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Cancel(Decision):
    """Cancel these jobs (our ids)."""

    type: ClassVar[str] = "cancel"
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Resize(Decision):
    """Ask the executor for ``delta`` more (positive) or fewer (negative) nodes.

    ``attempt`` is above 1 where the same ``request`` was made before and its answer is not known:
    it could not be delivered, or the controller that made it was gone. An executor answers a
    request that it knows and does not carry it out twice. ``when_busy`` says what becomes of nodes
    that are to be given back while jobs run on them: they go when they are idle (``wait``), stay
    (``skip``), or go at once, and their jobs fail (``force``).
    """

    type: ClassVar[str] = "resize"
    request: str
    delta: int
    attempt: int = 1
    when_busy: WhenBusy = "wait"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AddRule(Decision):
    """A rule joined the set; ``spec`` is the rule as plain data."""

    type: ClassVar[str] = "add-rule"
    id: str
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EnableRule(Decision):
    """These rules may fire from now on."""

    type: ClassVar[str] = "enable-rule"
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DisableRule(Decision):
    """These rules do not fire until they are enabled again."""

    type: ClassVar[str] = "disable-rule"
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Switch(Decision):
    """Switch rules of the instances ``off`` off and of ``on`` on; the latter start.

    ``keep``: returns of functions called by the old ones still count. ``reset``: firing counters
    restart.
    """

    type: ClassVar[str] = "switch"
    off: tuple[str, ...]
    on: tuple[str, ...]
    keep: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetGroup(Decision):
    """A group's fields changed for its later submits."""

    type: ClassVar[str] = "set-group"
    group: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SetGenerator(Decision):
    """Pause (``pause``) or continue (``False``) a generator, or request ``count`` additional
    points.

    ``learns``: it also gets the points of these generators, finished and future ones.
    """

    type: ClassVar[str] = "set-generator"
    generator: str
    pause: bool | None = None
    count: int = 0
    learns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Call(Decision):
    """Call a function off the engine's thread; its outcome returns as an event.

    ``kind`` is ``custom`` (``name`` is a function of the file's ``custom:`` part), ``parameters``
    (a submit of ``options["group"]`` asks functions for values: ``name`` says which), ``action``
    (``name`` is an action of a plugin) or ``generator`` (``name`` is one of the file's;
    ``options`` has what it is told and how many points it is to suggest). ``event`` is the event
    that led here and ``job`` what is known of the job it concerns, both as plain data. ``attempt``
    is above 1 where the call was made before, by a controller that was gone before it knew the
    result. ``tolerated``: a failure is a warning (``on_error: warn`` of the file).
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
        if not self.tolerated:  # of nearly every call
            del data["tolerated"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Log(Decision):
    """Tell the user something."""

    type: ClassVar[str] = "log"
    message: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Notify(Decision):
    """Send the user a message outside the terminal. ``to`` are addresses
    (``model.notification_addresses``); ``job`` is the event's job. ``attempt`` is above 1 where an
    earlier controller was gone before it knew whether the message had arrived."""

    type: ClassVar[str] = "notify"
    notice: str
    message: str
    to: tuple[str, ...]
    job: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Terminate(Decision):
    """End the run. Nothing is submitted after it. ``cancel`` are the jobs to cancel first.

    ``reason`` is for the user; ``natural`` says that the run ended by itself because nothing more
    could happen, ``stopped`` that it has not ended, but stops until it is resumed.
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
