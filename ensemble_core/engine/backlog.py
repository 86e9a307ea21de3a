"""Backlog: the part of a group's sweep that the action ``submit-next`` has not submitted yet.

Submits by other actions do not change the backlog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ensemble_core.engine.gauges import draw
from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import replicas_of
from ensemble_core.errors import EnsembleError
from ensemble_core.model.jobs import Job, JobGroup

__all__ = ["Order", "take_next"]

Order = Literal["given", "random", "ascending", "descending", "shortest", "longest"]


def take_next(
    state: State, names: Sequence[str], count: int, order: Order, seed: int
) -> Iterator[tuple[JobGroup, Job]]:
    """Remove up to ``count`` jobs from the backlogs of these groups, and yield each with its group.

    Raises :class:`EnsembleError` if a parameter has no value.
    """
    standings = [state.table.groups[name] for name in dict.fromkeys(names)]
    for standing in standings:
        missing = standing.group.missing
        if missing and standing.backlog:
            raise EnsembleError(
                f"the parameter {missing[0]!r} of {standing.group.name!r} has no value, and "
                "'submit-next' provides none: nothing was submitted",
                hint="list the parameter's values in the file",
                code="no-value",
            )
    if order != "random":
        standings = _in_order(state, standings, order)
    changed: dict[str, None] = {}
    for _ in range(min(count, sum(each.backlog for each in standings))):
        if order == "random":
            standing, place = _draw_element(standings, seed)
        else:
            standing, place = next((each, 0) for each in standings if each.backlog)
        entry, parameters, replica = standing.group.element(_pop(standing, place))
        numbers = replicas_of(state, standing.group)
        if numbers is not None and not numbers.take(parameters, replica):
            (replica,) = numbers.take_free(parameters, 1)
        job = entry.job(standing.next_index, parameters, replica)
        standing.next_index += 1
        changed[standing.group.name] = None
        yield entry, job
    for name in changed:
        state.table.gauges.taken(name)


def _in_order(state: State, standings: list[GroupState], order: Order) -> list[GroupState]:
    """Return the groups in the given order.

    For orders by duration, groups without one come last.
    """
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


def _draw_element(standings: list[GroupState], seed: int) -> tuple[GroupState, int]:
    """Draw one of the remaining elements of all groups.

    Return the group of the element and the element's position within the group's backlog.
    """
    left = sum(each.backlog for each in standings)
    place = draw(seed, sum(each.taken for each in standings), left)
    for each in standings:
        if place < each.backlog:
            return each, place
        place -= each.backlog
    raise AssertionError("the count of jobs in the backlog is inconsistent")


def _pop(standing: GroupState, place: int) -> int:
    """Remove the element at this position from the backlog, and return it.

    The first remaining element moves to the position (Fisher-Yates shuffle). Only elements that
    have moved are stored.
    """
    moved, first = standing.moved, standing.taken
    at = first + place
    element = moved.get(at, at)
    if place:
        moved[at] = moved.get(first, first)
    moved.pop(first, None)
    standing.taken += 1
    return element
