"""Plugin interface of generators: algorithms that choose which parameters to try next.

Each generator runs in its own thread, unless it is :attr:`~Generator.quick`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.filters import filter_of
from ensemble_core.model.sweep_values import Range
from ensemble_core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ensemble_core.model.conditions import Condition

Goal = Literal["minimize", "maximize"]
#: Why a file is read, which decides whether its code may run. ``check``: to validate, render, show,
#: replay or record the file. ``look``: to show a stored run that only its user can have written.
#: ``rehearse``: to simulate or test the file's rules after the user has allowed its code
#: (``--run-code``, pytest). ``run``: to run or resume it.
Purpose = Literal["check", "look", "rehearse", "run"]
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
#: Rounding tolerance, as a fraction of the range: a number may be outside the range by this much.
_SLACK = 1e-9
#: The different points of a space with conditional variables are counted up to this size.
_MOST_COMBINATIONS = 100_000


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a study: one of ``values``, or a number from ``low`` to ``high`` inclusive.

    If ``log`` is true, samples are uniform on a logarithmic scale. With a ``step``, the possible
    values are ``low``, ``low + step`` … (integers if ``low`` and ``step`` are integers).
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    values: tuple[Any, ...] = ()
    #: The condition, over variables above this one, under which this one has a value. Where it is
    #: not true, the value is ``""``. Empty: always.
    when: str = ""

    def applies(self, parameters: Mapping[str, Any]) -> bool:
        """Return True if the variable has a value in a point with these parameters."""
        return not self.when or filter_of(self.when, "when").passes(parameters)

    @cached_property
    def steps(self) -> Sequence[Any]:
        """All possible values: ``values``, or a range if the variable has a step, or empty if it is
        continuous.
        """
        if self.values or self.step is None:
            return self.values
        count = math.floor((self.high - self.low) / self.step + _SLACK) + 1
        if self.whole:
            return Range(self.low, self.step, count)
        return Range(float(self.low), float(self.step), count)

    @cached_property
    def whole(self) -> bool:
        """True if the variable has a ``step`` and its values are integers."""
        return isinstance(self.low, int) and isinstance(self.step, int)

    def refused(self, value: object) -> str | None:
        """Return why a value is invalid for this variable, or ``None`` if it is valid."""
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
        """Return the value, moved to the end of the range if rounding has put it outside."""
        return value if self.values else min(max(value, self.low), self.high)

    def at(self, share: float) -> Any:
        """Return the value at a fraction of the range (0 to 1)."""
        steps = self.steps
        if steps:
            return steps[min(int(share * len(steps)), len(steps) - 1)]
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max(math.exp(low + share * (high - low)), self.low), self.high)
        return min(self.low + share * (self.high - self.low), self.high)

    def share(self, value: float) -> float:
        """Return the position of a value within the range, as a fraction from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on a result: a comparison operator ``sign`` (``<``, ``<=``, ``>``, ``>=``) and a
    bound.
    """

    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        """Return True if the value satisfies the constraint."""
        return _COMPARE[self.sign](value, self.bound)

    def violation(self, value: float) -> float:
        """Return by how much a value violates the constraint. The result is 0 or negative if it
        does not.
        """
        return value - self.bound if self.sign.startswith("<") else self.bound - value


@dataclass(frozen=True, kw_only=True)
class Vocs:
    """The problem that a generator solves: variables, objectives and constraints (as in gest-api).

    The names of objectives and constraints refer to the group's ``result``.
    """

    variables: tuple[Variable, ...]
    objectives: Mapping[str, Goal]
    constraints: Mapping[str, Constraint] = field(default_factory=lambda: NOTHING)
    prunes: bool = False  #: True if the generator also receives rows that running jobs print.

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(each.name for each in self.variables)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of objectives and constraints."""
        return tuple(dict.fromkeys((*self.objectives, *self.constraints)))

    @cached_property
    def size(self) -> int | None:
        """The number of different points, or ``None`` if a variable is a range, or if a variable
        with a ``step`` or ``when`` leads to a great number.
        """
        if not all(each.steps for each in self.variables):
            return None
        size = math.prod(
            len(dict.fromkeys(each.values) if each.values else each.steps)
            for each in self.variables
        )
        if all(each.values and not each.when for each in self.variables):
            return size
        if size > _MOST_COMBINATIONS:
            return None
        if not any(each.when for each in self.variables):
            return size
        values = [dict.fromkeys(each.steps) for each in self.variables]
        points = (dict(zip(self.names, each, strict=True)) for each in itertools.product(*values))
        return len({tuple(self.filled(each).values()) for each in points})

    def filled(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point in which each variable that does not apply has the value ``""``."""
        found = dict(parameters)
        for each in self.variables:
            if not each.applies(found):
                found[each.name] = ""
        return found

    def refused(self, parameters: Mapping[str, Any]) -> str | None:
        """Return why these parameters are not a valid point, or ``None`` if they are."""
        names = self.names
        for name in parameters:
            if name not in names:
                return f"it suggested {name!r}, which is not a variable"
        for variable in self.variables:
            if variable.name not in parameters:
                return f"it suggested no value for {variable.name!r}"
            value = parameters[variable.name]
            if value == "" and not variable.applies(parameters):
                continue
            why = variable.refused(value)
            if why is not None:
                return f"it suggested {variable.name} = {value!r}: {why}"
        return None

    def clipped(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return these valid parameters, each clipped to the range of its variable."""
        known = ((each, parameters[each.name]) for each in self.variables)
        return {
            each.name: each.clipped(value) if each.applies(parameters) else value
            for each, value in known
        }

    def feasible(self, values: Mapping[str, float]) -> bool:
        """Return True if these results satisfy all constraints."""
        return all(each.holds(values[name]) for name, each in self.constraints.items())

    def better(self, values: Mapping[str, float], others: Mapping[str, float], name: str) -> bool:
        """Return True if ``values`` is better than ``others`` in the objective ``name``."""
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
    """One set of parameters that a generator suggested, and its outcome.

    The ``state`` is one of

    - ``pending``: some jobs of the point are still open;
    - ``done``: ``values`` has the mean of each objective and constraint over the point's jobs;
    - ``lost``: the point has no values;
    - ``pruned``: the point was cancelled because it was not promising.
    """

    #: Counts the generator's points from 0; -1 for a point of another generator (``origin``).
    number: int
    parameters: Mapping[str, Any]
    tag: str | int | None = None  #: The ``_id`` that the generator gave the point.
    state: Literal["pending", "done", "lost", "pruned"] = "pending"
    values: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: Standard errors of ``values``, if two or more jobs are done.
    errors: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: ``jobs``: the indices of the point's jobs in their group. ``open``: how many of these jobs
    #: are not done or lost yet.
    jobs: tuple[int, ...] = ()
    open: int = 0
    #: The results of the point's done jobs.
    results: tuple[Mapping[str, Any], ...] = ()
    #: The number of the earlier point with the same parameters, whose outcome this one has. Such a
    #: point has no jobs (``repeat: false``).
    repeats: int | None = None
    #: Only in a run that switched to another generator: the name of the generator that suggested
    #: this point, and the point's number there.
    origin: tuple[str, int] | None = None

    def copy_for(self, generator: str) -> Point:
        """Return a copy of this finished point for another generator. ``generator`` is the one that
        suggested the point.
        """
        return Point(
            number=-1,
            parameters=self.parameters,
            state=self.state,
            values=self.values,
            errors=self.errors,
            origin=(generator, self.number),
        )


class Reading(NamedTuple):
    """An intermediate value that a running job of a point has printed, with its step."""

    point: int
    step: float
    value: float


class Exchange(NamedTuple):
    """Input and output of one call of a generator."""

    ingested: tuple[Point, ...]  #: The finished points that the generator received.
    readings: tuple[Reading, ...]
    suggested: tuple[Point, ...]


class Generator:
    """Interface that generators implement.

    The state of a generator is only in memory. After a resume of the run, a new object restores the
    state with :meth:`resume`. All calls are made on one thread, one after another. A call may take
    long.
    """

    #: True if no call can hang or take long. The calls are then made without a thread or timeout.
    quick: ClassVar[bool] = False

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return the next points, at most ``count``: mappings with a value for each variable, and
        optionally ``_id``.

        If this method returns fewer points than requested, it is not called again until after the
        next ``ingest``. If it returns no points while no point is open, the generator is finished.
        """
        raise NotImplementedError

    def ingest(self, points: Sequence[Point]) -> None:
        """Receive finished points, in the order in which they finished. Called before the next
        ``suggest``.

        A point's ``number`` (the order of suggestion) and ``parameters`` identify it. A point with
        the number -1 comes from another generator that this one has replaced (action ``switch``).
        Learn from such a point if possible.
        """

    def prune(self, readings: Sequence[Reading]) -> Collection[int]:
        """Receive intermediate values, and return the numbers of the points to cancel."""
        return ()

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Restore the state that a previous instance of this generator had after these calls.

        Suggested points without an outcome are still open. If the file has changed since, some
        suggested points may no longer be valid. These points keep their numbers and will have no
        outcome. The default implementation repeats every ``ingest``.
        """
        for exchange in exchanges:
            if exchange.ingested:
                self.ingest(exchange.ingested)


class EarlierPoints(NamedTuple):
    """The ``best`` points of a generator of an earlier run."""

    run: str
    best: int
    generator: str
    named: bool  #: Whether the file names the generator.

    @property
    def key(self) -> str:
        """The name under which the points are stored with the run."""
        return f"first points: {self.best} of {self.generator} in {self.run}"


class Prune(NamedTuple):
    """Names of the two columns that a pruner reads: one has the value, the other the step."""

    value: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpec:
    """A checked entry under ``generators:``."""

    name: str
    use: str
    group: str
    vocs: Vocs
    build: Callable[[Purpose], Generator]  #: Creates the generator.
    #: The entry of the file.
    given: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    #: Import paths of classes in the generator's options. A check of the file does not import
    #: them.
    classes: tuple[str, ...] = ()
    #: Number of jobs of ``group`` for each point; ``None``: as many as the group says.
    replicas: int | None = None
    at_once: int = 1  #: Maximum number of open points.
    repeat: bool = True  #: Whether a point with the parameters of an earlier one runs again.
    until: Condition | None = None  #: No more points are suggested once this condition is true.
    #: Values to report for a lost point; ``None``: the point has no values.
    failed: Mapping[str, float] | None = None
    #: Points to suggest first, and the earlier run from which they have to be taken, if any.
    first: tuple[Mapping[str, Any], ...] = ()
    first_from: EarlierPoints | None = None
    prune: Prune | None = None
    #: Time limit of a call in seconds. A resume that repeats N calls may take N times as long.
    timeout: float = 600.0
    enabled: bool = True
    #: ``reads``: the ``STAT.NAME`` references and gauges in ``until``. ``metrics``: the metric
    #: paths in ``until``.
    reads: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
