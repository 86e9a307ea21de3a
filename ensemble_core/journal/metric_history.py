"""Computes metrics of a run from its journal, if the run itself did not compute them.

A run computes statistics of job output only if a rule or function uses them.
"""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.job_history import Jobs
from ensemble_core.journal.reader import Journal
from ensemble_core.metrics.series import UNREADABLE, Series
from ensemble_core.metrics.store import ROWS, VARIABLES, parse_path
from ensemble_core.model.ensemble import Ensemble


def metric_of_rows(
    journal: Journal, jobs: Callable[[], Jobs], ensemble: Ensemble, text: str
) -> float | None:
    """Return the value of a metric ``STAT.GROUP-NAME``, computed from rows or results of jobs.

    Return ``None`` if the metric ``text`` has another form.
    """
    path = parse_path(text, ensemble.groups, ensemble.statistics)
    if path.kind != "series" or not path.group or path.variable.partition(".")[0] in VARIABLES:
        return None
    series = Series([ensemble.statistics[path.statistic]])
    now = 0.0
    group = ensemble.groups[path.group]
    if any(path.variable in entry.result for entry in (group, *group.more)):
        history = jobs()
        try:
            name = history.shown[1].get(path.variable, path.variable)
            for job in history.rows():
                if job["group"] == path.group and name in job:
                    now = job.get("finished", now)
                    _record(series, job[name], now)
        finally:
            history.close()
        return series.get(path.statistic, now)
    for row in journal.rows():
        if row.type != "observed" or (row.job or "").rpartition(".")[0] != path.group:
            continue
        values = (row.data or {}).get("values", {})
        for name in (path.variable, path.variable.removeprefix(ROWS)):
            if name in values:
                now = row.time
                unread = name in (row.data or {}).get("unreadable", ())
                _record(series, UNREADABLE if unread else values[name], now)
                break
    return series.get(path.statistic, now)


def _record(series: Series, value: object, now: float) -> None:
    if isinstance(value, (int, float)):
        try:
            series.record(value if isinstance(value, float) else float(value), now)
        except OverflowError as error:
            raise EnsembleError(
                f"the observed value {value} is too large for a metric", code="out-of-range"
            ) from error
