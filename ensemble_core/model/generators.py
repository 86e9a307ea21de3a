"""Generators: they choose the next point of a study.

A :class:`Vocs` is the problem (variables, objectives, constraints), a :class:`Point` one suggestion
with its outcome, a :class:`Generator` the interface that a plugin's record builds.
``GeneratorSpec`` is a checked entry under ``generators:``. The engine decides when to ask; the
runtime calls the generator on its own thread.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.sweeps import Range

if TYPE_CHECKING:
    from ensemble_core.model.conditions import Condition

__all__ = [
    "Constraint",
    "Exchange",
    "Generator",
    "GeneratorSpec",
    "Goal",
    "Point",
    "Prune",
    "Purpose",
    "Reading",
    "Variable",
    "Vocs",
    "dominates",
]

Goal = Literal["minimize", "maximize"]
#: Why a file is read. ``check``: to validate, render, show, replay or record it. ``look``: to show
#: a kept run that only its user can have written. ``rehearse``: to play its rules, where the user
#: allowed its code (``--run-code``, pytest). ``run``: to run or resume it.
Purpose = Literal["check", "look", "rehearse", "run"]
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
#: By which share of its range a number may lie beyond an end: what rounding does.
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a study: one of ``values``, or a number from ``low`` to ``high``, both
    included; ``log``: drawn evenly by its logarithm; ``step``: only every so much from ``low``
    (whole numbers where both are)."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    values: tuple[Any, ...] = ()

    @cached_property
    def steps(self) -> Sequence[Any]:
        """All values that it can have, as a range where they have a step; empty where any number
        will do."""
        if self.values or self.step is None:
            return self.values
        count = math.floor((self.high - self.low) / self.step + _SLACK) + 1
        if self.whole:
            return Range(self.low, self.step, count)
        return Range(float(self.low), float(self.step), count)

    @cached_property
    def whole(self) -> bool:
        """True if its values are whole numbers from ``low`` on, ``step`` apart."""
        return isinstance(self.low, int) and isinstance(self.step, int)

    def refused(self, value: object) -> str | None:
        """Return why a value is invalid for this variable; ``None`` if it is valid."""
        if self.values:
            # 1 is 1.0 and never "1" or true.
            alike = [one for one in self.values if isinstance(one, str) == isinstance(value, str)]
            if value in alike and isinstance(value, bool) == any(
                isinstance(one, bool) for one in alike if one == value
            ):
                return None
            return f"it is one of {', '.join(map(repr, self.values))}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "it is a number"
        slack = _SLACK * (self.high - self.low)
        if not self.low - slack <= value <= self.high + slack:
            return f"it is from {self.low:g} to {self.high:g}"
        if self.step is not None:
            steps = (value - self.low) / self.step
            if not math.isclose(steps, round(steps), abs_tol=1e-6):
                return f"it goes in steps of {self.step:g} from {self.low:g}"
        return None

    def clipped(self, value: Any) -> Any:
        """A value that is not refused, moved to the end of the range that it lies beyond."""
        return value if self.values else min(max(value, self.low), self.high)

    def at(self, share: float) -> Any:
        """The value at this share of the variable, from 0 up to 1."""
        steps = self.steps
        if steps:
            return steps[min(int(share * len(steps)), len(steps) - 1)]
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max(math.exp(low + share * (high - low)), self.low), self.high)
        return min(self.low + share * (self.high - self.low), self.high)

    def share(self, value: float) -> float:
        """The share of the range, from 0 to 1, that a value of it lies at."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on a result: ``sign`` (``<``, ``<=``, ``>``, ``>=``) and a number."""

    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        """True if a value meets it."""
        return _COMPARE[self.sign](value, self.bound)

    def violation(self, value: float) -> float:
        """By how much a value misses it; 0 or less where it is met."""
        return value - self.bound if self.sign.startswith("<") else self.bound - value


@dataclass(frozen=True, kw_only=True)
class Vocs:
    """The problem that a generator is built for: its variables, objectives and constraints (VOCS,
    as the standard gest-api says it). Objectives and constraints are names of the group's
    ``result``. ``prunes``: rows of running jobs are told."""

    variables: tuple[Variable, ...]
    objectives: Mapping[str, Goal]
    constraints: Mapping[str, Constraint] = field(default_factory=lambda: NOTHING)
    prunes: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(each.name for each in self.variables)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of objectives and constraints."""
        return tuple(dict.fromkeys((*self.objectives, *self.constraints)))

    def refused(self, parameters: Mapping[str, Any]) -> str | None:
        """Why these parameters are no point of the problem; ``None`` if they are one."""
        names = self.names
        for name in parameters:
            if name not in names:
                return f"it suggested {name!r}, which is no variable"
        for variable in self.variables:
            if variable.name not in parameters:
                return f"it suggested no value for {variable.name!r}"
            value = parameters[variable.name]
            why = variable.refused(value)
            if why is not None:
                return f"it suggested {variable.name} = {value!r}: {why}"
        return None

    def clipped(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters that are not refused, each within its variable."""
        return {each.name: each.clipped(parameters[each.name]) for each in self.variables}

    def feasible(self, values: Mapping[str, float]) -> bool:
        """True if these results meet every constraint."""
        return all(each.holds(values[name]) for name, each in self.constraints.items())

    def better(self, values: Mapping[str, float], others: Mapping[str, float], name: str) -> bool:
        """True if the objective ``name`` is better in ``values`` than in ``others``."""
        if self.objectives[name] == "minimize":
            return values[name] < others[name]
        return values[name] > others[name]


def dominates(vocs: Vocs, values: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """True if ``values`` are worse in no objective and better in one."""
    return not any(vocs.better(others, values, name) for name in vocs.objectives) and any(
        vocs.better(values, others, name) for name in vocs.objectives
    )


@dataclass(slots=True, eq=False, kw_only=True)
class Point:
    """One suggestion, and what became of it.

    ``number`` counts a generator's points from 0; ``tag`` is the ``_id`` that it gave the point, if
    it did. ``state`` is ``pending`` while its jobs are open, ``done`` with ``values`` of every
    objective and constraint (means over its jobs; ``errors``: their standard errors, where two or
    more are done), ``lost`` without, or ``pruned``: cancelled because it would not be good.
    ``origin`` is the name of the generator that suggested it and its number there, where a switch
    handed it on to another: there its ``number`` is -1.
    """

    number: int
    parameters: Mapping[str, Any]
    tag: str | int | None = None
    state: Literal["pending", "done", "lost", "pruned"] = "pending"
    values: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    errors: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: The indices of its jobs in their group, and how many of them are open.
    jobs: tuple[int, ...] = ()
    open: int = 0
    #: What the jobs that are done left.
    results: tuple[Mapping[str, Any], ...] = ()
    origin: tuple[str, int] | None = None

    def handed_on(self, generator: str) -> Point:
        """Return the finished point of ``generator`` as another generator receives it."""
        return Point(
            number=-1,
            parameters=self.parameters,
            state=self.state,
            values=self.values,
            errors=self.errors,
            origin=(generator, self.number),
        )


class Reading(NamedTuple):
    """A value that a running job of a point has come to at a step."""

    point: int
    step: float
    value: float


class Exchange(NamedTuple):
    """One call of a generator with its answer: the points and readings that it was told, and the
    points that it suggested then."""

    told: tuple[Point, ...]
    readings: tuple[Reading, ...]
    suggested: tuple[Point, ...]


class Generator:
    """Chooses points. Built by each controller; called on its own thread, one call at a time.

    Calls may take long; its state is in memory.
    """

    #: Whether no call can hang or take long: then who waits for the answer makes the call itself,
    #: and no timeout ends it.
    quick: ClassVar[bool] = False

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return the next points, at most ``count``: a value for each variable, optionally ``_id``.

        Fewer: no more until something is ingested. None while no point is open: it has no more.
        """
        raise NotImplementedError

    def ingest(self, points: Sequence[Point]) -> None:
        """Take the points that are over, in the order of their ends; before the next ``suggest``.
        Their ``parameters`` and ``number`` (the order of suggestion) say which they are; a number
        of -1 is a point of another generator, from which the run was switched to this one: to learn
        from, where it can."""

    def prune(self, readings: Sequence[Reading]) -> Collection[int]:
        """Take what jobs have come to; the numbers of points that are to be cancelled."""
        return ()

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Go on after all these calls, made to an earlier one built the same way. Points that were
        suggested and not told since are under way. Where the file was changed, some of those
        suggested may be no points of the problem: they count, and are never told. Here: every
        ``ingest`` again."""
        for exchange in exchanges:
            if exchange.told:
                self.ingest(exchange.told)


class Prune(NamedTuple):
    """Columns of rows for a pruner: the value and the step."""

    value: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpec:
    """An entry under ``generators:``, checked.

    ``build`` makes the generator; ``classes`` are the import paths in its options, which are loaded
    only for some purposes. Each point is ``replicas`` jobs of ``group`` (``None``: as many
    as the group says), ``at_once`` points are under way, until ``until`` holds. ``failed`` are the
    values that a lost point is told with; ``None``: it is told without. A call that takes more than
    ``timeout`` seconds is given up (one that makes those on record again: so many times as long).
    """

    name: str
    use: str
    group: str
    vocs: Vocs
    build: Callable[[Purpose], Generator]
    classes: tuple[str, ...] = ()
    replicas: int | None = None
    at_once: int = 1
    until: Condition | None = None
    failed: Mapping[str, float] | None = None
    prune: Prune | None = None
    timeout: float = 600.0
    enabled: bool = True
    #: The ``STAT.NAME`` and the gauges that ``until`` speaks of, and the metrics behind them.
    reads: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
