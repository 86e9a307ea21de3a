"""Backlog: the elements of groups' sweeps that ``submit-next`` takes one after the other.

A group has as many elements as jobs come of one submit of it. Each is taken once, whatever order a
rule asks for: what else submits the group moves nothing here. Called by a firing's ``submit_next``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ensemble_core.engine.gauges import draw
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError
from ensemble_core.model.jobs import Job, JobGroup

__all__ = ["ORDERS", "Order", "taken_next"]

Order = Literal["given", "random", "ascending", "descending", "shortest", "longest"]
ORDERS: tuple[Order, ...] = (
    *("given", "random", "ascending", "descending", "shortest", "longest"),
)


def taken_next(
    state: State, names: Sequence[str], count: int, order: Order, seed: int
) -> Iterator[tuple[JobGroup, Job]]:
    """The next jobs of these groups, at most so many, each with the entry of the file that it is
    made of. Raises :class:`EnsembleError` where a group's parameter has no value."""
    standings = [state.table.groups[name] for name in dict.fromkeys(names)]
    for standing in standings:
        missing = standing.group.missing
        if missing and standing.backlog:
            raise EnsembleError(
                f"the parameter {missing[0]!r} of {standing.group.name!r} has no value, "
                "and 'submit-next' gives none: nothing is submitted",
                hint="give the parameter its values in the file",
                code="no-value",
            )
    if order != "random":
        standings = _in_order(state, standings, order)
    changed: dict[str, None] = {}
    for _ in range(min(count, sum(each.backlog for each in standings))):
        if order == "random":
            standing, place = _drawn(standings, seed)
        else:
            standing, place = next((each, 0) for each in standings if each.backlog)
        entry, parameters, replica = standing.group.element(_take(standing, place))
        job = entry.job(standing.next_index, parameters, replica)
        standing.next_index += 1
        changed[standing.group.name] = None
        yield entry, job
    for name in changed:
        state.table.gauges.taken(name)


def _in_order(state: State, standings: list[GroupState], order: Order) -> list[GroupState]:
    """The groups in this order; those of which the time is not known come last."""
    if order == "given":
        return standings
    if order in ("ascending", "descending"):
        sign = 1 if order == "ascending" else -1
        return sorted(standings, key=lambda each: sign * each.group.nodes)
    known = {
        each.group.name: state.metrics.mean(each.group.name, "duration") or each.group.duration
        for each in standings
    }
    sign = 1 if order == "shortest" else -1
    return sorted(
        standings,
        key=lambda each: (not known[each.group.name], sign * known[each.group.name]),
    )


def _drawn(standings: list[GroupState], seed: int) -> tuple[GroupState, int]:
    """One of all elements that are left: its group, and its place among what is left of that."""
    left = sum(each.backlog for each in standings)
    place = draw(seed, sum(each.taken for each in standings), left)
    for each in standings:
        if place < each.backlog:
            return each, place
        place -= each.backlog
    raise AssertionError("there are fewer elements than are left")


def _take(standing: GroupState, place: int) -> int:
    """The element at this place among those that are left, which is left no more: the first takes
    its place, as in a shuffle by Fisher and Yates of which only what was moved is kept."""
    moved, first = standing.moved, standing.taken
    at = first + place
    element = moved.get(at, at)
    if place:
        moved[at] = moved.get(first, first)
    moved.pop(first, None)
    standing.taken += 1
    return element
