"""Report on the state of a run: its groups, its remaining time and its costs."""

from __future__ import annotations

from collections.abc import Iterator

from ensemble_core.engine.concurrency_slots import AT_ONCE
from ensemble_core.engine.report_records import GroupReport, Progress, Report, RuleReport
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.state import State
from ensemble_core.metrics.store import COMMITTED, USED
from ensemble_core.model.filters import ALL
from ensemble_core.quick_dataclass import replace


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


def report_of(state: State) -> Report:
    """Return a report on the run in ``state``."""
    groups = []
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
        groups.append(
            GroupReport(
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
        )
    return Report(
        groups=tuple(groups),
        rules=tuple(_with_reason(state, each) for each in state.rules.report(state.now)),
        events=state.events,
        firings=state.firings,
        errors=state.errors,
        warnings=tuple(state.warnings),
        instances=state.rules.report_instances(),
        progress=progress_of(state),
        unhandled_failures=state.failures,
        avoided=tuple(state.node_failures.avoided),
    )


def _with_reason(state: State, report: RuleReport) -> RuleReport:
    """If a statistic over a table has no value, add the reason to the report on the rule."""
    rule_state = state.rules.states[report.id]
    seen = rule_state.seen or {}
    for name in sorted(rule_state.rule.of_tables):
        # In a slice, the table covers other rows unless the name begins with "all.".
        if name in seen and seen[name] is None and (rule_state.slices is None or name[:4] == ALL):
            why = state.tables().why_no_value(name)
            if why:
                text = f"{name} without a value"
                seen_with_reason = report.last_seen.replace(text, f"{text} ({why})")
                report = replace(report, last_seen=seen_with_reason)
    return report
