"""Rules: a trigger, a condition and actions, with repetitions and backoff.

:class:`Rule` and :class:`Action` are plain data, unchecked. A :class:`BoundRule` is checked and
ready for the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ensemble_core.errors import Location
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.placeholders import fill_message
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:  # keeps `ensemble validate` fast
    from ensemble_core.model.decisions import Decision, WhenBusy
    from ensemble_core.model.events import Event
    from ensemble_core.model.job_group import JobGroup
    from ensemble_core.model.jobs import Job

#: Value of ``repetitions`` for a rule that may fire any number of times.
UNLIMITED = 2**53


class _Spec:
    """Base class of :class:`Action` and :class:`Rule`."""

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
    """An action as data, as a custom function returns it.

    >>> Action({"name": "submit", "label": "echo"}).name
    'submit'
    """

    __slots__ = ("fields",)

    def __init__(self, spec: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        super().__init__(spec, **options)
        self.fields: Mapping[str, Any] = NOTHING

    def knowing(self, fields: Mapping[str, Any]) -> Action:
        """Return the action with additional fields (numbers, strings or booleans).

        The action's messages and expressions can use these fields like those of the event.

        >>> Action(name="log", message="it was {outcome}").knowing({"outcome": "halted"}).fields
        {'outcome': 'halted'}
        """
        action = Action(self.spec)
        action.fields = {**self.fields, **fields}
        return action

    @property
    def name(self) -> str:
        """The name of the action, such as ``submit`` or ``cancel``."""
        return str(self.spec.get("name", ""))

    @property
    def label(self) -> str | None:
        """The job group or function that the action refers to, or ``None``."""
        return self.spec.get("label")

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and other.fields == self.fields  # type: ignore[attr-defined]

    __hash__ = None

    def __repr__(self) -> str:
        known = f".knowing({dict(self.fields)!r})" if self.fields else ""
        return super().__repr__() + known


class Rule(_Spec):
    """A rule as data, as a custom function returns it to add a rule.

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
        """The path of the trigger's metric, or its job group. If it has neither, the trigger's
        name.
        """
        return str(self.spec.get("name") or self.trigger)

    @property
    def id(self) -> str | None:
        return self.spec.get("id")

    @property
    def action(self) -> Action:
        """The rule's action, or the first one if it has a list."""
        action = self.spec.get("action") or {}
        return Action(action[0] if isinstance(action, list) else action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The events that make a rule check its condition. Plugins build it from the rule's options.

    Exactly one of these fields must be set:

    - ``metric``: the path of a metric; each update of it triggers the rule;
    - ``every``: an interval in seconds;
    - ``events``: names of event types (``start``, ``heartbeat``, ``job-finish``, ``observed``,
      ``resize-granted`` …). An event that a plugin defines has the name of the plugin's trigger.

    These fields restrict the trigger:

    - ``group``: only events of this group's jobs count. The trigger ``idle`` can have several
      ``groups`` instead, which count as one.
    - ``after``: for the trigger ``silent``, the number of seconds without a row.
    - ``failures``, ``within``, ``causes``: for the trigger ``bad-node``, how many jobs must fail on
      a node within how many seconds. If ``causes`` is not empty, other failures do not count.
    - ``match``: a pure, fast function of the event and its fields that returns whether the event
      counts. The fields include ``value`` if the trigger has a metric, and ``observer`` for an
      observed row.
    """

    events: tuple[str, ...] = ()
    group: str | None = None
    groups: tuple[str, ...] = ()
    after: float | None = None
    metric: str | None = None
    every: float | None = None
    failures: int = 0
    within: float = 0.0
    causes: tuple[str, ...] = ()
    match: Callable[[Event, Mapping[str, Any]], bool] | None = None

    def __post_init__(self) -> None:
        events: object = self.events
        if not isinstance(events, (tuple, list, set, frozenset)):
            right = f"({events!r},)" if isinstance(events, str) else "('observed',)"
            raise TypeError(
                f"'events' is {events!r:.80}, expected a tuple of names: events={right}"
            )
        for name in events:
            if not isinstance(name, str) or not name:
                raise TypeError(f"'events' contains {name!r:.80}, expected names of event types")
        if not isinstance(events, tuple):
            ordered = events if isinstance(events, list) else sorted(events)
            object.__setattr__(self, "events", tuple(ordered))


class Firing(Protocol):
    """One firing of a rule, as seen by the method ``plan`` of an action.

    Properties and queries describe the event and the run. Every other method returns a decision,
    which takes effect when the plan yields it.

    A plan must not have side effects: it may only read the firing and return decisions.
    """

    @property
    def rule(self) -> str:
        """The rule's id."""

    @property
    def event(self) -> Event:
        """The event that triggered the rule."""

    @property
    def job(self) -> str | None:
        """Our id of the event's job; ``None`` if the event has no job or a foreign one."""

    @property
    def job_spec(self) -> Job | None:
        """The event's job as it was submitted."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The event's fields by name, as in conditions."""

    @property
    def groups(self) -> Sequence[str]:
        """The names of all job groups."""

    def group(self, name: str) -> JobGroup | None:
        """Return a job group including changes by rules, or ``None`` if it does not exist."""

    def metric(self, path: str) -> float | None:
        """Return a metric's current value, or ``None`` before the metric has a value."""

    def active(self, group: str | None = None) -> Sequence[str]:
        """Return our ids of the open jobs, oldest first, including jobs that wait for a retry.

        If the rule has ``each``, these are only the jobs of the current slice or index.
        """

    def submit(self, group: str, overrides: Mapping[str, Any] | None = None) -> Decision:
        """Submit one group (``count`` jobs for each combination of its sweep), with some fields
        overridden.

        If functions compute the parameters, the decision is to call these functions first.
        """

    def retry(
        self, fields: Mapping[str, Any] | None = None, *, wait: float = 0.0, resume: bool = False
    ) -> Decision:
        """Retry the event's job with some fields changed, ``wait`` seconds after the current
        attempt is over.

        Changed parameters are merged with the others. With ``resume``, the job's statistics
        continue.
        """

    def vary(
        self,
        parameters: Mapping[str, Any],
        *,
        label: str | None = None,
        fields: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> Iterable[Decision]:
        """Submit jobs with other parameters that are otherwise like the event's job or the rule's
        slice.

        Parameter combinations that the group has already had are skipped unless ``again`` is true.
        """

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
        """Submit the next ``count`` elements of these groups' sweeps. Each element is submitted at
        most once per run.

        The documentation of the action ``submit-next`` describes the order ``random``.
        """

    def submit_rows(
        self,
        group: str,
        rows: str,
        fields: Mapping[str, Any] | None = None,
        *,
        again: bool = False,
    ) -> Iterable[Decision]:
        """Submit a group once for each row of a table or, if ``rows`` is ``job``, for each row that
        the event's job printed.

        Columns set the parameters of the same names. Expressions in ``fields`` may use all columns,
        and values in ``fields`` take precedence over columns. Combinations that the group has
        already had are skipped unless ``again`` is true. If any row is invalid, nothing is
        submitted.
        """

    def cancel(self, jobs: Sequence[str]) -> Decision:
        """Cancel these jobs."""

    def signal(self, jobs: Sequence[str], signal: str) -> Iterable[Decision]:
        """Send a signal, such as ``USR1``, to those of these jobs that run."""

    def avoid(
        self, nodes: Sequence[str], *, most: int = 0, resubmit: bool = True
    ) -> Iterable[Decision]:
        """Keep jobs of the run away from these nodes from now on.

        With ``most``, the run avoids at most so many nodes. Unless ``resubmit`` is false, jobs that
        wait in the queue are withdrawn and submitted again.
        """

    def terminate(self, exit_code: int = 0, *, cancel: bool = True, reason: str = "") -> Decision:
        """End the run, and cancel its active jobs unless ``cancel`` is false."""

    def resize(self, delta: int, *, when_busy: WhenBusy = "wait") -> Decision:
        """Request more or fewer nodes. The decision ``Resize`` describes ``when_busy``."""

    def set_group(self, group: str, fields: Mapping[str, Any]) -> Decision:
        """Change fields of a group. The change applies to later submits."""

    def steer(
        self,
        generator: str,
        *,
        pause: bool | None = None,
        count: int = 0,
        learns: Sequence[str] = (),
    ) -> Decision:
        """Pause a generator, continue it, or request ``count`` more points.

        The generator will also receive the points of the generators in ``learns``.
        """

    def enable(self, rules: Sequence[str]) -> Decision:
        """Enable these rules."""

    def disable(self, rules: Sequence[str]) -> Decision:
        """Disable these rules."""

    def switch(
        self,
        to: Sequence[str],
        away: Sequence[str] | None = None,
        *,
        keep: bool = False,
        reset: bool = False,
        cancel: bool = False,
    ) -> Iterable[Decision]:
        """Switch from the instances (``use:``) or generators in ``away`` to those in ``to``.

        If ``away`` is ``None``, all others of the same kind that are on are switched off. Instances
        in ``to`` that are already on stay on. Generators receive the points of the generators that
        they replace. With ``keep``, the run still uses results of functions that the old instances
        called. With ``reset``, the firing counters of the new instances start from zero. With
        ``cancel``, waiting jobs that the old instances or generators submitted are cancelled.
        """

    def log(self, message: str, level: Literal["info", "warning", "error"] = "info") -> Decision:
        """Show the user a message."""

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
        """Return the decisions of another action, or of several actions in order.

        Use this for options with the annotation ``x-ensemble: action``, as in ``yield from
        firing.act(options["then"])``. ``fields`` has additional fields that the action may use.
        """


#: An action's plan: a pure function that gets the firing and the options, and returns the decisions
#: in order.
Plan = Callable[[Firing, Mapping[str, Any]], "Iterable[Decision]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAction:
    """A checked action."""

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    #: Returns the decisions. ``None``: the action runs outside the engine, as a decision ``Call``.
    plan: Plan | None = None
    metrics: frozenset[str] = frozenset()  #: Metric paths in the options.
    reads: frozenset[str] = frozenset()  #: ``STAT.NAME`` references in the options.
    metric_names: frozenset[str] = frozenset()  #: Of statistics and metrics in messages.
    submits: bool = False  #: Whether the action may submit jobs.
    retries: bool = False  #: Whether the action may retry the event's job.
    resizes: bool = False  #: Whether the action grows or shrinks the queue.
    #: Groups for which the action submits new combinations of parameters.
    varies: frozenset[str] = frozenset()
    nested: tuple[BoundAction, ...] = ()  #: The actions in the options.
    #: Places of messages with placeholders in the options.
    messages: tuple[tuple[str | int, ...], ...] = ()
    tolerated: bool = False  #: Whether the run still counts as successful if the action fails.

    def fill_messages(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with the placeholders in their messages filled in."""
        options = self.options
        for place in self.messages:
            options = _with_message(options, place, fields)
        return options

    def flat(self) -> Iterator[BoundAction]:
        """Yield this action and all nested ones."""
        yield self
        for inner in self.nested:
            yield from inner.flat()


def _with_message(value: Any, place: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """Return a copy of the value with the message at this place filled in."""
    if not place:
        return fill_message(value, fields)[0]
    changed = list(value) if isinstance(value, list) else dict(value)
    changed[place[0]] = _with_message(value[place[0]], place[1:], fields)
    return changed


class BoundSpec(dict[str, Any]):
    """A checked action that is an option of another action: plain data plus the bound action."""

    __slots__ = ("bound",)

    def __init__(self, spec: Mapping[str, Any], bound: BoundAction) -> None:
        super().__init__(spec)
        self.bound = bound

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRule:
    """A checked, immutable rule. The rule's counters are part of the engine's state."""

    id: str
    trigger: Trigger
    actions: tuple[BoundAction, ...]
    condition: Condition | None = None
    #: Maximum number of firings; with ``each``, for each job index or each slice.
    repetitions: int = 1
    backoff: int = 0  #: Number of matches that the rule skips after a firing.
    backoff_seconds: float = 0.0
    #: ``job``, or the parameters whose values define a slice.
    each: Literal["job"] | tuple[str, ...] | None = None
    checks: int = 1  #: The rule fires after the condition was true in this many checks in a row.
    #: The rule fires after the condition was true at every check during so many seconds.
    lasts: float = 0.0
    #: Whether the rule only fires when its condition becomes true. If it is true at the first
    #: check, the rule fires only with ``at_first``.
    crosses: bool = False
    at_first: bool = False
    reads: frozenset[str] = frozenset()  #: The ``STAT.NAME`` references in the rule.
    #: The group whose metrics ``reads`` refers to. If ``None``, the references are to values of the
    #: rule's instance or of the event's job.
    reads_of: str | None = None
    #: The ``STAT.TABLE.COLUMN`` references in the rule; with ``each``, they cover the slice's rows.
    of_tables: frozenset[str] = frozenset()
    #: The gauges that the rule uses by name, without ``metric(…)``.
    of_gauges: frozenset[str] = frozenset()
    retries: bool = False  #: Whether the rule may submit the event's job again.
    enabled: bool = True
    queue_scope: bool = False  #: Whether the rule also reacts to foreign jobs.
    label: str = ""  #: The rule's name as shown to users.
    #: Whether the rule handles failed jobs of ``failure_group`` (``None``: of any group). A
    #: failure that the rule has matched or can still match does not make the exit code 1.
    concerns_failure: bool = False
    failure_group: str | None = None
    #: The outcomes of these jobs: ``failed``, or ``cancelled`` by others than the run.
    failures: frozenset[str] = frozenset({"failed", "cancelled"})
    #: The instance of an algorithm (``use:``) that the rule belongs to.
    instance: str | None = None
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)  #: The rule as in the file.
    location: Location | None = None

    @property
    def asks_tables(self) -> bool:
        """True if the rule may read tables."""
        flat = (each for action in self.actions for each in action.flat())
        return bool(self.of_tables) or any("rows" in each.options for each in flat)

    @property
    def groups(self) -> tuple[str, ...]:
        """The job groups that the rule's trigger names. Empty if it concerns all groups."""
        group = self.trigger.group
        return self.trigger.groups or (() if group is None else (group,))

    @property
    def of_group(self) -> Iterator[str]:
        """Yield the metric paths of those ``STAT.NAME`` references that cover a whole group."""
        group = self.reads_of or next(iter(self.groups), None)
        for name in sorted(self.reads):
            if group is not None and (self.reads_of is not None or name.startswith("all.")):
                yield group_path(name, group)

    @property
    def metrics(self) -> Iterator[str]:
        """Yield the paths of the metrics that the rule uses."""
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
    """Return the metric path of ``STAT.NAME`` over a whole group.

    >>> group_path("mean.E", "sim"), group_path("all.count.done(T == 1)", "sim")
    ('mean.sim-E', 'count.sim.done(T == 1)')
    """
    statistic, _, variable = name.removeprefix("all.").partition(".")
    return (
        f"count.{group}.{variable}" if statistic == "count" else f"{statistic}.{group}-{variable}"
    )
