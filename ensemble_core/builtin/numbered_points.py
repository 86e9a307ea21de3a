"""Points of the built-in generators, each worked out from the seed and its number alone, so that a
resumed run goes on with the very points that an undisturbed one would have had.

Imported once a file has one of them.
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

__all__ = ["check_grid", "check_scipy", "grid", "latin_hypercube", "random_points", "sobol"]

_MOST_POINTS = 10_000_000


class _Numbered(Generator):
    """Points by number: ``of`` gives the point of a number; ``None``: there is none."""

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
    """Combinations of values in their order. Those on record are not given again, whatever values a
    changed file has."""

    def __init__(self, names: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        self._names = names
        size = math.prod(map(len, values))
        self._rest: Iterator[tuple[Any, ...]] = (_combination(values, at) for at in range(size))

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        found = itertools.islice(self._rest, count)
        return [dict(zip(self._names, values, strict=True)) for values in found]

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        known = {
            _alike(point.parameters.get(name) for name in self._names)
            for each in exchanges
            for point in each.suggested
        }
        self._rest = (values for values in self._rest if _alike(values) not in known)


def _combination(values: Sequence[Sequence[Any]], number: int) -> tuple[Any, ...]:
    """Return the combination of this number, the last value counted the fastest."""
    found: list[Any] = []
    for axis in reversed(values):
        number, at = divmod(number, len(axis))
        found.append(axis[at])
    return tuple(reversed(found))


def _alike(values: Iterable[Any]) -> tuple[Any, ...]:
    """Equal for equal values: 1 is 1.0, and never "1" or true."""
    return tuple((isinstance(each, bool), each) for each in values)


def grid(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Every combination, the last variable the fastest."""
    return _Grid(vocs.names, [_on_axis(each, options) for each in vocs.variables])


def _on_axis(variable: Any, options: Mapping[str, Any]) -> Sequence[Any]:
    if variable.steps:
        return variable.steps  # type: ignore[no-any-return]
    count = options["points"]
    if count == 1:
        return [variable.at(0.5)]
    return [variable.at(i / (count - 1)) for i in range(count - 1)] + [variable.high]


def check_grid(vocs: Vocs, options: Mapping[str, Any]) -> None:
    """Check that the grid has no more points than can be kept."""
    size = 1
    for variable in vocs.variables:
        size *= len(variable.steps) or options["points"]
    if size > _MOST_POINTS:
        raise EnsembleError(
            f"the grid would have {size} points; at most {_MOST_POINTS}",
            hint="take fewer values, or 'sobol'",
            code="out-of-range",
        )


def random_points(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Each point is drawn by the seed and its number."""
    seed, variables = options["seed"], vocs.variables
    drawn = random.Random()

    def of(number: int) -> Mapping[str, Any]:
        drawn.seed(f"{seed}:{number}")
        return {each.name: each.at(drawn.random()) for each in variables}

    return _Numbered(of)


#: Points of a sequence are worked out so many at once.
_BLOCK = 256


def check_scipy(*_: object) -> None:
    """Check that scipy is installed, which not every user has."""
    if importlib.util.find_spec("scipy") is None:
        raise EnsembleError(
            "this generator needs scipy, which is not installed",
            hint="pip install scipy; 'random' and 'grid' need nothing",
            code="no-library",
        )


def sobol(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """A scrambled Sobol' sequence."""
    check_scipy()
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(vocs.variables), scramble=options["scramble"], seed=options["seed"])
    return _Numbered(_of_shares(vocs, lambda count: sequence.random(count)))


def _of_shares(
    vocs: Vocs, more: Callable[[int], np.ndarray[Any, Any]], most: int | None = None
) -> Callable[[int], Mapping[str, Any] | None]:
    shares: list[Any] = []

    def of(number: int) -> Mapping[str, Any] | None:
        if most is not None and number >= most:
            return None
        while number >= len(shares):
            # By powers of two, as a Sobol' sequence is to be taken.
            shares.extend(more(_BLOCK if most is None else most).tolist())
        row = shares[number]
        return {each.name: each.at(share) for each, share in zip(vocs.variables, row, strict=True)}

    return of


def latin_hypercube(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """One point in each of ``points`` equal shares of every variable."""
    check_scipy()
    from scipy.stats import qmc

    sampler = qmc.LatinHypercube(len(vocs.variables), seed=options["seed"])
    count = options["points"]
    return _Numbered(_of_shares(vocs, lambda number: sampler.random(number), count))
