"""Models of simulated jobs and calls: how long they take, how they fail and what they return.

What a simulated job does depends only on the model, the seed and the job's id.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from ensemble_core import EnsembleError, Expression, Job, Location, UsageError
from ensemble_core.cli.toolkit import Call, Ensemble
from ensemble_simulate.distributions import Draw, Randomness, Stream

#: Result of a call, as plain specifications, or its error.
Result: TypeAlias = Sequence[Mapping[str, Any]] | EnsembleError
#: Maximum number of rows of one job.
_MOST_ROWS = 10_000_000


class Number(Protocol):
    """Interface of a number in a model: written in a file, or learned from an earlier run."""

    @property
    def text(self) -> str: ...

    @property
    def uses_names(self) -> bool:
        """True if the number uses the job's names."""
        ...

    def number(self, names: Mapping[str, Any], random: Randomness) -> float: ...


_NO_NAMES: Mapping[str, Any] = {}


class Delays(NamedTuple):
    """Delays of one attempt in seconds."""

    arrival: float = 0.0  # from the submission to the arrival in the queue
    launch: float = 0.0  # from the allocation of nodes to the start
    dying: float = 0.0  # from a cancellation to the job's end
    hearing: float = 0.0  # from the job's end until the controller learns of it


#: Delays of a queue that does everything immediately.
NONE = Delays()


class Life(NamedTuple):
    """Simulated behaviour of one attempt: duration, result and output."""

    seconds: float
    cause: str | None = None  # of the failure; ``None`` for success
    status: int = 0  # wait status
    rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
    observer: str = ""
    delays: Delays = NONE


@dataclass(frozen=True, slots=True)
class Recorded:
    """Behaviour of a job in an earlier run. Times of ``rows`` are seconds since the job's start."""

    seconds: float
    cause: str | None
    status: int
    rows: Sequence[tuple[float, Mapping[str, float]]] = ()
    delays: Delays = NONE


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that a job prints at a fixed interval."""

    every: Draw
    #: Expressions over the job's parameters, ``t`` (seconds since its start) and ``row`` (from 0).
    columns: Mapping[str, Expression]
    #: The calls of ``noise(…)`` in the expressions, by internal names.
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
    """Rows of a file, which every job prints. Their times are seconds since the job's start."""

    rows: Sequence[tuple[float, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """Rows of an earlier run, for jobs that the earlier run did not have.

    A job gets the rows of the recorded job with the nearest parameters, stretched to its duration.
    """

    #: Numeric parameters, seconds and rows of each recorded job.
    lives: Sequence[tuple[Mapping[str, float], float, Sequence[tuple[float, Mapping[str, float]]]]]
    #: Range of each parameter.
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
    """Model of the jobs of one group."""

    duration: Number | None = None
    #: Probability of each cause of failure.
    fails: Mapping[str, Number] = field(default_factory=dict)
    #: Wait status of a failed job, by cause.
    statuses: Mapping[str, int] = field(default_factory=dict)
    rows: Rows | RecordedRows | ReplayedRows | None = None
    #: Jobs of an earlier run, by the keys of :func:`keys_of`. All other fields are for other jobs.
    recorded: Mapping[tuple[str, str], Recorded] = field(default_factory=dict)
    #: Origin of the model, in words.
    source: str = "the file"
    delays: Delays = NONE
    #: Place of the model in the file.
    where: Location | None = None
    #: Whether any part depends on the job.
    uses_names: bool = field(init=False)

    def __post_init__(self) -> None:
        numbers = [*self.fails.values(), *([self.duration] if self.duration else [])]
        uses_names = self.rows is not None or any(each.uses_names for each in numbers)
        object.__setattr__(self, "uses_names", uses_names)


@dataclass(frozen=True, slots=True)
class Model:
    """Model of an ensemble's jobs."""

    groups: Mapping[str, GroupModel]
    #: Seconds that calls take, by the function's name.
    functions: Mapping[str, Draw] = field(default_factory=dict)
    #: Calls of an earlier run, by name and job, in order.
    called: Mapping[tuple[str, str], Sequence[RecordedCall]] = field(default_factory=dict)
    #: Whether functions of the file return recorded results, as plugins' actions always do.
    functions_recorded: bool = False
    seed: int = 0
    #: Maximum length of a run in seconds.
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
        """Return the behaviour of this job. Raises :class:`UsageError` for an invalid model."""
        model = self.groups[job.group]
        observer = next(iter(job.observe), "model") if job.observe else "model"
        rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
        known = _recorded_job(model.recorded, job) if model.recorded else None
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
        cause = _draw_cause(model.fails, names, random)
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
                    hint="use lognormal(…), which is always more than 0, or write max(…, 1) around "
                    "the arithmetic",
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
    """Return an error text if a job would print too many rows, otherwise ``None``."""
    rows = seconds / period
    if rows <= _MOST_ROWS:
        return None
    return f"{rows:.3g} rows, one every {period:g} s for {seconds:g} s; at most {_MOST_ROWS}"


def keys_of(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the keys to look for a job in an earlier run, the most exact key first."""
    # An id alone is not enough: in the earlier run, it may mean a job with other parameters.
    parameters = repr(sorted(job.parameters.items()))
    yield job.id, parameters
    if job.parameters:
        yield "", f"{parameters} {job.replica} {job.attempt}"


def _recorded_job(kept: Mapping[tuple[str, str], Recorded], job: Job) -> Recorded | None:
    return next((kept[key] for key in keys_of(job) if key in kept), None)


def _draw_cause(
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
    """Return the values of a job that a model can use, by name."""
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


class RecordedCall(NamedTuple):
    """A call of a function or of a plugin's action in an earlier run."""

    seconds: float  # its duration
    result: Result


def key_of_call(name: str, job: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the key of a call in an earlier run: the function's name, and the job's id."""
    return name, str((job or {}).get("job", ""))


class Calls:
    """The calls of one simulated run, with the durations and results of an earlier run.

    For each call, call :meth:`takes` once, then :meth:`answer`.

    The first call of a function for a job is answered by the first recorded one, and so on. After
    the last recorded one, an action returns its last successful result.

    - ``kept``: recorded calls by :func:`key_of_call`
    - ``drawn``: returns the duration in seconds of a call that was not recorded
    - ``functions``: whether functions of the file return recorded results instead of being called
    """

    def __init__(
        self,
        kept: Mapping[tuple[str, str], Sequence[RecordedCall]],
        drawn: Callable[[Call], float],
        *,
        functions: bool,
    ) -> None:
        self._kept = kept
        self._drawn = drawn
        self._functions = functions
        self._made: Counter[tuple[str, str]] = Counter()
        self._known: dict[str, RecordedCall] = {}

    def takes(self, call: Call) -> float:
        """Return the duration of a call in seconds: recorded or drawn."""
        key = key_of_call(call.name, call.job)
        found, place = self._kept.get(key, ()), self._made[key]
        self._made[key] += 1
        if place < len(found):
            known = self._known[call.call] = found[place]
            return known.seconds
        if found and call.kind == "action":  # actions are not carried out
            good = [each for each in found if not isinstance(each.result, EnsembleError)]
            if good:
                self._known[call.call] = good[-1]
        return self._drawn(call)

    def answer(self, call: Call) -> Result | None:
        """Return the recorded result of a call.

        Returns ``None`` if no result was recorded, or if the function must be called.
        """
        known = self._known.pop(call.call, None)
        returns = call.kind == "action" or (self._functions and call.kind != "generator")
        return known.result if known is not None and returns else None
