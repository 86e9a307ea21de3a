"""Timeline of a run: the numbers of running and waiting jobs over time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ensemble_core.session.jobs_in_memory import JobColumns

#: When jobs of a group begin to wait, start and stop, in seconds since the run's start.
Moments: TypeAlias = "tuple[array[float], array[float], array[float]]"


def running_and_waiting(jobs: JobColumns, began: float, end: float, bins: int) -> dict[str, Any]:
    """Return the mean numbers of running and waiting jobs, for each group and time interval.

    The time from ``began`` to ``end`` is divided into ``bins`` equal intervals. The columns have
    only the last attempt of each job, and not when it was suspended or requeued.
    """
    found: dict[str, Moments] = {}
    for group in jobs.ranges:
        columns = ("submitted", "started", "finished", "outcome")
        values = zip(*(jobs.column(name, group) for name in columns), strict=True)
        begins, starts, stops = array("d"), array("d"), array("d")
        for submitted, start, stop, outcome in values:
            # For a job that was cancelled before its start, the waiting time is unknown.
            if start is not None or outcome == "active":
                first = end if start is None else start
                begins.append(min(submitted, first) - began)
                starts.append(first - began)
                last = end if stop is None or start is None else max(start, stop)
                stops.append(last - began)
        found[group] = begins, starts, stops
    return _mean_numbers(found, began, end, bins)


def running_and_waiting_by_events(
    events: Iterable[tuple[str, str, float]], began: float, end: float, bins: int
) -> dict[str, Any]:
    """Return the same as :func:`running_and_waiting`, for all attempts, from the events of jobs.

    An event is the attempt, the name and the time. A suspended job neither runs nor waits.
    """
    found: dict[str, Moments] = {}
    states: dict[str, str] = {}
    for attempt, name, time in events:
        before = states.get(attempt, "over")
        after = _AFTER.get((before, name), before)
        if after == before and name != "submit":
            continue
        group = attempt.rpartition(".")[0]
        states[attempt] = after
        _move(
            found.setdefault(group, (array("d"), array("d"), array("d"))),
            before,
            after,
            time - began,
        )
    for attempt, state in states.items():
        _move(found[attempt.rpartition(".")[0]], state, "over", end - began)
    return _mean_numbers(found, began, end, bins)


#: States of attempts after events. An attempt can be submitted again after a stop.
_AFTER = {
    ("over", "submit"): "waiting",
    ("waiting", "start"): "running",
    ("running", "suspend"): "suspended",
    ("suspended", "unsuspend"): "running",
    ("running", "requeue"): "waiting",
    ("suspended", "requeue"): "waiting",
    **{
        (state, name): "over"
        for state in ("waiting", "running", "suspended")
        for name in ("finish", "clean")
    },
}


def _move(moments: Moments, before: str, after: str, time: float) -> None:
    """Record that an attempt changes its state: when it begins to wait, starts and stops.

    A time without waiting is between a begin and a start at the same moment.
    """
    begins, starts, stops = moments
    if before == "running":
        stops.append(time)
    if after == "waiting" or (after == "running" and before != "waiting"):
        begins.append(time)
    if after == "running" or (before == "waiting" and after == "over"):
        starts.append(time)
    if before == "waiting" and after == "over":
        stops.append(time)


def _mean_numbers(
    found: Mapping[str, Moments], began: float, end: float, bins: int
) -> dict[str, Any]:
    end = max(end, began + 1e-6)
    width = (end - began) / bins
    groups: dict[str, dict[str, list[float]]] = {}
    for group, moments in found.items():
        sums = [_elapsed(each, width, bins) for each in moments]
        groups[group] = {
            "running": _means(sums[1], sums[2], width),
            "waiting": _means(sums[0], sums[1], width),
        }
    return {"began": began, "width": width, "groups": groups}


def _elapsed(moments: Iterable[float], width: float, bins: int) -> list[float]:
    """Return, for each edge of the bins, the sum of (edge - moment) over all earlier moments.

    A moment before the first edge counts as if it were at this edge.
    """
    counts, sums = [0] * (bins + 1), [0.0] * (bins + 1)
    for moment in moments:
        if moment < 0:
            moment = 0.0
        at = int(moment / width)
        if at > bins:
            at = bins
        counts[at] += 1
        sums[at] += moment
    before = zip(accumulate(counts), accumulate(sums), strict=True)
    later = enumerate(before, start=1)
    return [0.0, *(width * at * count - total for at, (count, total) in later)][: bins + 1]


def _means(starts: Sequence[float], stops: Sequence[float], width: float) -> list[float]:
    """Return the mean number of intervals in each part of the time.

    ``starts`` and ``stops`` are the results of :func:`_elapsed` for the starts and stops of the
    intervals.
    """
    covered = [start - stop for start, stop in zip(starts, stops, strict=True)]
    return [round((b - a) / width, 6) for a, b in pairwise(covered)]
