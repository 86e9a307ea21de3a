"""Adapter between a generator of the standard gest-api and the core's generators.

gest-api has no logarithmic variables. So the generator receives the logarithm of each variable that
has ``log: true`` in the ensemble file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble_core import EnsembleError, Exchange, Generator, Point, Variable, Vocs

#: Maximum number of values of a discrete variable. The standard requires a list of them.
_MOST_LISTED = 1_000_000


class GestGenerator(Generator):
    """Generator of the standard gest-api.

    The standard has no message for points without values. So the generator is not told about pruned
    points, nor about lost points unless the key ``failed`` gives values for them.
    """

    def __init__(self, vocs: Vocs, options: Mapping[str, Any]) -> None:
        self._vocs = vocs
        self._class = options["class"]
        self._options = dict(options["options"])
        self._new_generator()

    def _new_generator(self) -> None:
        try:
            self._generator = self._class(vocs=_standard(self._vocs), **self._options)
        except (TypeError, ValueError) as error:
            raise EnsembleError(
                f"cannot create {self._class.__name__}: {error}",
                hint="set the class's arguments under 'with: {options: {…}}' of the generator",
                code="bad-value",
            ) from error
        #: Points as the generator suggested them, by our numbers. They are returned to the
        #: generator unchanged, with their ``_id``.
        self._given: dict[int, dict[str, Any]] = {}
        self._more: list[dict[str, Any]] = []
        self._next = 0

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return the next points."""
        while len(self._more) < count:
            found = self._request(count - len(self._more))
            if not found:
                break
            self._more += found
        given, self._more = self._more[:count], self._more[count:]
        for each in given:
            self._given[self._next] = each
            self._next += 1
        return [self._from_standard(each) for each in given]

    def _request(self, count: int) -> list[dict[str, Any]]:
        """Return about ``count`` points. The generator decides how many, possibly none."""
        for number in (count, None):
            try:
                return [_single(each) for each in self._generator.suggest(number)]
            except ValueError:  # this is how a generator declines a number
                continue
        return []

    def ingest(self, points: Sequence[Point]) -> None:
        """Report finished points to the generator."""
        told = []
        for point in points:
            given = self._given.pop(point.number, None)
            # After the file was changed, recorded points may be missing, and numbers may differ.
            if given is None or _values(self._from_standard(given)) != _values(point.parameters):
                given = self._to_standard(point.parameters)
            if point.values:
                told.append({**given, **point.values})
        if told:
            self._generator.ingest(told)

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Repeat all recorded calls.

        If the results differ from the recorded points, report the recorded points as those of
        another generator.
        """
        if self._repeats(exchanges):
            return
        self._new_generator()
        for exchange in exchanges:
            self.ingest(exchange.ingested)
            self._next += len(exchange.suggested)

    def _repeats(self, exchanges: Sequence[Exchange]) -> bool:
        for told, _, suggested in exchanges:
            self.ingest(told)
            found = self.suggest(len(suggested)) if suggested else []
            if [_values(each) for each in found] != [_values(p.parameters) for p in suggested]:
                return False
        return True

    def _from_standard(self, given: Mapping[str, Any]) -> dict[str, Any]:
        point = dict(given)
        for variable in self._vocs.variables:
            if variable.log:
                value = math.exp(point[variable.name])
                point[variable.name] = min(max(value, variable.low), variable.high)
        return point

    def _to_standard(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {
            each.name: math.log(parameters[each.name]) if each.log else parameters[each.name]
            for each in self._vocs.variables
        }


def _single(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point with arrays of length 1 replaced by numbers.

    libEnsemble's generators return such arrays for a single variable, but do not accept them.
    """
    return {
        name: value.item() if getattr(value, "shape", None) == (1,) else value
        for name, value in given.items()
    }


def _values(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in point.items() if name != "_id"}


def _standard(vocs: Vocs) -> Any:
    from gest_api.vocs import VOCS

    return VOCS(
        variables={each.name: _domain(each) for each in vocs.variables},
        objectives={name: goal.upper() for name, goal in vocs.objectives.items()},
        constraints={
            name: ["LESS_THAN" if each.sign.startswith("<") else "GREATER_THAN", each.bound]
            for name, each in vocs.constraints.items()
        },
    )


def _domain(variable: Variable) -> Any:
    if len(variable.steps) > _MOST_LISTED:
        raise EnsembleError(
            f"{variable.name!r} has {len(variable.steps)} values; the limit for gest-api is "
            f"{_MOST_LISTED}",
            hint="use a larger step, or no step",
            code="out-of-range",
        )
    if variable.steps:
        return set(variable.steps)
    if variable.log:
        return [math.log(variable.low), math.log(variable.high)]
    return [float(variable.low), float(variable.high)]
