"""The generators ``grid``, ``random``, ``sobol`` and ``latin-hypercube``.

A point depends only on its number and the options. A resumed run therefore gets the same points as
an uninterrupted one.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError
from ensemble_core.model.generators import Exchange, Generator, Vocs

if TYPE_CHECKING:
    import numpy as np

_MOST_POINTS = 10_000_000


class _PointSequence(Generator):
    """Generator of the points ``of(0)``, ``of(1)`` …, up to the first that is ``None``."""

    quick = True

    def __init__(self, of: Callable[[int], Mapping[str, Any] | None]) -> None:
        self._of = of
        self._next = 0

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        while len(found) < count and (point := self._of(self._next)) is not None:
            found.append(point)
            self._next += 1
        return found

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        self._next = sum(len(each.suggested) for each in exchanges)


class _Grid(Generator):
    """Generates all combinations of values, in order.

    After a resume, it skips the recorded combinations, even if the file has changed.
    """

    def __init__(self, vocs: Vocs, values: Sequence[Sequence[Any]]) -> None:
        self._names = vocs.names
        size = math.prod(map(len, values))
        self._rest: Iterator[tuple[Any, ...]] = (_combination(values, at) for at in range(size))
        if any(each.when for each in vocs.variables):
            self._rest = self._different(vocs, self._rest)

    def _different(
        self, vocs: Vocs, combinations: Iterable[Sequence[Any]]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the different points: where a variable does not apply, it has one value."""
        seen: set[tuple[Any, ...]] = set()
        for each in combinations:
            values = tuple(vocs.filled(self._point(each)).values())
            if (key := _equality_key(values)) not in seen:
                seen.add(key)
                yield values

    def _point(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names, values, strict=True))

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        found = itertools.islice(self._rest, count)
        return [self._point(values) for values in found]

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        known = {
            _equality_key(point.parameters.get(name) for name in self._names)
            for each in exchanges
            for point in each.suggested
        }
        self._rest = (values for values in self._rest if _equality_key(values) not in known)


def _combination(values: Sequence[Sequence[Any]], number: int) -> tuple[Any, ...]:
    """Return combination ``number``. The last value varies fastest."""
    found: list[Any] = []
    for axis in reversed(values):
        number, at = divmod(number, len(axis))
        found.append(axis[at])
    return tuple(reversed(found))


def _equality_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a key that is equal for equal values. 1 equals 1.0, but not "1" or true."""
    return tuple((isinstance(each, bool), each) for each in values)


def grid(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Return a generator of all combinations. The last variable varies fastest."""
    return _Grid(vocs, [_on_axis(each, options) for each in vocs.variables])


def _on_axis(variable: Any, options: Mapping[str, Any]) -> Sequence[Any]:
    if variable.steps:
        return variable.steps  # type: ignore[no-any-return]
    count = options["points"]
    if count == 1:
        return [variable.at(0.5)]
    return [variable.at(i / (count - 1)) for i in range(count - 1)] + [variable.high]


def check_grid(vocs: Vocs, options: Mapping[str, Any]) -> None:
    """Raise :class:`EnsembleError` if the grid has too many points."""
    size = 1
    for variable in vocs.variables:
        size *= len(variable.steps) or options["points"]
    if size > _MOST_POINTS:
        raise EnsembleError(
            f"the grid has {size} points; at most {_MOST_POINTS} are allowed",
            hint="use fewer values, or the generator 'sobol'",
            code="out-of-range",
        )


def random_points(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Return a generator of random points, drawn from the seed and the point's number."""
    seed, variables = options["seed"], vocs.variables
    drawn = random.Random()

    def of(number: int) -> Mapping[str, Any]:
        drawn.seed(f"{seed}:{number}")
        return {each.name: each.at(drawn.random()) for each in variables}

    return _PointSequence(of)


#: How many points of a sequence are calculated at a time.
_BLOCK = 256


def check_scipy(*_: object) -> None:
    """Raise :class:`EnsembleError` if scipy is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise EnsembleError(
            "this generator needs scipy, which is not installed",
            hint="pip install scipy, or use the generator 'random' or 'grid'",
            code="no-library",
        )


def sobol(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Return a generator of a Sobol' sequence."""
    check_scipy()
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(vocs.variables), scramble=options["scramble"], seed=options["seed"])
    return _PointSequence(_points_from_shares(vocs, lambda count: sequence.random(count)))


def _points_from_shares(
    vocs: Vocs, more: Callable[[int], np.ndarray[Any, Any]], most: int | None = None
) -> Callable[[int], Mapping[str, Any] | None]:
    shares: list[Any] = []

    def of(number: int) -> Mapping[str, Any] | None:
        if most is not None and number >= most:
            return None
        while number >= len(shares):
            # The number of points drawn from a Sobol' sequence should be a power of two.
            shares.extend(more(_BLOCK if most is None else most).tolist())
        row = shares[number]
        return {each.name: each.at(share) for each, share in zip(vocs.variables, row, strict=True)}

    return of


def latin_hypercube(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Return a generator of a Latin hypercube.

    It divides the range of every variable into ``points`` equal parts, and each part contains one
    point.
    """
    check_scipy()
    from scipy.stats import qmc

    sampler = qmc.LatinHypercube(len(vocs.variables), seed=options["seed"])
    count = options["points"]
    return _PointSequence(_points_from_shares(vocs, lambda number: sampler.random(number), count))
