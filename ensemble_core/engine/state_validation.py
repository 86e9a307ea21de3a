"""Compares what the engine keeps by state with the states of attempts and indices.

For tests: in a correct engine there is nothing to find.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ensemble_core.engine.at_once import AtOnceSlots
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.job_states import ATTEMPT, INDEX, NOT_HANDED_OVER, AttemptState

if TYPE_CHECKING:
    from ensemble_core.engine.state import State

_IN_QUEUE: tuple[AttemptState, ...] = ("paced", "queued", "running", "suspended")


class InconsistentState(AssertionError):
    """The engine's state contradicts itself."""


def validate(state: State) -> None:
    """Raise :class:`InconsistentState` if something that is kept by state contradicts the states,
    with all contradictions.
    """
    found = [*_attempts(state), *_groups(state), *_totals(state), *_indices(state)]
    if found:
        raise InconsistentState("\n".join(found))


def _attempts(state: State) -> Iterator[str]:
    """Yield contradictions between the fields of an attempt and its state."""
    for job, record in state.table.records.items():
        kind = record.state
        facts = {
            "is kept": job == record.job.id and kind in ATTEMPT and kind not in ("new", "gone"),
            "runs": (record.runs_since is not None) == (kind == "running"),
            "is suspended": (record.suspended is not None) == (kind == "suspended"),
            "has an outcome": (record.outcome is not None) == (kind == "ended"),
            "is reused": record.reused is None or kind in ("reused", "ended"),
        }
        if kind in ("running", "suspended"):
            facts["has started"] = record.started is not None
        elif kind in ("looking", "held", "paced", "queued"):
            facts["has not started"] = record.started is None
        if kind in NOT_HANDED_OVER:
            facts["no cancel is pending"] = record.cancel == "none"
        yield from (
            f"{job}: wrong in state {kind!r}: {what}" for what, ok in facts.items() if not ok
        )


def _groups(state: State) -> Iterator[str]:
    """Yield contradictions between the containers of a group and the states of its attempts."""
    every = list(state.table.records.values())
    for name, group in state.table.groups.items():
        records = [record for record in every if record.job.group == name]
        yield from _differ(f"{name}: held", group.held, records, "held")
        yield from _differ(f"{name}: waiting", group.waiting, records, "paced", "queued")
        numbers = {
            "running": (group.running, len(_of(records, "running"))),
            "suspended": (group.suspended, len(_of(records, "suspended"))),
            "active": (
                int(state.metrics.count(name, "active")),
                sum(record.outcome is None for record in records),
            ),
        }
        for what, (kept, counted) in numbers.items():
            if kept != counted:
                yield f"{name}: {what} is {kept}, but {counted} attempts are in such a state"
        lines = (group.line, *group.blocked.values())
        lined = {job for line in lines for _, _, job in line}
        if not lined >= group.held.keys():
            yield f"{name}: held but not in line: {sorted(group.held.keys() - lined)}"


def _totals(state: State) -> Iterator[str]:
    """Yield contradictions between the containers of the run and the states of attempts."""
    table = state.table
    records = list(table.records.values())
    yield from _differ("looking", table.looking, records, "looking")
    paced = [job.id for job, _, _ in state.rate_limit.held]
    yield from _differ("the rate limit", paced, records, "paced")
    slots = AtOnceSlots()
    slots.shared = table.slots.shared
    slots.recount(
        (table.groups[record.job.group].group, record)
        for record in records
        if record.reused is None and record.state in (*_IN_QUEUE, "ended")
    )
    if slots.used != table.slots.used:
        yield f"slots: {table.slots.used}, but the attempts use {slots.used}"
    if table.budget is not None:
        yield from _differ("the budget", table.budget.claims, records, *_IN_QUEUE)
    if table.usage.active and table.usage.running != len(_of(records, "running")):
        yield f"usage: {table.usage.running} attempts run"
    if table.gauges.active:
        there = [r for r in records if r.state not in ("looking", "held") and r.reused is None]
        phases = [0] * len(table.gauges.phases)
        for record in there:
            phases[record.phase] += record.state != "suspended"
        # The last phase also counts attempts that are gone.
        if phases[:-1] != table.gauges.phases[:-1]:
            yield f"gauges: {table.gauges.phases[:-1]}, but the attempts are in {phases[:-1]}"


def _indices(state: State) -> Iterator[str]:
    """Yield contradictions between the fields of an index and its state."""
    table = state.table
    kept = [
        record.index_record for record in table.records.values() if record.index_record is not None
    ]
    for index in {id(each): each for each in (*kept, *state.attempts.values())}.values():
        job = index.record.job.id
        present = table.records.get(job) is index.record
        facts = {
            "is known": index.state in INDEX,
            "has an attempt": present == (index.state == "open"),
            "calls functions": index.calls >= 0 and (index.state != "called" or index.calls > 0),
            "waits": not index.waits or index.state == "waiting",
            "has a retry": index.state != "waiting" or index.retry is not None,
        }
        for what, ok in facts.items():
            if not ok:
                yield f"the index of {job}: wrong in state {index.state!r}: {what}"


def _of(records: list[JobRecord], *states: AttemptState) -> list[JobRecord]:
    return [record for record in records if record.state in states]


def _differ(
    what: str, kept: Collection[str], records: list[JobRecord], *states: AttemptState
) -> Iterator[str]:
    """Yield a contradiction if ``kept`` are not the attempts in these states."""
    there = {record.job.id for record in _of(records, *states)}
    if there != {*kept} or len(kept) != len(there):
        yield f"{what}: {sorted(kept)}, but in state {' or '.join(states)}: {sorted(there)}"
