"""Values that jobs reported while they ran, as curves for charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ensemble_core.journal.event_encoding import JournalRow

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
