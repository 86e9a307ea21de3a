"""The built-in generators, registered through the same hook that a plugin uses. All but
``nelder-mead`` give points that do not depend on results: each is worked out from the seed and its
number alone, so that a resumed run goes on with the very points that an undisturbed one would have
had.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core.builtin.nelder_mead import NELDER_MEAD
from ensemble_core.errors import EnsembleError
from ensemble_core.model.generators import Exchange, Generator, Vocs
from ensemble_core.plugin.hookspecs import GeneratorPlugin, hookimpl

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ensemble_generators"]

_SEED = {"description": "What points are drawn by.", "type": "integer", "minimum": 0, "default": 0}
_MOST_POINTS = 10_000_000


class _Numbered(Generator):
    """Points by number: ``of`` gives the point of a number; ``None``: there is none."""

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


def _grid(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Every combination, the last variable the fastest."""
    values = [_on_axis(each, options) for each in vocs.variables]
    names = vocs.names
    combinations = itertools.product(*values)
    found: list[tuple[Any, ...]] = []

    def of(number: int) -> Mapping[str, Any] | None:
        found.extend(itertools.islice(combinations, max(0, number + 1 - len(found))))
        if number >= len(found):
            return None
        return dict(zip(names, found[number], strict=True))

    return _Numbered(of)


def _on_axis(variable: Any, options: Mapping[str, Any]) -> Sequence[Any]:
    if variable.steps:
        return list(variable.steps)
    count = options["points"]
    if count == 1:
        return [variable.at(0.5)]
    return [variable.at(i / (count - 1)) for i in range(count - 1)] + [variable.high]


def _check_grid(vocs: Vocs, options: Mapping[str, Any]) -> None:
    size = 1
    for variable in vocs.variables:
        size *= len(variable.steps) or options["points"]
    if size > _MOST_POINTS:
        raise EnsembleError(
            f"the grid would have {size} points; at most {_MOST_POINTS}",
            hint="take fewer values, or 'sobol'",
            code="out-of-range",
        )


def _random(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """Each point is drawn by the seed and its number."""
    seed, variables = options["seed"], vocs.variables
    drawn = random.Random()

    def of(number: int) -> Mapping[str, Any]:
        drawn.seed(f"{seed}:{number}")
        return {each.name: each.at(drawn.random()) for each in variables}

    return _Numbered(of)


#: Points of a sequence are worked out so many at once.
_BLOCK = 256


def _sobol(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """A scrambled Sobol' sequence."""
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


def _latin_hypercube(vocs: Vocs, options: Mapping[str, Any]) -> Generator:
    """One point in each of ``points`` equal shares of every variable."""
    from scipy.stats import qmc

    sampler = qmc.LatinHypercube(len(vocs.variables), seed=options["seed"])
    count = options["points"]
    return _Numbered(_of_shares(vocs, lambda number: sampler.random(number), count))


@hookimpl
def ensemble_generators() -> Iterable[GeneratorPlugin]:
    """Points that do not depend on results, and the simplex."""
    yield GeneratorPlugin(
        name="grid",
        summary="every combination of the variables' values, the last variable the fastest",
        build=_grid,
        check=_check_grid,
        finite=lambda options: True,
        options={
            "type": "object",
            "properties": {
                "points": {
                    "description": "Values of each variable that has neither values nor a step.",
                    "type": "integer",
                    "minimum": 1,
                    "default": 5,
                }
            },
        },
    )
    yield GeneratorPlugin(
        name="random",
        summary="points drawn at random",
        build=_random,
        options={"type": "object", "properties": {"seed": _SEED}},
    )
    yield GeneratorPlugin(
        name="sobol",
        summary="a Sobol' sequence: points that fill the space evenly, however many are taken",
        build=_sobol,
        options={
            "type": "object",
            "properties": {
                "seed": _SEED,
                "scramble": {
                    "description": "Whether the sequence is scrambled, by the seed.",
                    "type": "boolean",
                    "default": True,
                },
            },
        },
    )
    yield GeneratorPlugin(
        name="latin-hypercube",
        summary="so many points, one in each of as many equal shares of every variable",
        build=_latin_hypercube,
        finite=lambda options: True,
        options={
            "type": "object",
            "required": ["points"],
            "properties": {
                "points": {"description": "How many points.", "type": "integer", "minimum": 1},
                "seed": _SEED,
            },
        },
    )
    yield NELDER_MEAD
