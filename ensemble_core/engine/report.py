"""Report on the state of a run: its groups, its rules, its remaining time and its costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ensemble_core.engine.at_once import AT_ONCE
from ensemble_core.metrics.store import COMMITTED, USED
from ensemble_core.model.codec import NOTHING, Record
from ensemble_core.model.filters import ALL
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:  # a reader of reports need not load the state
    from ensemble_core.engine.rule_index import RuleState
    from ensemble_core.engine.state import State

#: Whether a rule fired, or the reason why it did not.
FiringState = Literal["fired", "never triggered", "condition false", "held back", "disabled", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport(Record):
    """A job group: how many jobs are in each state, and how long they waited and ran on average."""

    rare_fields: ClassVar[tuple[str, ...]] = ("suspended", "reused", "cancelled_by")
    name: str
    submitted: int = 0  # the sum of the next six
    waiting: int = 0
    running: int = 0
    suspended: int = 0
    success: int = 0
    failed: int = 0  # the sum of ``causes``
    cancelled: int = 0
    reused: int = 0  # jobs in ``success`` whose results come from an earlier run
    causes: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    #: Those jobs in ``cancelled`` whose cancel the run had not asked for, by canceller.
    cancelled_by: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    mean_duration: float | None = None  # seconds; ``None``: unknown
    mean_pending: float | None = None  # seconds; ``None``: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport(Record):
    """A rule: how often it was triggered, and how often it fired."""

    id: str
    label: str
    fired: int = 0
    repetitions: int = 1
    triggered: int = 0  # how often the rule was considered
    refused: int = 0  # how often the trigger's ``match`` rejected an event
    #: Matches of instances (``each``) that had already fired ``repetitions`` times.
    passed_over: int = 0
    #: How often each verdict of the engine, such as ``backoff``, kept the rule from firing. A false
    #: condition is not counted.
    held_back: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    #: At how many checks in a row the condition was true at most, and how many ``for`` needs. If
    #: ``for`` is a time (``lasts``): for how many seconds it was true at most.
    longest: float = 0
    checks: int = 1
    lasts: float = 0.0
    last_value: float | None = None  # of the rule's metric
    last_seen: str = ""  # values in the condition when it was last false
    when: str = ""
    enabled: bool = True
    instance: str | None = None  # the entry under ``use:`` to which the rule belongs
    state: FiringState = "never triggered"
    cut: str = ""  # why the rule was permanently switched off
    spec: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport(Record):
    """An instance of an algorithm under ``use:``."""

    name: str
    algorithm: str = ""
    version: str = ""
    on: bool = True
    first: bool = True  # whether it was on when the run began
    rules: int = 0  # the number of its rules
    fired: int = 0  # the number of firings of its rules
    #: Recent switches: the time (seconds since the epoch), and whether it was switched on.
    switched: tuple[tuple[float, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Record):
    """Progress of a run: how many jobs are done, and how much of its limits the run has used."""

    done: int = 0  # jobs, including retries
    planned: int = 0
    open: bool = False  # rules may add jobs: the total is unknown
    to_go: float | None = None  # seconds
    used: Mapping[str, float] = field(default_factory=lambda: NOTHING)  # by jobs so far
    #: What running and waiting jobs may still use.
    committed: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: Limits by name, such as ``jobs`` or ``core_hours``; ``used`` has the same names.
    limits: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    held: int = 0  # jobs
    reached: tuple[str, ...] = ()  # limits that have held jobs at any time
    holding: tuple[str, ...] = ()  # limits that hold jobs now


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Record):
    """Report on a run."""

    rare_fields: ClassVar[tuple[str, ...]] = ("warnings", "instances", "avoided")
    groups: tuple[GroupReport, ...] = ()
    rules: tuple[RuleReport, ...] = ()
    events: int = 0  # number of events
    firings: int = 0
    errors: int = 0
    unhandled_failures: int = 0
    warnings: tuple[str, ...] = ()  # problems other than failed jobs
    instances: tuple[InstanceReport, ...] = ()
    progress: Progress = field(default_factory=Progress)
    avoided: tuple[str, ...] = ()  # nodes that get no more jobs

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "progress": self.progress.to_dict()}


def report_of(state: State) -> Report:
    """Return a report on the run in ``state``."""
    return Report(
        groups=tuple(_group_reports(state)),
        rules=tuple(_rule_reports(state)),
        events=state.events,
        firings=state.firings,
        errors=state.errors,
        warnings=tuple(state.warnings),
        instances=tuple(_instance_reports(state)),
        progress=progress_of(state),
        unhandled_failures=state.failures,
        avoided=tuple(state.bad_nodes.avoided),
    )


def _group_reports(state: State) -> Iterator[GroupReport]:
    records = state.table.records
    gone = [] if state.stop is None else [records[job] for job in state.stop.over]
    for name, group in state.table.groups.items():
        counts = state.metrics.counts[name]
        left = [
            each
            for each in gone
            if each.job.group == name and each.state in ("running", "suspended")
        ]
        suspended = sum(each.state == "suspended" for each in left)
        running = group.running - len(left) + suspended
        suspended = group.suspended - suspended
        over = counts["success"] + counts["failed"] + counts["cancelled"]
        yield GroupReport(
            name=name,
            submitted=counts["submitted"],
            running=running,
            suspended=suspended,
            waiting=counts["submitted"] - running - suspended - over,
            success=counts["success"],
            failed=counts["failed"],
            cancelled=counts["cancelled"],
            reused=counts["reused"],
            causes=dict(group.causes),
            cancelled_by=dict(group.cancelled_by),
            mean_duration=state.metrics.mean(name, "duration"),
            mean_pending=state.metrics.mean(name, "pending"),
        )


def _rule_reports(state: State) -> Iterator[RuleReport]:
    for watch in state.rules.index.watches.values():
        if watch.unread:
            watch.last, watch.unread = watch.read(state.now), False
    true_for = state.rules.true_conditions.true_for(state.now)
    for rule_state in state.rules.states.values():
        rule = rule_state.rule
        yield RuleReport(
            id=rule.id,
            label=rule.label or rule.id,
            fired=rule_state.fired,
            repetitions=rule.repetitions,
            triggered=rule_state.times_triggered,
            refused=rule_state.refused,
            passed_over=rule_state.passed_over,
            held_back=dict(rule_state.held_back),
            longest=max(rule_state.longest, true_for.get(id(rule_state), 0.0)),
            checks=rule.checks,
            lasts=rule.lasts,
            last_value=rule_state.value,
            last_seen=_last_seen(state, rule_state),
            when=rule.condition.text if rule.condition else "",
            enabled=rule_state.enabled and rule_state.on,
            instance=rule.instance,
            state=_firing_state(rule_state),
            cut=rule_state.why_cut,
            spec=rule.spec,
        )


def _firing_state(rule_state: RuleState) -> FiringState:
    if rule_state.fired:
        return "fired"
    if rule_state.cut:
        return "cut"
    if not rule_state.enabled or not rule_state.on:
        return "disabled"
    if not rule_state.times_triggered:
        return "never triggered"
    # Without these verdicts, the condition was false, or its trigger did not match.
    others = rule_state.held_back.keys() - {"trigger", "no value"}
    return "held back" if others else "condition false"


def _last_seen(state: State, rule_state: RuleState) -> str:
    """Return the values in a rule's condition when it was last false.

    If a statistic over a table has no value, this includes the reason.
    """
    seen, text = rule_state.seen or {}, rule_state.last_seen
    for name in sorted(rule_state.rule.of_tables):
        # In a slice, the table covers other rows unless the name begins with "all.".
        if name in seen and seen[name] is None and (rule_state.slices is None or name[:4] == ALL):
            why = state.tables().why_no_value(name)
            if why:
                missing = f"{name} without a value"
                text = text.replace(missing, f"{missing} ({why})")
    return text


def _instance_reports(state: State) -> Iterator[InstanceReport]:
    for name, one in state.rules.instances.items():
        made, members = state.ensemble.instances[name], state.rules.members(name)
        yield InstanceReport(
            name=name,
            algorithm=made.algorithm,
            version=made.version,
            on=one.on,
            first=made.enabled,
            rules=len(members),
            fired=sum(each.fired for each in members),
            switched=tuple(one.switched),
        )


def progress_of(state: State) -> Progress:
    """Return the progress of the run."""
    groups = state.table.groups
    over = sum(_count(state, name, "done") + _count(state, name, "lost") for name in groups)
    still_open = sum(_count(state, name, "open") for name in groups)
    budget = state.table.budget
    limits = {} if budget is None else dict(budget.limits)
    held = len(state.table.held_jobs())
    more = state.ended is None and any(map(_may_submit, _waiting(state)))
    costs = state.table.costs(max(state.now, state.table.usage.latest))
    return Progress(
        done=over,
        planned=over + still_open,
        open=more,
        to_go=None if more or (held and limits) or state.ended else _remaining_seconds(state),
        used=_costs_of_kind(costs, USED),
        committed=_costs_of_kind(costs, COMMITTED) if limits else {},
        limits=limits,
        held=held,
        reached=tuple(state.limits_reported),
        holding=tuple(_holding(state)) if held and limits else (),
    )


def _holding(state: State) -> dict[str, None]:
    """Return the limits that hold jobs at the moment."""
    table = state.table
    found = (table.obstacle(group, state.now) for group in table.groups.values() if group.held)
    return dict.fromkeys(
        what for what in found if what is not None and not what.startswith(AT_ONCE)
    )


def _count(state: State, group: str, counter: str) -> int:
    return int(state.metric(f"count.{group}.{counter}") or 0)


def _costs_of_kind(costs: dict[str, float], kind: str) -> dict[str, float]:
    return {
        name.removeprefix(kind): value for name, value in costs.items() if name.startswith(kind)
    }


def _waiting(state: State) -> Iterator[RuleState]:
    """Yield the rules that can still fire."""
    for rule_state in state.rules.states.values():
        begun = state.started and rule_state.rule.trigger.events == ("start",)
        if rule_state.live and not begun:
            yield rule_state


def _may_submit(rule_state: RuleState) -> bool:
    """Return True if a rule can add jobs. A retry adds no job."""
    flat = (each for action in rule_state.rule.actions for each in action.flat())
    return any(each.submits and not each.retries for each in flat)


def _remaining_seconds(state: State) -> float | None:
    """Estimate the seconds until all jobs are over, or return ``None`` if this is impossible.

    The estimate is the remaining time of all waiting and running jobs, divided by the number of
    running jobs. For each job, the mean duration of its group is assumed.
    """
    left, running = 0.0, 0
    for name, group in state.table.groups.items():
        unfinished = _count(state, name, "active")
        if not unfinished:
            continue
        mean = state.metrics.mean(name, "duration")
        if mean is None:
            return None
        left += unfinished * mean
        running += group.running
    if not running:
        return None
    return max(0.0, left - state.table.usage.running_for(state.now)) / running
