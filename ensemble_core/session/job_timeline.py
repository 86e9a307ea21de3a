"""Timeline of a run: the numbers of running and waiting jobs over time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ensemble_core.session.job_columns import JobColumns

__all__ = ["running_and_waiting"]


def running_and_waiting(jobs: JobColumns, began: float, end: float, bins: int) -> dict[str, Any]:
    """Return the mean numbers of running and waiting jobs, for each group and time interval.

    The time from ``began`` to ``end`` is divided into ``bins`` equal intervals.
    """
    end = max(end, began + 1e-6)
    width = (end - began) / bins
    groups: dict[str, dict[str, list[float]]] = {}
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
        sums = [_elapsed(moments, width, bins) for moments in (begins, starts, stops)]
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
