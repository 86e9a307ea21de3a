"""Generator with the simplex method of Nelder and Mead: local minimization without derivatives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core.errors import EnsembleError
from ensemble_core.model.generators import Exchange, Generator, Point, Vocs
from ensemble_core.plugin.distributions import known_provider

#: Coordinates in the unit cube, in which all ranges have equal weight, even logarithmic ones.
_Place = tuple[float, ...]


class NelderMead(Generator):
    """Generator of the points of a Nelder–Mead simplex.

    A point whose job failed, or that violates a constraint, counts as infinitely bad.
    """

    def __init__(self, vocs: Vocs, options: Mapping[str, Any]) -> None:
        ((self._objective, goal),) = vocs.objectives.items()
        self._sign = 1.0 if goal == "minimize" else -1.0
        self._vocs, self._options = vocs, options
        self._restart()

    def _restart(self) -> None:
        start = self._options["start"]
        self._start = tuple(
            each.share(start[each.name]) if each.name in start else 0.5
            for each in self._vocs.variables
        )
        self._start_value = math.inf
        self._moves: Any = None
        self._begin([])

    def _begin(self, places: list[_Place]) -> None:
        #: The current move: its places, the parameters that were suggested for them so far, and the
        #: value of each place (``None`` until it is known).
        self._places = places
        self._given: list[Mapping[str, Any]] = []
        self._values: list[float | None] = [None] * len(places)

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return up to ``count`` places of the current move that have not been suggested yet."""
        if self._moves is None:
            self._moves = _moves(self._start, self._options["step"], self._options["tolerance"])
            self._begin(next(self._moves))
        found: list[Mapping[str, Any]] = []
        for place in self._places[len(self._given) :][:count]:
            shares = zip(self._vocs.variables, place, strict=True)
            found.append(self._vocs.clipped({each.name: each.at(share) for each, share in shares}))
        self._given += found
        return found

    def ingest(self, points: Sequence[Point]) -> None:
        """Record the values of points.

        When all values of the current move are known, begin the next one.

        Points that belong to no move, such as those of another generator, are used as well: the
        best of them becomes the start.
        """
        for point in points:
            value = self._value(point)
            place = self._place(point)
            if place is not None:
                self._values[place] = value
            elif value < self._start_value:
                self._start_value = value
                self._start = tuple(
                    each.share(point.parameters[each.name]) for each in self._vocs.variables
                )
        if self._places and None not in self._values:
            try:
                self._begin(self._moves.send(self._values))
            except StopIteration:
                self._begin([])

    def _place(self, point: Point) -> int | None:
        """Return the index of a point in the current move, or ``None``.

        Parameters are compared, not point numbers, because recorded points may have other numbers
        after a change of the file.
        """
        for place, parameters in enumerate(self._given):
            if self._values[place] is None and parameters == point.parameters:
                return place
        return None

    def _value(self, point: Point) -> float:
        if not point.values or not self._vocs.feasible(point.values):
            return math.inf
        return self._sign * point.values[self._objective]

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Repeat the recorded moves.

        If they lead to other places because the file has changed, start a new simplex at the best
        recorded point.
        """
        if self._repeats(exchanges):
            return
        self._restart()
        for exchange in exchanges:
            self.ingest(exchange.ingested)

    def _repeats(self, exchanges: Sequence[Exchange]) -> bool:
        for ingested, _, suggested in exchanges:
            self.ingest(ingested)
            found = self.suggest(len(suggested)) if suggested else []
            if found != [each.parameters for each in suggested]:
                return False
        return True


def _moves(start: _Place, step: float, tolerance: float) -> Any:
    """Yield the moves of a simplex that begins at ``start``.

    They end when the simplex is smaller than ``tolerance``.
    """
    corners = [start]
    for axis, share in enumerate(start):
        away = share + step if share + step <= 1 else share - step
        corners.append((*start[:axis], away, *start[axis + 1 :]))
    values: list[float] = yield corners
    while True:
        order = sorted(range(len(corners)), key=lambda i: values[i])
        corners, values = [corners[i] for i in order], [values[i] for i in order]
        best, worst = corners[0], corners[-1]
        if all(abs(a - b) <= tolerance for c in corners for a, b in zip(c, best, strict=True)):
            return
        middle = tuple(sum(each) / (len(corners) - 1) for each in zip(*corners[:-1], strict=True))
        reflected = _along(middle, worst, -1.0)
        (value,) = yield [reflected]
        if value < values[0]:
            expanded = _along(middle, worst, -2.0)
            (further,) = yield [expanded]
            found = (further, expanded) if further < value else (value, reflected)
        elif value < values[-2]:
            found = value, reflected
        else:
            outside = value < values[-1]
            contracted = _along(middle, worst, -0.5 if outside else 0.5)
            (nearer,) = yield [contracted]
            if nearer >= min(value, values[-1]):
                corners[1:] = [_along(best, each, 0.5) for each in corners[1:]]
                values[1:] = yield corners[1:]
                continue
            found = nearer, contracted
        values[-1], corners[-1] = found


def _along(origin: _Place, place: _Place, part: float) -> _Place:
    """Return the place at the fraction ``part`` of the way from ``origin`` to ``place``.

    The result is clipped to the ranges.
    """
    pairs = zip(origin, place, strict=True)
    return tuple(min(max(a + part * (b - a), 0.0), 1.0) for a, b in pairs)


def check_start(vocs: Vocs, options: Mapping[str, Any]) -> None:
    """Raise :class:`EnsembleError` for unsuitable objectives, variables or options."""
    if len(vocs.objectives) > 1:
        several = known_provider("generator", "optuna")
        raise EnsembleError(
            f"nelder-mead takes a single objective; this generator has {len(vocs.objectives)}",
            hint=f"use optuna, which takes several: {several[1]}" if several else None,
            code="bad-value",
        )
    for each in vocs.variables:
        if each.values:
            raise EnsembleError(
                f"nelder-mead needs ranges, but {each.name!r} has a list of values",
                hint="write [LOWEST, HIGHEST], optionally with a step",
                code="bad-value",
            )
    for name, value in options["start"].items():
        variable = next((each for each in vocs.variables if each.name == name), None)
        why = "there is no such variable" if variable is None else variable.refused(value)
        if why is not None:
            raise EnsembleError(f"invalid start {name} = {value!r}: {why}", code="bad-value")
