"""Rules: triggers, conditions, actions, and the rules made of them, with repetitions and backoff.

:class:`Rule` and :class:`Action` are specifications, as a user's function returns them or the file
has them. A :class:`BoundRule` is a rule after checking: its trigger, condition and actions are
objects made by plugins, ready for the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ensemble_core.errors import Location
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.placeholders import filled_message

if TYPE_CHECKING:  # not needed to check a file, which is to be quick
    from ensemble_core.model.decisions import Decision, WhenBusy
    from ensemble_core.model.events import Event
    from ensemble_core.model.jobs import Job, JobGroup

__all__ = [
    "UNLIMITED",
    "Action",
    "BoundAction",
    "BoundRule",
    "BoundSpec",
    "Firing",
    "Plan",
    "Rule",
    "Trigger",
    "group_path",
]

#: ``repetitions`` of a rule that may fire as often as it likes.
UNLIMITED = 2**53


class _Spec:
    """The result of a custom function, as data."""

    __slots__ = ("spec",)

    def __init__(self, spec: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self.spec: dict[str, Any] = {**(spec or {}), **options}

    def __getitem__(self, key: str) -> Any:
        return self.spec[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.spec == self.spec

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"


class Action(_Spec):
    """An action as data: what a custom function returns. ``fields`` are what it may speak of beside
    the event's own; see :meth:`knowing`.

    >>> Action({"name": "submit", "label": "echo"}).name
    'submit'
    """

    __slots__ = ("fields",)

    def __init__(self, spec: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        super().__init__(spec, **options)
        self.fields: Mapping[str, Any] = NOTHING

    def knowing(self, fields: Mapping[str, Any]) -> Action:
        """The same action with these fields (numbers, strings, booleans) beside the event's own,
        for its messages and expressions.

        >>> Action(name="log", message="it was {outcome}").knowing({"outcome": "halted"}).fields
        {'outcome': 'halted'}
        """
        action = Action(self.spec)
        action.fields = {**self.fields, **fields}
        return action

    @property
    def name(self) -> str:
        """Which action: ``submit``, ``cancel`` …"""
        return str(self.spec.get("name", ""))

    @property
    def label(self) -> str | None:
        """The job group or function that the action refers to, if it does."""
        return self.spec.get("label")

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and other.fields == self.fields  # type: ignore[attr-defined]

    __hash__ = None

    def __repr__(self) -> str:
        known = f".knowing({dict(self.fields)!r})" if self.fields else ""
        return super().__repr__() + known


class Rule(_Spec):
    """A rule as data: what a custom function returns to add a rule.

    >>> Rule({"trigger": "job-fail", "action": {"name": "terminate"}}).action.name
    'terminate'
    """

    __slots__ = ()

    @property
    def trigger(self) -> str:
        """The trigger's name."""
        return str(self.spec.get("trigger", ""))

    @property
    def name(self) -> str:
        """The metric's path or the job group, or else the trigger's name."""
        return str(self.spec.get("name") or self.trigger)

    @property
    def id(self) -> str | None:
        return self.spec.get("id")

    @property
    def action(self) -> Action:
        """The rule's action (the first, where it has a list)."""
        action = self.spec.get("action") or {}
        return Action(action[0] if isinstance(action, list) else action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The condition under which a rule is woken. Built by a plugin's trigger record from the rule's
    options.

    Exactly one of these wakes it: an update of the metric at path ``metric``; every ``every``
    seconds; or an occasion named in ``wakes`` (``start``, ``heartbeat``, ``job-finish``,
    ``observed``, ``resize-granted``, or the name of a plugin's own event, which is the trigger's
    name or that of another trigger). ``group`` narrows
    occasions to jobs of one group; of ``idle`` alone ``groups`` may be several, which are then
    looked at as one. ``after`` is for ``silent``: how many seconds without a row. ``match`` may
    narrow further: it is given the occasion's event and fields (of a metric's trigger ``value``
    too; of an observed row ``observer`` too), runs on the engine's thread, and must be pure and
    quick.
    """

    wakes: tuple[str, ...] = ()
    group: str | None = None
    groups: tuple[str, ...] = ()
    after: float | None = None
    metric: str | None = None
    every: float | None = None
    match: Callable[[Event, Mapping[str, Any]], bool] | None = None

    def __post_init__(self) -> None:
        wakes: object = self.wakes
        if not isinstance(wakes, (tuple, list, set, frozenset)):
            right = f"({wakes!r},)" if isinstance(wakes, str) else "('observed',)"
            raise TypeError(f"wakes is {wakes!r:.80}, expected a tuple of names: wakes={right}")
        for name in wakes:
            if not isinstance(name, str) or not name:
                raise TypeError(f"wakes has {name!r:.80} in it, expected names of occasions")
        if not isinstance(wakes, tuple):
            ordered = wakes if isinstance(wakes, list) else sorted(wakes)
            object.__setattr__(self, "wakes", tuple(ordered))


class Firing(Protocol):
    """One firing of a rule, as an action's ``plan`` sees it: what led to it, and what it may
    decide. Each method that decides returns the decision; it has its effect when the plan hands it
    on, so a plan that decides one thing after another is best written as a generator.

    Everything here is pure: a plan may look and decide, not touch the world.
    """

    @property
    def rule(self) -> str:
        """The rule's id."""

    @property
    def event(self) -> Event:
        """The event that woke the rule."""

    @property
    def job(self) -> str | None:
        """Our id of the event's job, if it has one that is ours."""

    @property
    def job_spec(self) -> Job | None:
        """The event's job, whole, as it was submitted."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The event's fields by name, as a condition sees them."""

    @property
    def groups(self) -> Sequence[str]:
        """The names of all job groups."""

    def group(self, name: str) -> JobGroup | None:
        """A job group as it is now, with what rules have set; ``None`` if there is none."""

    def metric(self, path: str) -> float | None:
        """A metric's value now; ``None`` while there is none."""

    def active(self, group: str | None = None) -> Sequence[str]:
        """Our ids of the jobs that are not over yet, oldest first, with those of retries to come.
        In an instance of a rule with ``each``, those of its slice or index alone."""

    def submit(self, group: str, overrides: Mapping[str, Any] | None = None) -> Decision:
        """Submit one group (``count`` jobs times its sweep), some of its fields overridden. Where
        functions give parameters, they are called first, and this is a call."""

    def retry(
        self, fields: Mapping[str, Any] | None = None, *, wait: float = 0.0, resume: bool = False
    ) -> Decision:
        """Submit the event's job again when it is over, with some fields changed (parameters are
        merged), after ``wait`` seconds; ``resume``: its statistics go on where they stood."""

    def vary(
        self,
        parameters: Mapping[str, Any],
        *,
        label: str | None = None,
        fields: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> Iterable[Decision]:
        """Submit jobs like the event's job, or like the rule's slice, with other parameters: each
        combination that the group has not had, all of them ``again``."""

    def submit_next(
        self,
        groups: Sequence[str],
        count: int = 1,
        *,
        order: Literal[
            "given", "random", "ascending", "descending", "shortest", "longest"
        ] = "given",
        seed: int = 0,
    ) -> Iterable[Decision]:
        """Submit the next elements of these groups' sweeps, at most so many, each once in the
        run; of a ``random`` order see the documentation of the action ``submit-next``."""

    def submit_rows(
        self,
        group: str,
        rows: str,
        fields: Mapping[str, Any] | None = None,
        *,
        again: bool = False,
    ) -> Iterable[Decision]:
        """Submit a group once for each row of a table, or of what the event's job printed
        (``job``), all or none: columns that are parameters are given, ``fields`` see all columns
        and come before them. Combinations that the group has had only ``again``."""

    def cancel(self, jobs: Sequence[str]) -> Decision:
        """Cancel these jobs."""

    def terminate(self, exit_code: int = 0, *, cancel: bool = True, reason: str = "") -> Decision:
        """End the run; by default what is still active is cancelled."""

    def resize(self, delta: int, *, when_busy: WhenBusy = "wait") -> Decision:
        """Ask for more or fewer nodes; of ``when_busy`` see the decision ``Resize``."""

    def set_group(self, group: str, fields: Mapping[str, Any]) -> Decision:
        """Change fields of a group for its later submits."""

    def steer(
        self,
        generator: str,
        *,
        pause: bool | None = None,
        count: int = 0,
        learns: Sequence[str] = (),
    ) -> Decision:
        """Let a generator pause or go on, or ask it for so many further points; it is told the
        points of the generators ``learns`` too."""

    def enable(self, rules: Sequence[str]) -> Decision:
        """Let these rules fire again."""

    def disable(self, rules: Sequence[str]) -> Decision:
        """Keep these rules from firing."""

    def switch(
        self,
        to: Sequence[str],
        away: Sequence[str] | None = None,
        *,
        keep: bool = False,
        reset: bool = False,
        cancel: bool = False,
    ) -> Iterable[Decision]:
        """Switch to these instances (``use:``) and generators from those of ``away`` (``None``:
        from all others of the kind that are on); nothing where they are on already. Generators are
        told the points of those that they are switched from. ``keep``: what functions that the old
        ones called return is heeded; ``reset``: the new ones' rules count anew; ``cancel``: jobs
        that the old ones' rules submitted and that wait are cancelled."""

    def log(self, message: str, level: Literal["info", "warning", "error"] = "info") -> Decision:
        """Tell the user something."""

    def notify(self, message: str, to: Sequence[str]) -> Decision:
        """Send the user a message to these addresses (see
        ``ensemble_core.model.notification_addresses``)."""

    def call(self, function: str) -> Decision:
        """Call a function of the file's ``custom:`` part."""

    def act(
        self,
        spec: Mapping[str, Any] | Action | Sequence[Mapping[str, Any] | Action],
        fields: Mapping[str, Any] | None = None,
    ) -> Iterable[Decision]:
        """The decisions of another action, or of several in order: what an option annotated
        ``x-ensemble: action`` holds. To be handed on: ``yield from firing.act(options["then"])``.
        ``fields`` are what it may speak of beside the event's own.
        """


#: An action's plan: pure; given the firing and the action's options, the decisions in order.
Plan = Callable[[Firing, Mapping[str, Any]], "Iterable[Decision]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAction:
    """An action after checking. ``plan`` ``None`` means that it runs off the engine's thread: the
    engine then decides a :class:`~ensemble_core.model.decisions.Call` of kind ``action``.
    ``metrics`` are paths that its options speak of, ``reads`` the ``STAT.NAME``, ``nested`` the
    actions that they hold, ``messages`` the places of texts that a firing fills in. ``tolerated``:
    a failure of it is no failure of the run. ``submits``: it may submit jobs; ``retries``: the
    event's job again; ``varies``: the groups of which it asks for combinations that they have not
    had."""

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    plan: Plan | None = None
    metrics: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    submits: bool = False
    retries: bool = False
    varies: frozenset[str] = frozenset()
    nested: tuple[BoundAction, ...] = ()
    messages: tuple[tuple[str | int, ...], ...] = ()
    tolerated: bool = False

    def said(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options with their messages filled in."""
        options = self.options
        for place in self.messages:
            options = _with_message(options, place, fields)
        return options

    def flat(self) -> Iterator[BoundAction]:
        """This action and every one within it."""
        yield self
        for inner in self.nested:
            yield from inner.flat()


def _with_message(value: Any, place: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """A copy of the value in which the message at this place is filled in."""
    if not place:
        return filled_message(value, fields)[0]
    changed = list(value) if isinstance(value, list) else dict(value)
    changed[place[0]] = _with_message(value[place[0]], place[1:], fields)
    return changed


class BoundSpec(dict[str, Any]):
    """A checked action within another's options: plain data to whoever reads it, with the bound
    action beside it for the firing that does it. A copy is plain data and nothing else."""

    __slots__ = ("bound",)

    def __init__(self, spec: Mapping[str, Any], bound: BoundAction) -> None:
        super().__init__(spec)
        self.bound = bound

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRule:
    """A rule after checking, immutable; how often it has fired is the engine's to know.

    ``repetitions`` is how often it may fire; with ``each`` (an index: ``job``, or the slice of the
    parameters of these names), how often for each. ``looks`` is at how many looks in a row its
    condition must hold, ``reads`` are the ``STAT.NAME`` that it speaks of, and ``retries`` says
    that it may submit the event's job again. After a firing it skips ``backoff`` further matches,
    or waits ``backoff_seconds``. ``queue_scope`` lets it see strangers' jobs. ``label`` is how
    people know the rule; ``concerns_failure`` says that failed jobs of ``failure_group`` (any
    group where ``None``) are this rule's business: one that it matched, or whose like it still
    waits for, does not turn the exit code to 1.
    ``instance`` is the instance of an algorithm (``use:``) that it belongs to. ``spec`` is the rule
    as the file has it.
    """

    id: str
    trigger: Trigger
    actions: tuple[BoundAction, ...]
    condition: Condition | None = None
    repetitions: int = 1
    backoff: int = 0
    backoff_seconds: float = 0.0
    each: Literal["job"] | tuple[str, ...] | None = None
    looks: int = 1
    reads: frozenset[str] = frozenset()
    #: The group whose metrics ``reads`` are; ``None``: of the instance, or else of the event's job.
    reads_of: str | None = None
    #: The ``STAT.TABLE.COLUMN`` that it speaks of; these are the slice's in an instance of one.
    of_tables: frozenset[str] = frozenset()
    #: The gauges that it names beside the metrics.
    of_gauges: frozenset[str] = frozenset()
    retries: bool = False
    enabled: bool = True
    queue_scope: bool = False
    label: str = ""
    concerns_failure: bool = False
    failure_group: str | None = None
    instance: str | None = None
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    location: Location | None = None

    @property
    def asks_tables(self) -> bool:
        """True if it may ask for tables."""
        flat = (each for action in self.actions for each in action.flat())
        return bool(self.of_tables) or any("rows" in each.options for each in flat)

    @property
    def groups(self) -> tuple[str, ...]:
        """The job groups that its trigger names; none where it concerns all."""
        group = self.trigger.group
        return self.trigger.groups or (() if group is None else (group,))

    @property
    def of_group(self) -> Iterator[str]:
        """The paths of the ``STAT.NAME`` that are over a whole group."""
        group = self.reads_of or next(iter(self.groups), None)
        for name in sorted(self.reads):
            if group is not None and (self.reads_of is not None or name.startswith("all.")):
                yield group_path(name, group)

    @property
    def metrics(self) -> Iterator[str]:
        """The paths of the metrics that the rule speaks of."""
        if self.trigger.metric is not None:
            yield self.trigger.metric
        if self.condition is not None:
            yield from sorted(self.condition.metrics)
        yield from self.of_group
        yield from sorted(self.of_gauges)
        for action in self.actions:
            for each in action.flat():
                yield from sorted(each.metrics)


def group_path(name: str, group: str) -> str:
    """The path of ``STAT.NAME`` over a whole group.

    >>> group_path("mean.E", "sim"), group_path("all.count.done(T == 1)", "sim")
    ('mean.sim-E', 'count.sim.done(T == 1)')
    """
    statistic, _, variable = name.removeprefix("all.").partition(".")
    return (
        f"count.{group}.{variable}" if statistic == "count" else f"{statistic}.{group}-{variable}"
    )
