"""Backlog: the part of a group's sweep that the action ``submit-next`` has not submitted yet.

Submits by other actions do not change the backlog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.random_draw import draw
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import replicas_of
from ensemble_core.errors import EnsembleError
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job

Order = Literal["given", "random", "ascending", "descending", "shortest", "longest"]


def take_next(
    state: State, names: Sequence[str], count: int, order: Order, seed: int
) -> Iterator[tuple[JobGroup, Job]]:
    """Remove up to ``count`` jobs from the backlogs of these groups, and yield each with its group.

    Raises :class:`EnsembleError` if a parameter has no value.
    """
    group_states = [state.table.groups[name] for name in dict.fromkeys(names)]
    for group_state in group_states:
        missing = group_state.group.missing
        if missing and group_state.backlog:
            raise EnsembleError(
                f"the parameter {missing[0]!r} of {group_state.group.name!r} has no value, and "
                "'submit-next' provides none: nothing was submitted",
                hint="list the parameter's values in the file",
                code="no-value",
            )
    if order != "random":
        group_states = _in_order(state, group_states, order)
    changed: dict[str, None] = {}
    for _ in range(min(count, sum(each.backlog for each in group_states))):
        if order == "random":
            group_state, position = _draw_element(group_states, seed)
        else:
            group_state, position = next((each, 0) for each in group_states if each.backlog)
        entry, parameters, replica = group_state.group.element(_pop(group_state, position))
        numbers = replicas_of(state, group_state.group)
        if numbers is not None and not numbers.claim(parameters, replica):
            (replica,) = numbers.claim_free(parameters, 1)
        job = entry.job(group_state.next_index, parameters, replica)
        group_state.next_index += 1
        changed[group_state.group.name] = None
        yield entry, job
    for name in changed:
        state.table.gauges.taken(name)


def _in_order(state: State, group_states: list[GroupState], order: Order) -> list[GroupState]:
    """Return the groups in the given order.

    For orders by duration, groups without one come last.
    """
    if order == "given":
        return group_states
    if order in ("ascending", "descending"):
        sign = 1 if order == "ascending" else -1
        return sorted(group_states, key=lambda each: sign * each.group.nodes)
    known = {
        each.group.name: state.metrics.mean(each.group.name, "duration") or each.group.duration
        for each in group_states
    }
    sign = 1 if order == "shortest" else -1
    return sorted(
        group_states,
        key=lambda each: (not known[each.group.name], sign * known[each.group.name]),
    )


def _draw_element(group_states: list[GroupState], seed: int) -> tuple[GroupState, int]:
    """Draw one of the remaining elements of all groups.

    Return the group of the element and the element's position within the group's backlog.
    """
    left = sum(each.backlog for each in group_states)
    position = draw(seed, sum(each.taken for each in group_states), left)
    for each in group_states:
        if position < each.backlog:
            return each, position
        position -= each.backlog
    raise AssertionError("the count of jobs in the backlog is inconsistent")


def _pop(group_state: GroupState, position: int) -> int:
    """Remove the element at this position from the backlog, and return it.

    The first remaining element moves to the position (Fisher-Yates shuffle). Only elements that
    have moved are stored.
    """
    moved, first = group_state.moved, group_state.taken
    at = first + position
    element = moved.get(at, at)
    if position:
        moved[at] = moved.get(first, first)
    moved.pop(first, None)
    group_state.taken += 1
    return element
