"""Generators: algorithms that choose the next points of a study.

A :class:`Vocs` is the problem (variables, objectives, constraints). A :class:`Point` is one
suggestion with its outcome. A :class:`Generator` is the interface that plugins implement, and a
:class:`GeneratorSpec` is a checked entry under ``generators:``. The engine decides when to call a
generator; the runtime makes the call, on a separate thread for each generator.
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
from ensemble_core.model.value import Value

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
#: Why a file is read. The purpose decides whether the file's code may run. ``check``: to validate,
#: render, show, replay or record it. ``look``: to show a kept run that only its user can have
#: written. ``rehearse``: to simulate or test the file's rules after the user has allowed its code
#: (``--run-code``, pytest). ``run``: to run or resume it.
Purpose = Literal["check", "look", "rehearse", "run"]
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
#: Tolerance for rounding: a number may lie outside its range by this share of the range.
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Variable(Value):
    """A variable of a study: one of ``values``, or a number from ``low`` to ``high`` inclusive.

    If ``log`` is true, the logarithm is sampled uniformly. With a ``step``, the values are ``low``,
    ``low + step`` … (integers if both are integers).
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    values: tuple[Any, ...] = ()

    @cached_property
    def steps(self) -> Sequence[Any]:
        """All possible values: a range if the variable has a step; empty if it is continuous."""
        if self.values or self.step is None:
            return self.values
        count = math.floor((self.high - self.low) / self.step + _SLACK) + 1
        if self.whole:
            return Range(self.low, self.step, count)
        return Range(float(self.low), float(self.step), count)

    @cached_property
    def whole(self) -> bool:
        """True if the values are integers with a ``step``."""
        return isinstance(self.low, int) and isinstance(self.step, int)

    def refused(self, value: object) -> str | None:
        """Return why a value is invalid for this variable; ``None`` if it is valid."""
        if self.values:
            # 1 equals 1.0, but never "1" or true.
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
        """Return the value, or the end of the range if rounding has put the value outside."""
        return value if self.values else min(max(value, self.low), self.high)

    def at(self, share: float) -> Any:
        """Return the value at this share of the range, 0 to 1."""
        steps = self.steps
        if steps:
            return steps[min(int(share * len(steps)), len(steps) - 1)]
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max(math.exp(low + share * (high - low)), self.low), self.high)
        return min(self.low + share * (self.high - self.low), self.high)

    def share(self, value: float) -> float:
        """Return the share of the range, 0 to 1, at which this value lies."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constraint(Value):
    """A constraint on a result: ``sign`` (``<``, ``<=``, ``>``, ``>=``) and a number."""

    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        """Return True if the value satisfies the constraint."""
        return _COMPARE[self.sign](value, self.bound)

    def violation(self, value: float) -> float:
        """Return by how much a value violates the constraint; 0 or less if it satisfies it."""
        return value - self.bound if self.sign.startswith("<") else self.bound - value


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Vocs(Value):
    """The problem of a generator: variables, objectives and constraints (VOCS, as in gest-api).

    Objectives and constraints are names under the group's ``result``. If ``prunes`` is true, the
    generator also receives rows of running jobs.
    """

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
        """Return why these parameters are not a valid point; ``None`` if they are."""
        names = self.names
        for name in parameters:
            if name not in names:
                return f"it suggested {name!r}, which is not a variable"
        for variable in self.variables:
            if variable.name not in parameters:
                return f"it suggested no value for {variable.name!r}"
            value = parameters[variable.name]
            why = variable.refused(value)
            if why is not None:
                return f"it suggested {variable.name} = {value!r}: {why}"
        return None

    def clipped(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return valid parameters, each clipped to the range of its variable."""
        return {each.name: each.clipped(parameters[each.name]) for each in self.variables}

    def feasible(self, values: Mapping[str, float]) -> bool:
        """Return True if these results satisfy all constraints."""
        return all(each.holds(values[name]) for name, each in self.constraints.items())

    def better(self, values: Mapping[str, float], others: Mapping[str, float], name: str) -> bool:
        """Return True if ``values`` has a better objective ``name`` than ``others``."""
        if self.objectives[name] == "minimize":
            return values[name] < others[name]
        return values[name] > others[name]


def dominates(vocs: Vocs, values: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Return True if ``values`` is better in at least one objective and worse in none (Pareto)."""
    return not any(vocs.better(others, values, name) for name in vocs.objectives) and any(
        vocs.better(values, others, name) for name in vocs.objectives
    )


@dataclass(slots=True, eq=False, kw_only=True)
class Point:
    """One suggestion and its outcome.

    ``number`` counts a generator's points from 0. ``tag`` is the ``_id`` that the generator gave
    the point, if any. ``state`` is one of

    - ``pending``: the point has open jobs;
    - ``done``: ``values`` has each objective and constraint, as the mean over the point's jobs, and
      ``errors`` has the standard errors if two or more jobs are done;
    - ``lost``: the point has no values;
    - ``pruned``: the point was cancelled because it was not promising.

    If a switch passes a point on to another generator, the copy there has the ``number`` -1, and
    its ``origin`` holds the name of the generator that suggested the point and the original number.
    """

    number: int
    parameters: Mapping[str, Any]
    tag: str | int | None = None
    state: Literal["pending", "done", "lost", "pruned"] = "pending"
    values: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    errors: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: ``jobs``: the indices of the point's jobs in their group. ``open``: how many of them are
    #: open.
    jobs: tuple[int, ...] = ()
    open: int = 0
    #: The results of the point's done jobs.
    results: tuple[Mapping[str, Any], ...] = ()
    origin: tuple[str, int] | None = None

    def handed_on(self, generator: str) -> Point:
        """Return a copy of this finished point of ``generator`` for another generator."""
        return Point(
            number=-1,
            parameters=self.parameters,
            state=self.state,
            values=self.values,
            errors=self.errors,
            origin=(generator, self.number),
        )


class Reading(NamedTuple):
    """An intermediate value of a point's running job, at a step."""

    point: int
    step: float
    value: float


class Exchange(NamedTuple):
    """One call of a generator: the points and readings that it received, and its suggestions."""

    told: tuple[Point, ...]
    readings: tuple[Reading, ...]
    suggested: tuple[Point, ...]


class Generator:
    """Interface of generators, which choose points.

    Each controller builds the generator, whose state is only in memory. All calls of a generator
    are made on one thread, one after another. A call may take long.
    """

    #: True if no call can hang or take long. The calls are then made without a thread or timeout.
    quick: ClassVar[bool] = False

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return the next points, at most ``count``: a value for each variable, optionally ``_id``.

        If fewer points are returned, this method is not called again until after the next
        ``ingest``. If no points are returned while no point is open, the generator is finished.
        """
        raise NotImplementedError

    def ingest(self, points: Sequence[Point]) -> None:
        """Receive finished points, in the order in which they finished, before the next
        ``suggest``.

        A point's ``number`` (the order of suggestion) and ``parameters`` identify it. A point with
        the number -1 comes from another generator, which this one replaces after a switch. Learn
        from such a point if possible.
        """

    def prune(self, readings: Sequence[Reading]) -> Collection[int]:
        """Receive intermediate values, and return the numbers of the points to cancel."""
        return ()

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Restore the state that an earlier generator, built in the same way, had after these
        calls.

        Suggested points without an outcome are still open. If the file has changed, some suggested
        points may no longer be valid; they keep their numbers and will have no outcome. The default
        implementation repeats every ``ingest``.
        """
        for exchange in exchanges:
            if exchange.told:
                self.ingest(exchange.told)


class Prune(NamedTuple):
    """Names of the two columns that a pruner reads, for the value and the step."""

    value: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GeneratorSpec(Value):
    """A checked entry under ``generators:``.

    ``build`` creates the generator. ``classes`` lists the import paths in its options, which are
    loaded only for some purposes. Each point has ``replicas`` jobs of ``group``; if ``replicas`` is
    ``None``, the number is that of the group. At most ``at_once`` points are open at a time. Once
    ``until`` holds, no more points are suggested. ``failed`` has the values that are reported for a
    lost point; if it is ``None``, a lost point is reported without values. A call times out after
    ``timeout`` seconds, and a resume that repeats N calls after N times ``timeout``.
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
    #: ``reads``: the ``STAT.NAME`` references and gauges in ``until``. ``metrics``: the paths of
    #: the metrics in it.
    reads: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
