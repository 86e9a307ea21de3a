"""Data of a run's charts and timelines, for reports and the dashboard.

- :func:`running_and_waiting`: the numbers of running and waiting jobs over time.
- :class:`Capacity`: core-hours, node-hours and GPU-hours that a queue offered and that were idle.
- :class:`Curves`: values that jobs reported while they ran.
- :class:`Firings`: when rules fired; if often, firings of frequent rules are thinned out.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ensemble_core.journal.event_encoding import JournalRow
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


_KINDS = ("cores", "nodes", "gpus")


class Capacity:
    """Sums of the queue's gauges over time: offered (``up``) and idle (``free``).

    A value counts until the next report of the same gauge. Only time in which the run had a
    controller counts.
    """

    def __init__(self) -> None:
        self._hours: dict[str, dict[str, float]] = {}
        self._values: dict[str, float] = {}
        self._at = 0.0

    def report(self, now: float, values: Mapping[str, float]) -> None:
        """Add the gauges (``cores.up``, ``cores.free`` …) that changed at the time ``now``."""
        self._hours = self.until(now)
        self._values.update(values)
        self._at = now

    def pause(self, now: float | None) -> None:
        """Stop counting until the next report, because the controller exited at the time ``now``.

        If ``now`` is ``None``, the controller was killed, so count only until its last report.
        """
        if now is not None:
            self._hours = self.until(now)
        self._values.clear()

    def until(self, now: float) -> dict[str, dict[str, float]]:
        """Return the sums up to the time ``now``, by resource.

        For example, ``up`` of ``cores`` is in core hours. A resource is included if the queue has
        reported it.
        """
        hours = max(0.0, now - self._at) / 3600
        found = {kind: dict(sums) for kind, sums in self._hours.items()}
        for kind in _KINDS:
            up, free = (self._values.get(f"{kind}.{name}") for name in ("up", "free"))
            if up is not None and free is not None:
                sums = found.setdefault(kind, {"up": 0.0, "free": 0.0})
                sums["up"] += up * hours
                sums["free"] += min(free, up) * hours
        return found


#: Maximum number of points in a curve, and of curves of a variable.
_POINTS, _CURVES = 400, 60


class Curves:
    """The numbers that jobs reported, over time, for a limited number of jobs."""

    def __init__(self) -> None:
        #: By group and variable, then by job.
        self._points: dict[tuple[str, str], dict[str, list[list[float]]]] = {}

    def add(self, row: JournalRow) -> None:
        """Add the values of an event ``observed``; ignore other events."""
        if row.type != "observed" or row.job is None:
            return
        group = row.job.rpartition(".")[0]
        for name, value in ((row.data or {}).get("values") or {}).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                jobs = self._points.setdefault((group, name), {})
                if row.job in jobs or len(jobs) < _CURVES:
                    jobs.setdefault(row.job, []).append([row.time, value])

    def shown(self) -> list[dict[str, Any]]:
        """Return the curves by group and variable. Long ones are thinned out."""
        return [
            {
                "group": group,
                "variable": name,
                "jobs": [
                    {
                        "id": job,
                        "points": [[t - own[0][0], v] for t, v in thinned(own)],
                    }
                    for job, own in jobs.items()
                ],
            }
            for (group, name), jobs in self._points.items()
        ]


def thinned(values: list[Any]) -> list[Any]:
    """Return evenly spaced values, if there are more than a chart shows."""
    if len(values) <= _POINTS:
        return values
    step = (len(values) - 1) / (_POINTS - 1)
    return [values[round(at * step)] for at in range(_POINTS)]


#: Maximum number of firings. If there are more, only every second, fourth … firing of frequent
#: rules is kept.
_FIRINGS = 10_000


class Firings:
    """The firings of the events that it was given."""

    def __init__(self) -> None:
        self._firings: list[dict[str, Any]] = []
        #: For each rule of which only every Nth firing is kept: N.
        self._every: dict[str, int] = {}

    def add(self, row: JournalRow) -> None:
        """Add the firings of an event. Its decisions are a list."""
        from ensemble_core.engine.rule_trace import event_words

        decisions: Any = row.decisions or ()
        own: dict[tuple[Any, Any], list[str]] = {
            (decision.get("rule"), decision.get("firing")): [] for decision in decisions
        }
        for decision in decisions:
            if decision["type"] != "fired":
                own[decision.get("rule"), decision.get("firing")].append(_decision_text(decision))
        for decision in decisions:
            if decision["type"] == "fired" and self._survives_thinning(decision):
                self._firings.append(
                    {
                        "rule": decision.get("rule"),
                        "firing": decision.get("firing"),
                        "seq": row.seq,
                        "time": row.time,
                        "event": event_words(row.event()),
                        "job": decision.get("job"),
                        "count": decision.get("count", 1),
                        "value": decision.get("value"),
                        "each": dict(decision.get("each") or {}),
                        "decisions": own[decision.get("rule"), decision.get("firing")],
                    }
                )
        while len(self._firings) > _FIRINGS:
            often = Counter(each["rule"] for each in self._firings).most_common(1)[0][0]
            self._every[often] = 2 * self._every.get(often, 1)
            kept = [each for each in self._firings if self._survives_thinning(each)]
            fewer = len(kept) < len(self._firings)
            # If all rules fired once, keep the latest firings.
            self._firings = kept if fewer else kept[-_FIRINGS:]

    def _survives_thinning(self, firing: Mapping[str, Any]) -> bool:
        return bool((firing.get("count", 1) - 1) % self._every.get(firing["rule"], 1) == 0)

    def after(self, seq: int) -> list[dict[str, Any]]:
        """Return the firings after the event ``seq``."""
        return [each for each in self._firings if each["seq"] > seq]


def _decision_text(decision: Mapping[str, Any]) -> str:
    kind = decision["type"]
    if kind == "submit":
        count = len(decision["jobs"])
        return f"submit {count} job{'' if count == 1 else 's'} of {decision['group']}"
    if kind in ("cancel", "signal"):
        count = len(decision["jobs"])
        what = f"SIG{decision['signal']} to" if kind == "signal" else kind
        return f"{what} {count} job{'' if count == 1 else 's'}"
    if kind == "avoid":
        return f"avoid {', '.join(decision['nodes'])}"
    if kind == "log":
        return f"log {decision.get('message', '')}"
    if kind == "terminate":
        return f"terminate with exit code {decision.get('exit_code', 0)}"
    for name in ("call", "rules", "group", "job", "delta", "generator"):
        if name in decision:
            return f"{kind} {decision[name]}"
    return str(kind)
