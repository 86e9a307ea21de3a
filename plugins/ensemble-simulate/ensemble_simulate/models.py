"""Models of job groups: how long their jobs take, how they fail, and what they print.

A model comes from the section ``simulate:`` of an ensemble file, from a separate file (both read by
``model_file``), or from a kept run (``recorded_model``). :meth:`Model.life` returns the *life* of a
job: its duration, result and output. The life depends only on the seed and the job's id, so two
simulations with the same seed give the same job the same life, whatever else differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ensemble_core import Expression, Job, Location, UsageError
from ensemble_core.cli.toolkit import Call, Ensemble
from ensemble_simulate.distributions import Draw
from ensemble_simulate.random_streams import Randomness, Stream
from ensemble_simulate.recorded_calls import Called, Calls

__all__ = [
    "NONE",
    "Delays",
    "GroupModel",
    "Life",
    "Model",
    "Recorded",
    "RecordedRows",
    "ReplayedRows",
    "Rows",
    "keys_of",
    "names_of",
    "too_many_rows",
    "without_model",
]

#: Maximum number of rows of one job.
_MOST_ROWS = 10_000_000


class Number(Protocol):
    """A number that depends on the job, such as its duration; ``text`` describes it."""

    @property
    def text(self) -> str: ...

    @property
    def uses_names(self) -> bool:
        """True if the number depends on the job's names."""
        ...

    def number(self, names: Mapping[str, Any], random: Randomness) -> float: ...


_NO_NAMES: Mapping[str, Any] = {}


class Delays(NamedTuple):
    """Delays of one attempt in seconds.

    - ``arrival``: from the attempt's submission to its arrival in the queue
    - ``launch``: from the allocation of nodes to the start
    - ``dying``: from the cancellation of a job to its end
    - ``hearing``: from the job's end until the controller learns of it
    """

    arrival: float = 0.0
    launch: float = 0.0
    dying: float = 0.0
    hearing: float = 0.0


#: Delays of a queue that does everything immediately.
NONE = Delays()


class Life(NamedTuple):
    """The life of one attempt after its start: its length in seconds, its result and its output.

    The result consists of the cause of failure (``None`` for success) and the wait status.
    """

    seconds: float
    cause: str | None = None
    status: int = 0
    rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
    observer: str = ""
    delays: Delays = NONE


@dataclass(frozen=True, slots=True)
class Recorded:
    """The life of a job in a kept run. The times of ``rows`` are seconds since the job's start."""

    seconds: float
    cause: str | None
    status: int
    rows: Sequence[tuple[float, Mapping[str, float]]] = ()
    delays: Delays = NONE


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that a job prints at a fixed interval.

    The expressions in ``columns`` can use the job's names, ``t`` (seconds since the job's start)
    and ``row`` (the row's number, from 0). The mapping ``noises`` has the calls of ``noise(…)`` in
    them, by internal names.
    """

    every: Draw
    columns: Mapping[str, Expression]
    noises: Mapping[str, Draw]

    def printed(
        self, names: Mapping[str, Any], random: Randomness, period: float, seconds: float
    ) -> Iterator[tuple[float, Mapping[str, float]]]:
        """Return the rows of one job, each with its time since the job's start."""
        known = dict(names)
        for row in range(1, int(seconds / period + 1e-9) + 1):
            t = row * period
            known["t"], known["row"] = t, row - 1
            for name, deviation in self.noises.items():
                known[name] = random.gauss(0.0, deviation.number(known, random))
            values = {}
            for name, column in self.columns.items():
                found = column.evaluate(None, known, lambda path: None)
                values[name] = found if isinstance(found, (int, float)) else math.nan
            yield t, values


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """Rows of a file, with their times in seconds since the job's start.

    Every job prints these rows until it ends.
    """

    rows: Sequence[tuple[float, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """Rows for jobs that a kept run did not have.

    A job gets the rows of the recorded job with the nearest parameters, or of a random one among
    equally near jobs. The times are stretched to the job's duration.

    The field ``lives`` has the numeric parameters, the seconds and the rows of each recorded job.
    The field ``spans`` has the range of each parameter.
    """

    lives: Sequence[tuple[Mapping[str, float], float, Sequence[tuple[float, Mapping[str, float]]]]]
    spans: Mapping[str, float]

    def printed(
        self, names: Mapping[str, Any], random: Randomness, seconds: float
    ) -> Iterator[tuple[float, Mapping[str, float]]]:
        """Return the rows of one job with this duration."""
        here: dict[str, float] = {
            name: names[name] for name in self.spans if isinstance(names.get(name), (int, float))
        }

        def far(life: tuple[Mapping[str, float], float, Any]) -> float:
            apart = [abs(life[0][name] - value) / self.spans[name] for name, value in here.items()]
            return math.fsum(apart)

        least = min(map(far, self.lives))
        _, took, rows = random.choice([life for life in self.lives if far(life) <= least + 1e-9])
        by = seconds / took if took > 0 else 1.0
        return ((t * by, values) for t, values in rows)


@dataclass(frozen=True, slots=True)
class GroupModel:
    """The model of the jobs of one group.

    - ``fails``: probability of each cause of failure
    - ``statuses``: wait status of a failed job, by cause
    - ``recorded``: lives of jobs in a kept run, by the keys of :func:`keys_of`. A job with an entry
      has this life. The other fields apply to all other jobs.
    - ``source``: where the model comes from, in words
    - ``where``: place of the model in the file
    """

    duration: Number | None = None
    fails: Mapping[str, Number] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    rows: Rows | RecordedRows | ReplayedRows | None = None
    recorded: Mapping[tuple[str, str], Recorded] = field(default_factory=dict)
    source: str = "the file"
    delays: Delays = NONE
    where: Location | None = None
    #: Whether any part depends on the job's names.
    uses_names: bool = field(init=False)

    def __post_init__(self) -> None:
        numbers = [*self.fails.values(), *([self.duration] if self.duration else [])]
        uses_names = self.rows is not None or any(each.uses_names for each in numbers)
        object.__setattr__(self, "uses_names", uses_names)


@dataclass(frozen=True, slots=True)
class Model:
    """The model of an ensemble's jobs.

    - ``functions``: seconds that calls take, by the function's name
    - ``called``: durations and results of calls in a kept run, by name and job, in order
    - ``functions_recorded``: whether recorded results are also returned for functions of the file,
      instead of only for plugins' actions
    - ``until``: largest relevant time in seconds after the start
    """

    groups: Mapping[str, GroupModel]
    functions: Mapping[str, Draw] = field(default_factory=dict)
    called: Mapping[tuple[str, str], Sequence[Called]] = field(default_factory=dict)
    functions_recorded: bool = False
    seed: int = 0
    until: float = math.inf

    def chance(self, *about: object) -> Stream:
        """Return the random stream with this name. It depends only on the name and the seed."""
        return Stream("\0".join(map(str, (self.seed, *about))))

    def calls(self) -> Calls:
        """Return the calls of one run."""

        def drawn(call: Call) -> float:
            draw = self.functions.get(call.name)
            taken = 0.0 if draw is None else draw.number({}, self.chance(call.call))
            if not 0 <= taken < math.inf:
                raise UsageError(
                    f"invalid duration of a call of {call.name!r} in the model: {taken:g} s",
                    cause=f"the model's duration is {'' if draw is None else draw.text}",
                    hint="use a distribution without negative values, such as lognormal(…)",
                    code="bad-draw",
                )
            return taken

        return Calls(self.called, drawn, functions=self.functions_recorded)

    def life(self, job: Job) -> Life:
        """Return the life of this job. Raises :class:`UsageError` for an invalid model."""
        model = self.groups[job.group]
        observer = next(iter(job.observe), "model") if job.observe else "model"
        rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
        known = _recorded(model.recorded, job) if model.recorded else None
        if known is not None:
            rows = iter(known.rows) if known.rows else None
            failed = known.cause, known.status
            return Life(known.seconds, *failed, rows, observer, known.delays)
        names = names_of(job) if model.uses_names else _NO_NAMES
        random = self.chance(job.id)
        assert model.duration is not None
        seconds = model.duration.number(names, random)
        if not (0 <= seconds < math.inf):
            raise UsageError(
                f"invalid duration of {job.id} in the model of {job.group!r}: {seconds:g} s",
                cause=f"the model's duration is {model.duration.text}",
                hint="use lognormal(…), which is never negative, or write max(…, 1) around the "
                "arithmetic",
                where=model.where,
                code="bad-draw",
            )
        if not model.fails and model.rows is None:
            return Life(seconds, None, 0, None, observer, model.delays)
        cause = _failing(model.fails, names, random)
        if cause == "timeout":
            seconds = job.duration or seconds
        elif cause is not None:
            seconds *= random.random()
        if isinstance(model.rows, RecordedRows):
            rows = iter(model.rows.rows)
        elif isinstance(model.rows, ReplayedRows):
            rows = model.rows.printed(names, self.chance(job.id, "rows"), seconds)
        elif model.rows is not None:
            period = model.rows.every.number(names, random)
            if not 0 < period < math.inf:
                raise UsageError(
                    f"invalid 'every' of {job.id} in the model of {job.group!r}: {period:g} s",
                    hint="the time between two rows must be more than 0",
                    where=model.where,
                    code="bad-draw",
                )
            many = too_many_rows(period, min(seconds, job.duration or seconds, self.until))
            if many is not None:
                hint = "increase 'every'"
                what = f"{job.id} would print {many}"
                raise UsageError(what, hint=hint, where=model.where, code="bad-draw")
            rows = model.rows.printed(names, self.chance(job.id, "rows"), period, seconds)
        status = model.statuses.get(cause or "", 0)
        return Life(seconds, cause, status, rows, observer, model.delays)


def too_many_rows(period: float, seconds: float) -> str | None:
    """Return a message if a job that prints a row every ``period`` seconds has too many rows.

    Otherwise return ``None``.
    """
    rows = seconds / period
    if rows <= _MOST_ROWS:
        return None
    return f"{rows:.3g} rows, one every {period:g} s for {seconds:g} s; at most {_MOST_ROWS}"


def keys_of(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the keys by which to look for a job's life in a kept run, most exact key first.

    The first key consists of the id and the parameters: if rules decided differently in the kept
    run, the same id may mean a job with other parameters. The second key consists of the
    parameters, the replica and the attempt.
    """
    parameters = repr(sorted(job.parameters.items()))
    yield job.id, parameters
    if job.parameters:
        yield "", f"{parameters} {job.replica} {job.attempt}"


def _recorded(kept: Mapping[tuple[str, str], Recorded], job: Job) -> Recorded | None:
    return next((kept[key] for key in keys_of(job) if key in kept), None)


def _failing(
    fails: Mapping[str, Number], names: Mapping[str, Any], random: Randomness
) -> str | None:
    """Return the cause by which a job fails, ``None`` if it succeeds. The first drawn cause
    counts.
    """
    for cause, probability in fails.items():
        p = probability.number(names, random)
        if p >= 1 or (p > 0 and random.random() < p):
            return cause
    return None


def names_of(job: Job) -> dict[str, Any]:
    """Return the names of one job that a model can use."""
    return {
        "index": job.index,
        "replica": job.replica,
        "attempt": job.attempt,
        "nodes": job.nodes,
        "tasks": job.tasks,
        "cores": job.cores,
        "gpus": job.gpus,
        "limit": job.duration,
        **job.parameters,
    }


def without_model(ensemble: Ensemble, model: Model) -> list[str]:
    """Return the job groups for which the model has no duration.

    Groups with urgency 0 are omitted: the queue holds their jobs, so they need no duration.
    """
    known = {
        name for name, each in model.groups.items() if each.duration is not None or each.recorded
    }
    return [name for name, group in ensemble.groups.items() if group.urgency and name not in known]
