"""Models of job groups: how long their jobs take, how they fail, and what they print.

A model is the section ``simulate:`` of an ensemble file or a file of its own (read by
``model_file``), or learnt from a kept run (``recorded_model``). :meth:`Model.life` is what one job
will do. It depends on the seed and the job's id alone: two simulations with one seed give the same
job the same life, whatever else is different between them.
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

#: Rows that one job may print.
_MOST_ROWS = 10_000_000


class Number(Protocol):
    """A number for each job; ``text`` says for people what it is."""

    @property
    def text(self) -> str: ...

    @property
    def speaks(self) -> bool:
        """True if it speaks of the job's names."""
        ...

    def number(self, names: Mapping[str, Any], random: Randomness) -> float: ...


_NO_NAMES: Mapping[str, Any] = {}


class Delays(NamedTuple):
    """The delays of one attempt, in seconds: until the queue has it (``arrival``), from the time
    that it has its nodes to its start (``launch``), from its cancelling to its end (``dying``), and
    from its end to the controller's hearing of it (``hearing``)."""

    arrival: float = 0.0
    launch: float = 0.0
    dying: float = 0.0
    hearing: float = 0.0


#: Those of a queue that does everything at once.
NONE = Delays()


class Life(NamedTuple):
    """The course of one attempt once it runs: how long it takes in seconds, why it fails (``None``:
    it does not) with which wait status, and what it prints."""

    seconds: float
    cause: str | None = None
    status: int = 0
    rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
    observer: str = ""
    delays: Delays = NONE


@dataclass(frozen=True, slots=True)
class Recorded:
    """The life of a job as a kept run has it; ``rows`` with seconds since it began."""

    seconds: float
    cause: str | None
    status: int
    rows: Sequence[tuple[float, Mapping[str, float]]] = ()
    delays: Delays = NONE


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that a job prints every so many seconds while it runs.

    ``columns`` are arithmetic over the job's names, ``t`` (seconds since it began) and ``row`` (its
    number, from 0); ``noises`` what ``noise(…)`` in it stands for, by the name that it has there.
    """

    every: Draw
    columns: Mapping[str, Expression]
    noises: Mapping[str, Draw]

    def printed(
        self, names: Mapping[str, Any], random: Randomness, period: float, seconds: float
    ) -> Iterator[tuple[float, Mapping[str, float]]]:
        """The rows of one job, with their times since its begin."""
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
    """Rows of a file, each with its seconds since the job began: every job prints these, for as
    long as it runs."""

    rows: Sequence[tuple[float, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """Rows of jobs of a kept run, for jobs that it had not: those of the one with the nearest
    parameters, one of them by chance where several are as near, spread over the job's own duration.

    ``lives`` has of each job its numeric parameters, its seconds and its rows; ``spans`` by how
    much each parameter differed among them.
    """

    lives: Sequence[tuple[Mapping[str, float], float, Sequence[tuple[float, Mapping[str, float]]]]]
    spans: Mapping[str, float]

    def printed(
        self, names: Mapping[str, Any], random: Randomness, seconds: float
    ) -> Iterator[tuple[float, Mapping[str, float]]]:
        """The rows of one job that takes so long."""
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
    """One group's jobs. ``fails`` are probabilities by cause, ``statuses`` their wait statuses;
    ``recorded`` lives of jobs by their keys (:func:`keys_of`), which come before all else;
    ``source`` says for people where it is from, ``where`` its place in the file; ``delays`` are
    those of each life.
    """

    duration: Number | None = None
    fails: Mapping[str, Number] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    rows: Rows | RecordedRows | ReplayedRows | None = None
    recorded: Mapping[tuple[str, str], Recorded] = field(default_factory=dict)
    source: str = "the file"
    delays: Delays = NONE
    where: Location | None = None
    #: Whether any of it speaks of the job's names.
    speaks: bool = field(init=False)

    def __post_init__(self) -> None:
        numbers = [*self.fails.values(), *([self.duration] if self.duration else [])]
        speaks = self.rows is not None or any(each.speaks for each in numbers)
        object.__setattr__(self, "speaks", speaks)


@dataclass(frozen=True, slots=True)
class Model:
    """The model of an ensemble's jobs. ``functions`` are the seconds that calls take, by name, and
    ``called`` what calls took and returned in a kept run, by name and job, in order. With
    ``functions_recorded`` functions of the file return that too, and not only plugins' actions.
    Nobody asks what is more than ``until`` seconds after the begin.
    """

    groups: Mapping[str, GroupModel]
    functions: Mapping[str, Draw] = field(default_factory=dict)
    called: Mapping[tuple[str, str], Sequence[Called]] = field(default_factory=dict)
    functions_recorded: bool = False
    seed: int = 0
    until: float = math.inf

    def chance(self, *about: object) -> Stream:
        """The source of chance of one thing: the same for the same seed, whatever else happens."""
        return Stream("\0".join(map(str, (self.seed, *about))))

    def calls(self) -> Calls:
        """The calls of one run."""

        def drawn(call: Call) -> float:
            draw = self.functions.get(call.name)
            taken = 0.0 if draw is None else draw.number({}, self.chance(call.call))
            if not 0 <= taken < math.inf:
                raise UsageError(
                    f"the model has a call of {call.name!r} take {taken:g} s",
                    cause=f"it takes {'' if draw is None else draw.text}",
                    hint="lognormal(…) is never negative",
                    code="bad-draw",
                )
            return taken

        return Calls(self.called, drawn, functions=self.functions_recorded)

    def life(self, job: Job) -> Life:
        """The course of this job. Raises :class:`UsageError` where the model makes no sense."""
        model = self.groups[job.group]
        observer = next(iter(job.observe), "model") if job.observe else "model"
        rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
        known = _recorded(model.recorded, job) if model.recorded else None
        if known is not None:
            rows = iter(known.rows) if known.rows else None
            failed = known.cause, known.status
            return Life(known.seconds, *failed, rows, observer, known.delays)
        names = names_of(job) if model.speaks else _NO_NAMES
        random = self.chance(job.id)
        assert model.duration is not None
        seconds = model.duration.number(names, random)
        if not (0 <= seconds < math.inf):
            raise UsageError(
                f"the model of {job.group!r} gives {job.id} a duration of {seconds:g} s",
                cause=f"its duration is {model.duration.text}",
                hint="lognormal(…) is never negative; max(…, 1) keeps arithmetic above something",
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
                    f"the model of {job.group!r} has {job.id} print a row every {period:g} s",
                    hint="'every' must be more than 0",
                    where=model.where,
                    code="bad-draw",
                )
            many = too_many_rows(period, min(seconds, job.duration or seconds, self.until))
            if many is not None:
                hint = "have its jobs print less often"
                what = f"{job.id} would print {many}"
                raise UsageError(what, hint=hint, where=model.where, code="bad-draw")
            rows = model.rows.printed(names, self.chance(job.id, "rows"), period, seconds)
        status = model.statuses.get(cause or "", 0)
        return Life(seconds, cause, status, rows, observer, model.delays)


def too_many_rows(period: float, seconds: float) -> str | None:
    """Return how many rows a job would print that prints one every ``period`` seconds; ``None`` if
    it may."""
    rows = seconds / period
    if rows <= _MOST_ROWS:
        return None
    return f"{rows:.3g} rows, one every {period:g} s for {seconds:g} s; at most {_MOST_ROWS}"


def keys_of(job: Job) -> Iterator[tuple[str, str]]:
    """Keys of a job's life in a kept run: its id with its parameters, for ids mean other jobs where
    rules decide otherwise; then its parameters, replica and attempt."""
    parameters = repr(sorted(job.parameters.items()))
    yield job.id, parameters
    if job.parameters:
        yield "", f"{parameters} {job.replica} {job.attempt}"


def _recorded(kept: Mapping[tuple[str, str], Recorded], job: Job) -> Recorded | None:
    return next((kept[key] for key in keys_of(job) if key in kept), None)


def _failing(
    fails: Mapping[str, Number], names: Mapping[str, Any], random: Randomness
) -> str | None:
    """The cause by which a job fails; each is drawn for, the first that comes is it."""
    for cause, probability in fails.items():
        p = probability.number(names, random)
        if p >= 1 or (p > 0 and random.random() < p):
            return cause
    return None


def names_of(job: Job) -> dict[str, Any]:
    """The names of one job that a model may use."""
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
    """Job groups of which nothing says how long their jobs take; of those that the queue holds
    nothing need be known."""
    known = {
        name for name, each in model.groups.items() if each.duration is not None or each.recorded
    }
    return [name for name, group in ensemble.groups.items() if group.urgency and name not in known]
