"""Models of job groups: how long their jobs take, how they fail, and what they print.

A model is the section ``simulate:`` of an ensemble file, or a file of its own; ``read`` checks it
with places, as everything in the ensemble file is checked. :meth:`Model.life` is what one job will
do. It depends on the seed and the job's id alone: two simulations with one seed give the same job
the same life, whatever else is different between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ensemble_core import CAUSES, EnsembleError, Expression, FileErrors, Job, JobGroup, UsageError
from ensemble_core.cli.toolkit import Call, Document, Ensemble, Registry
from ensemble_simulate.chance import Randomness, Stream
from ensemble_simulate.draws import Chance, Draw, formula, parse

__all__ = ["GroupModel", "Life", "Model", "Recorded", "names_of", "read", "without_model"]

#: What arithmetic of a model may speak of, beside the job's parameters.
_JOB_NAMES = (
    "index", "replica", "attempt", "nodes", "tasks", "cores", "gpus", "limit",
)  # fmt: skip
#: Causes that a model may give; the others are the queue's or the run's own.
_CAUSES = tuple(cause for cause in CAUSES if cause not in ("cancelled", "unknown"))
_NOISE = re.compile(r"\bnoise\(\s*([^()]*)\s*\)")
#: Rows that one job may print.
_MOST_ROWS = 1_000_000


class Number(Protocol):
    """A number for each job; ``text`` says for people what it is."""

    @property
    def text(self) -> str: ...

    @property
    def speaks(self) -> bool:
        """True if it speaks of the job's names."""
        ...

    def number(self, names: Mapping[str, Any], chance: Chance) -> float: ...


_NO_NAMES: Mapping[str, Any] = {}


class Life(NamedTuple):
    """What one attempt does once it runs: how long it takes in seconds, why it fails (``None``: it
    does not) with which wait status, and what it prints."""

    seconds: float
    cause: str | None = None
    status: int = 0
    rows: Iterator[tuple[float, Mapping[str, float]]] | None = None
    observer: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The life of a job as a kept run has it; ``rows`` with seconds since it began."""

    seconds: float
    cause: str | None
    status: int
    rows: Sequence[tuple[float, Mapping[str, float]]] = ()


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
        count = min(int(seconds / period + 1e-9), _MOST_ROWS)
        for row in range(1, count + 1):
            t = row * period
            known["t"], known["row"] = t, row - 1
            for name, deviation in self.noises.items():
                known[name] = random.gauss(0.0, deviation.number(known, lambda: random))
            values = {}
            for name, column in self.columns.items():
                found = column.evaluate(None, known, lambda path: None)
                values[name] = found if isinstance(found, (int, float)) else math.nan
            yield t, values


@dataclass(frozen=True, slots=True)
class GroupModel:
    """One group's jobs. ``fails`` are probabilities by cause, ``statuses`` their wait statuses;
    ``recorded`` lives of jobs by their ids, which come before all else; ``source`` says for people
    where it is from."""

    duration: Number | None = None
    fails: Mapping[str, Number] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    rows: Rows | None = None
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    source: str = "the file"
    #: Whether any of it speaks of the job's names.
    speaks: bool = field(init=False)

    def __post_init__(self) -> None:
        numbers = [*self.fails.values(), *([self.duration] if self.duration else [])]
        speaks = self.rows is not None or any(each.speaks for each in numbers)
        object.__setattr__(self, "speaks", speaks)


@dataclass(frozen=True, slots=True)
class Model:
    """What an ensemble's jobs do. ``functions`` are the seconds that calls take, by name."""

    groups: Mapping[str, GroupModel]
    functions: Mapping[str, Draw] = field(default_factory=dict)
    seed: int = 0

    def chance(self, *about: object) -> Stream:
        """The source of chance of one thing: the same for the same seed, whatever else happens."""
        return Stream("\0".join(map(str, (self.seed, *about))))

    def takes(self, call: Call) -> float:
        """Seconds that a call of a function takes."""
        draw = self.functions.get(call.name)
        return 0.0 if draw is None else draw.number({}, lambda: self.chance(call.call))

    def life(self, job: Job) -> Life:
        """What this job will do. Raises :class:`UsageError` where the model makes no sense."""
        model = self.groups[job.group]
        observer = next(iter(job.observe), "model") if job.observe else "model"
        known = model.recorded.get(job.id)
        if known is not None:
            rows = iter(known.rows) if known.rows else None
            return Life(known.seconds, known.cause, known.status, rows, observer)
        names = names_of(job) if model.speaks else _NO_NAMES
        made: list[Stream] = []

        def chance() -> Stream:
            if not made:
                made.append(Stream(f"{self.seed}\0{job.id}"))
            return made[0]

        assert model.duration is not None
        seconds = model.duration.number(names, chance)
        if not (0 <= seconds < math.inf):
            raise UsageError(
                f"the model of {job.group!r} gives {job.id} a duration of {seconds:g} s",
                cause=f"its duration is {model.duration.text}",
                hint="lognormal(…) is never negative; max(…, 1) keeps arithmetic above something",
                code="bad-draw",
            )
        if not model.fails and model.rows is None:
            return Life(seconds, None, 0, None, observer)
        cause = _failing(model.fails, names, chance)
        if cause == "timeout":
            seconds = job.duration or seconds
        elif cause is not None:
            seconds *= chance().random()
        rows = None
        if model.rows is not None:
            period = model.rows.every.number(names, chance)
            if not 0 < period < math.inf:
                raise UsageError(
                    f"the model of {job.group!r} has {job.id} print a row every {period:g} s",
                    hint="'every' must be more than 0",
                    code="bad-draw",
                )
            rows = model.rows.printed(names, self.chance(job.id, "rows"), period, seconds)
        status = model.statuses.get(cause or "", 0)
        return Life(seconds, cause, status, rows, observer)


def _failing(fails: Mapping[str, Number], names: Mapping[str, Any], chance: Chance) -> str | None:
    """The cause by which a job fails; each is drawn for, the first that comes is it."""
    for cause, probability in fails.items():
        p = probability.number(names, chance)
        if p >= 1 or (p > 0 and chance().random() < p):
            return cause
    return None


def names_of(job: Job) -> dict[str, Any]:
    """What a model may speak of, of one job."""
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
    """Job groups of which nothing says how long their jobs take."""
    return [
        name
        for name in ensemble.groups
        if name not in model.groups
        or (model.groups[name].duration is None and not model.groups[name].recorded)
    ]


# -- reading -----------------------------------------------------------------------------------

#: Wait statuses by cause, where the model says none.
_STATUSES = {"exit": 1 << 8, "signal": 9, "timeout": 15, "memory": 9, "preempted": 15}
_Path = tuple[str | int, ...]


def read(document: Document, ensemble: Ensemble, registry: Registry, path: _Path) -> Model:
    """The model at this path of a file. Raises :class:`FileErrors` with all that is wrong."""
    return _Reader(document, ensemble, registry).model(document.get(path), path)


class _Reader:
    def __init__(self, document: Document, ensemble: Ensemble, registry: Registry) -> None:
        self._document = document
        self._ensemble = ensemble
        self._registry = registry
        self._errors: list[EnsembleError] = []

    def model(self, data: Any, path: _Path) -> Model:
        keys = ("jobs", "functions")
        data = self._mapping(data, path, keys)
        groups: dict[str, GroupModel] = {}
        for name, spec in self._entries(data.get("jobs"), (*path, "jobs")):
            group = self._ensemble.groups.get(name)
            if group is None:
                self._unknown((*path, "jobs", name), "job group", name, self._ensemble.groups)
                continue
            groups[name] = self._group(group, spec, (*path, "jobs", name))
        functions = {}
        for name, value in self._entries(data.get("functions"), (*path, "functions")):
            known = {*self._ensemble.functions, *self._actions()}
            if name not in known:
                self._unknown((*path, "functions", name), "function", name, known)
            draw = self._draw(value, (), (*path, "functions", name))
            if draw is not None:
                functions[name] = draw
        if self._errors:
            raise FileErrors(self._errors)
        return Model(groups, functions)

    def _actions(self) -> set[str]:
        return {
            each.name
            for rule in self._ensemble.rules
            for action in rule.actions
            for each in action.flat()
        }

    def _group(self, group: JobGroup, spec: Any, path: _Path) -> GroupModel:
        if not isinstance(spec, Mapping):  # nothing but how long they take
            draw = self._draw(spec, self._names(group), path)
            return GroupModel(draw)
        spec = self._mapping(spec, path, ("duration", "fail", "rows"))
        names = self._names(group)
        duration = None
        if spec.get("duration") is not None:
            duration = self._draw(spec["duration"], names, (*path, "duration"))
        fails, statuses = self._fails(spec.get("fail"), names, (*path, "fail"))
        rows = self._rows(group, spec.get("rows"), names, (*path, "rows"))
        return GroupModel(duration, fails, statuses, rows)

    @staticmethod
    def _names(group: JobGroup) -> tuple[str, ...]:
        return (*_JOB_NAMES, *group.names)

    def _fails(
        self, spec: Any, names: Sequence[str], path: _Path
    ) -> tuple[dict[str, Draw], dict[str, int]]:
        fails: dict[str, Draw] = {}
        statuses: dict[str, int] = {}
        if spec is None:
            return fails, statuses
        if not isinstance(spec, Mapping):
            spec, path = {"exit": spec}, path[:-1]
            path = (*path, "fail")
        for cause, value in spec.items():
            place = (*path, cause) if self._document.get((*path, cause)) is not None else path
            if cause not in _CAUSES:
                self._unknown(place, "cause", str(cause), _CAUSES)
                continue
            statuses[cause] = _STATUSES.get(cause, 0)
            if isinstance(value, Mapping):
                value = self._mapping(value, place, ("probability", "exit_code"))
                code = value.get("exit_code", 1)
                if not isinstance(code, int) or not 1 <= code <= 255:
                    self._report((*place, "exit_code"), f"the exit code {code!r} is none", "1–255")
                    continue
                statuses[cause] = code << 8
                value = value.get("probability", 1)
            draw = self._draw(value, names, place)
            if draw is None:
                continue
            if draw.constant is not None and not 0 <= draw.constant <= 1:
                self._report(
                    place,
                    f"the probability of {cause!r} is {draw.constant:g}",
                    "it is between 0 and 1",
                )
            fails[cause] = draw
        return fails, statuses

    def _rows(self, group: JobGroup, spec: Any, names: Sequence[str], path: _Path) -> Rows | None:
        observed = self._observed(group)
        if spec is None:
            self._silent(group, observed or frozenset(), frozenset(), path[:-1])
            return None
        spec = self._mapping(spec, path, ("every", "columns"))
        every = self._draw(spec.get("every", 1), names, (*path, "every"))
        columns: dict[str, Expression] = {}
        noises: dict[str, Draw] = {}
        if not group.observe:
            self._report(
                path,
                f"jobs of {group.name!r} are not observed, so no rule gets their rows",
                "give the group an 'observe', or leave 'rows' out",
            )
        for name, text in self._entries(spec.get("columns"), (*path, "columns")):
            place = (*path, "columns", name)
            if observed is not None and name not in observed:
                self._unknown(place, "column", name, observed)
            found = self._column(str(text), names, place, noises)
            if found is not None:
                columns[name] = found
        if every is not None and every.constant is not None and every.constant <= 0:
            self._report((*path, "every"), f"a row every {every.text} is none", "more than 0")
        self._silent(group, observed or frozenset(), frozenset(columns), path)
        return None if every is None else Rows(every, columns, noises)

    def _observed(self, group: JobGroup) -> frozenset[str] | None:
        """The columns that the group's observers yield; ``None`` if that cannot be known."""
        found: set[str] = set()
        for name, options in group.observe.items():
            variables = self._registry.observers[name].variables
            names = None if variables is None else variables(options)
            if names is None:
                return None
            found.update(names)
        return frozenset(found)

    def _silent(
        self, group: JobGroup, observed: frozenset[str], given: frozenset[str], path: _Path
    ) -> None:
        """Report columns of which rules speak and that no job would ever print."""
        lacking = sorted((observed - given) & self._spoken)
        if lacking:
            self._report(
                path,
                f"the model of {group.name!r} gives no {lacking[0]!r}, of which rules speak",
                f"write 'rows: {{every: 10s, columns: {{{lacking[0]}: …}}}}'",
            )

    @cached_property
    def _spoken(self) -> frozenset[str]:
        """Words of the rules and of what jobs leave."""
        texts = [str(rule.spec) for rule in self._ensemble.rules]
        for group in self._ensemble.groups.values():
            texts += [each.text for each in group.result.values()]
        return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text))

    def _column(
        self, text: str, names: Sequence[str], path: _Path, noises: dict[str, Draw]
    ) -> Expression | None:
        known = (*names, "t", "row")

        def named(match: re.Match[str]) -> str:
            name = f"noise_{len(noises)}"
            draw = self._draw(match[1], known, path)
            if draw is not None:
                noises[name] = draw
            return name

        replaced = _NOISE.sub(named, text)
        try:
            return formula(replaced, (*known, *noises))
        except EnsembleError as error:
            self._attach(error, path)
            return None

    # -- checks --------------------------------------------------------------------------------

    def _draw(self, value: Any, names: Sequence[str], path: _Path) -> Draw | None:
        try:
            draw = parse(value, names)
        except EnsembleError as error:
            self._attach(error, path)
            return None
        if draw.constant is not None and not draw.constant < math.inf:
            self._report(path, f"{draw.text} is no finite number", "write a number")
        if isinstance(value, (int, float)) and value < 0:
            self._report(path, f"{value!r} is below 0", "write a duration or a probability")
        return draw

    def _mapping(self, data: Any, path: _Path, keys: Sequence[str]) -> Mapping[str, Any]:
        if data is None:
            return {}
        if not isinstance(data, Mapping):
            self._report(path, f"{data!r:.60} is no mapping", f"its keys are {', '.join(keys)}")
            return {}
        for key in data:
            if key not in keys:
                self._unknown((*path, key), "key", str(key), keys)
        return data

    def _entries(self, data: Any, path: _Path) -> list[tuple[str, Any]]:
        if data is None:
            return []
        if not isinstance(data, Mapping):
            self._report(path, f"{data!r:.60} is no mapping", "write NAME: …")
            return []
        return [(str(name), value) for name, value in data.items()]

    def _unknown(self, path: _Path, noun: str, name: str, known: Any) -> None:
        near = get_close_matches(name, list(known), 1, 0.5)
        listed = ", ".join(sorted(known)) or f"there is no {noun}"
        hint = f"did you mean {near[0]!r}?" if near else f"known are {listed}"
        self._errors.append(
            UsageError(
                f"there is no {noun} {name!r}",
                where=self._document.at_key(path),
                hint=hint,
                code=f"no-such-{noun.split()[-1]}",
            )
        )

    def _report(self, path: _Path, what: str, hint: str) -> None:
        self._errors.append(
            UsageError(what, where=self._document.at(path), hint=hint, code="bad-model")
        )

    def _attach(self, error: EnsembleError, path: _Path) -> None:
        told = UsageError(error.what, cause=error.cause, hint=error.hint, code=error.code)
        told.where = error.where or self._document.at(path)
        self._errors.append(told)
