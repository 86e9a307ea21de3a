"""Model of jobs learned from an earlier run: how long they take, how they fail and what they
print.

A job that was in the earlier run behaves the same way in the simulation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ensemble_core import EnsembleError, Job
from ensemble_core.cli.toolkit import Call, Cancel, Ensemble, KeptRun, RunningTime, Submit
from ensemble_simulate.distributions import Randomness, parse
from ensemble_simulate.models import (
    Delays,
    GroupModel,
    Model,
    Recorded,
    RecordedCall,
    ReplayedRows,
    Result,
    key_of_call,
    keys_of,
)

#: Number of jobs that a regression needs for each parameter.
_JOBS_PER_PARAMETER = 5
#: Maximum number of rows to keep of a job.
_MOST_ROWS = 100_000
#: Seconds between the last row and the job's end.
_BEFORE_THE_END = 1e-5


@dataclass(slots=True)
class _RecordedAttempt:
    """One attempt in the journal."""

    job: Job
    #: Times of the decision to submit the attempt, of its arrival in the queue, and of the
    #: allocation of nodes.
    decided: float = 0.0
    came: float | None = None
    placed: float | None = None
    began: float | None = None
    cancelled: float | None = None
    ended: float | None = None
    #: How long the attempt ran: not while it was suspended.
    ran: RunningTime = field(default_factory=RunningTime)
    #: When the attempt's end was reported.
    heard: float = 0.0
    cause: str | None = None
    status: int = 0
    wished: bool = False  # the run had asked for a cancel when the attempt was cancelled
    rows: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The run time of the attempt in seconds."""
        return max(0.0, self.ran.seconds)

    @property
    def printed(self) -> list[tuple[float, Mapping[str, float]]]:
        """The rows with times before the attempt's end.

        A busy machine may have read the last rows later.
        """
        latest = max(0.0, self.seconds - _BEFORE_THE_END)
        return [(min(time, latest), values) for time, values in self.rows]

    @property
    def arrival(self) -> float:
        """The seconds from the decision to submit the attempt to its arrival in the queue."""
        return 0.0 if self.came is None else max(0.0, self.came - self.decided)

    @property
    def dying(self) -> float | None:
        """The seconds from the attempt's cancellation to its end, if it was running."""
        if self.began is None or self.cancelled is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.cancelled) if self.wished else None

    @property
    def launch(self) -> float:
        """The seconds from the allocation of nodes to the attempt's start."""
        if self.began is None or self.placed is None:
            return 0.0
        return max(0.0, self.began - self.placed)

    def delays(self, dying: float) -> Delays:
        """Return the delays of the attempt. If it was not cancelled, its delay ``dying`` is the
        argument.
        """
        own, late = self.dying, 0.0 if self.ended is None else self.heard - self.ended
        return Delays(self.arrival, self.launch, dying if own is None else own, max(0.0, late))


@dataclass(frozen=True, slots=True)
class DurationModel:
    """Durations learned from jobs of the same group, for jobs that the earlier run did not have.

    The logarithm of a duration in seconds is ``weights[0]``, plus each parameter in ``names`` times
    its weight, plus one of the ``residuals`` at random.
    """

    text: str
    names: tuple[str, ...]
    weights: tuple[float, ...]
    residuals: tuple[float, ...]
    constant: float | None = None

    @property
    def uses_names(self) -> bool:
        """True if the durations come from a regression on parameters."""
        return bool(self.names)

    def number(self, names: Mapping[str, Any], random: Randomness) -> float:
        """Return the duration in seconds of a job with these names."""
        found = self.weights[0] + random.choice(self.residuals)
        for name, weight in zip(self.names, self.weights[1:], strict=True):
            value = names.get(name)
            found += weight * float(value) if isinstance(value, (int, float)) else math.nan
        return math.exp(min(found, 50.0))


@dataclass(frozen=True, slots=True)
class _Share:
    """The share of jobs that fail with one cause."""

    text: str
    share: float
    constant: float | None = None
    uses_names: bool = False

    def number(self, names: Mapping[str, Any], random: Randomness) -> float:
        return self.share


def learn(kept: KeptRun, ensemble: Ensemble) -> Model:
    """Return the model of this run's jobs, for groups that the ensemble also has."""
    seen: dict[str, _RecordedAttempt] = {}
    #: The latest time of an event so far. A report is not earlier than this time.
    now = 0.0
    calls: dict[str, tuple[tuple[str, str], float]] = {}
    made: dict[tuple[str, str], list[RecordedCall]] = {}
    took: dict[str, list[float]] = {}
    for row in kept.journal.rows(0):
        now = max(now, row.time)
        if row.type == "job" and row.job in seen:
            _apply_event(seen[row.job], row.time, row.name or "", row.data or {}, now)
        elif row.type == "observed" and row.job in seen:
            one = seen[row.job]
            if one.began is not None and len(one.rows) < _MOST_ROWS:
                values = (row.data or {}).get("values") or {}
                one.rows.append((max(0.0, one.ran.until(row.time)), values))
        elif row.type in ("call-returned", "call-failed"):
            data = row.data or {}
            key, since = calls.pop(str(data.get("call")), (("", ""), 0.0))
            result: Result = data.get("result", ())
            if row.type == "call-failed":
                result = EnsembleError(str(data.get("error", "")))
            seconds = max(0.0, row.time - since)
            made.setdefault(key, []).append(RecordedCall(seconds, result))
            took.setdefault(key[0], []).append(seconds)
        for decision in json.loads(row.decisions) if row.decisions else ():
            if decision["type"] == Submit.type:
                for each in map(Job.from_dict, decision["jobs"]):
                    seen[each.id] = _RecordedAttempt(each, now)
            elif decision["type"] == Call.type:
                key = key_of_call(decision["name"], decision.get("job"))
                calls[decision["call"]] = key, now
            for name in _cancelled_jobs(decision):
                if name in seen and seen[name].cancelled is None:
                    seen[name].cancelled = now
    groups: dict[str, GroupModel] = {}
    for name in ensemble.groups:
        own = [each for each in seen.values() if each.job.group == name]
        if any(each.began is not None and each.ended is not None for each in own):
            groups[name] = _model(own, kept.tag)
    functions = {name: parse(times, ()) for name, times in took.items() if name}
    return Model(groups, functions, made)


def _cancelled_jobs(decision: Mapping[str, Any]) -> Sequence[str]:
    """Return the jobs that a decision cancels. The decision is a cancel, or the end of the run."""
    jobs: Sequence[str] = decision.get("jobs" if decision["type"] == Cancel.type else "cancel", ())
    return jobs


def _apply_event(
    each: _RecordedAttempt, time: float, name: str, data: Mapping[str, Any], now: float
) -> None:
    each.ran.take(name, time)
    if name == "submit":
        each.came = time
    elif name == "alloc":
        each.placed = time
    elif name == "start":
        each.began = time
    elif name == "finish":
        each.ended, each.heard, each.status = time, now, int(data.get("status", 0))
        if each.status and each.cause is None:
            each.cause = "signal" if each.status & 0x7F else "exit"
    elif name == "exception" and data.get("severity", 0) == 0 and each.cause is None:
        each.wished = data.get("type") == "cancel" and each.cancelled is not None
        each.cause = str(data.get("cause") or _CAUSES.get(str(data.get("type")), "unknown"))


_CAUSES = {
    "submit": "submit",
    "exec": "submit",
    "timeout": "timeout",
    "out-of-memory": "memory",
    "node-failure": "node-failure",
    "preempted": "preempted",
    "cancel": "cancelled",
    "output-missing": "output",
}


def _model(own: Sequence[_RecordedAttempt], tag: str) -> GroupModel:
    ran = [each for each in own if each.began is not None and each.ended is not None]
    whole = [each for each in ran if each.cause is None] or ran
    usual = _usual([each.seconds for each in whole])
    recorded: dict[tuple[str, str], Recorded] = {}
    dying = _usual([each.dying for each in own if each.dying is not None])
    for each in own:
        if each.wished and each.began is not None:
            # A rule may cancel the job again because of its rows. If not, the job runs as long as
            # other jobs.
            longer = max(usual, each.seconds + 1.0)
            life = Recorded(longer, None, 0, each.printed, each.delays(dying))
        elif not each.wished and (each in ran or each.cause == "submit"):
            failed = each.cause, each.status
            life = Recorded(each.seconds, *failed, each.printed, each.delays(dying))
        else:
            continue
        for key in keys_of(each.job):
            recorded.setdefault(key, life)
    fails: dict[str, Any] = {}
    statuses: dict[str, int] = {}
    left = len(own)
    for each in own:
        cause = each.cause
        if cause not in (None, "unknown") and not each.wished:
            fails[cause] = fails.get(cause, 0) + 1
            statuses[cause] = each.status
    for cause, count in fails.items():
        fails[cause] = _Share(f"{count} of {len(own)}", count / left)
        left -= count
    duration: Any = _durations(whole)
    delays = Delays(*map(_usual, zip(*(each.delays(dying) for each in ran), strict=True)))
    source = f"run {tag}, {len(ran)} jobs"
    if cut := sum(each.wished for each in ran):
        # The others are rather the short ones.
        source += f", {cut} of them cancelled before their end, so durations may be too short"
    rows = _replay_rows(whole)
    return GroupModel(duration, fails, statuses, rows, recorded, source, delays)


def _usual(seconds: Sequence[float]) -> float:
    """Return the median; 0 for no values."""
    return sorted(seconds)[len(seconds) // 2] if seconds else 0.0


def _replay_rows(ran: Sequence[_RecordedAttempt]) -> ReplayedRows | None:
    """Return the rows for jobs that the run did not have; ``None`` if no job printed rows."""
    printed = [each for each in ran if each.rows]
    if not printed:
        return None
    names = _varying_parameters(printed)
    values = {name: [_number(each.job.parameters[name]) for each in printed] for name in names}
    lives = [
        ({name: values[name][place] for name in names}, each.seconds, each.printed)
        for place, each in enumerate(printed)
    ]
    return ReplayedRows(lives, {name: max(found) - min(found) for name, found in values.items()})


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def _durations(ran: Sequence[_RecordedAttempt]) -> DurationModel:
    """Learn durations by regression or, from too few jobs, draw from the recorded ones."""
    logs = [math.log(max(each.seconds, 1e-3)) for each in ran]
    names = _varying_parameters(ran)
    while names and len(ran) < _JOBS_PER_PARAMETER * (len(names) + 1):
        names = names[:-1]
    rows = [[1.0, *(_number(each.job.parameters[name]) for name in names)] for each in ran]
    weights = _least_squares(rows, logs) if names else None
    if weights is None:
        mean = math.fsum(logs) / len(logs)
        return DurationModel(
            f"drawn from {len(ran)} jobs", (), (mean,), tuple(log - mean for log in logs)
        )
    residuals = tuple(
        log - math.fsum(w * x for w, x in zip(weights, row, strict=True))
        for row, log in zip(rows, logs, strict=True)
    )
    told = f"regression on {', '.join(names)} over {len(ran)} jobs"
    return DurationModel(told, names, tuple(weights), residuals)


def _varying_parameters(ran: Sequence[_RecordedAttempt]) -> tuple[str, ...]:
    """Return the numeric parameters with more than one value."""
    values: dict[str, set[float]] = {}
    for each in ran:
        for name, value in each.job.parameters.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values.setdefault(name, set()).add(float(value))
    everywhere = [
        name
        for name in values
        if all(isinstance(each.job.parameters.get(name), (int, float)) for each in ran)
    ]
    return tuple(name for name in everywhere if len(values[name]) > 1)


def _least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Return the weights of the linear least-squares fit by the normal equations.

    Returns ``None`` if the fit is not unique.
    """
    size = len(rows[0])
    matrix = [
        [math.fsum(row[i] * row[j] for row in rows) for j in range(size)]
        + [math.fsum(row[i] * value for row, value in zip(rows, values, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        best = max(range(i, size), key=lambda at: abs(matrix[at][i]))
        matrix[i], matrix[best] = matrix[best], matrix[i]
        if abs(matrix[i][i]) < 1e-12 * max(1.0, abs(matrix[0][0])):
            return None
        for j in range(size):
            if j != i:
                factor = matrix[j][i] / matrix[i][i]
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
