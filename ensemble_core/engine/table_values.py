"""Collections of numbers with statistics over them, for the columns and cells of tables.

The order in which numbers are added does not change the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from ensemble_core.metrics.series import OrderFree, Series, StatisticSpec

#: The largest finite float.
_LARGEST = math.nextafter(math.inf, 0.0)


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number that fits into a float."""
    kind = type(value)
    return (kind is float or kind is int) and -_LARGEST <= value <= _LARGEST  # type: ignore[operator]


def _in_order(spec: StatisticSpec, numbers: Mapping[Any, float]) -> float | None:
    """Return a statistic over the numbers, in the order of their positions."""
    series = Series([spec])
    series.extend([numbers[position] for position in sorted(numbers)])
    return series.scoped(spec.name, 0.0)


class AppendOnlyValues:
    """A collection of numbers that only grows, with statistics over the numbers.

    Objects of this class are small, because a table may have millions of them.
    """

    __slots__ = ("_adders", "_names", "_numbers", "_reducers", "_specs", "count")

    def __init__(self, specs: Mapping[str, StatisticSpec], names: tuple[str, ...]) -> None:
        self._specs = specs
        self._names = names
        self.count = 0
        self._reducers: tuple[OrderFree | None, ...] = tuple(
            specs[name].order_free(grows=True) if name in specs else None for name in names
        )
        #: The reducers that get each number. The others share the sums of one of these.
        adders: list[OrderFree] = []
        for reducer in self._reducers:
            share = getattr(reducer, "share", None)
            if reducer is not None and not (share and any(map(share, adders))):
                adders.append(reducer)
        self._adders = tuple(adders)
        ordered = zip(names, self._reducers, strict=True)
        keep = any(reducer is None and name in specs for name, reducer in ordered)
        #: The numbers by position, or ``None`` if no statistic needs them.
        self._numbers: dict[Any, float] | None = {} if keep else None

    def put(self, position: Any, value: object) -> None:
        """Add the value at a position, if it is a number."""
        if not is_number(value):
            return
        self.count += 1
        for reducer in self._adders:
            reducer.add(value)
        if self._numbers is not None:
            self._numbers[position] = value

    def statistic(self, name: str) -> float | None:
        """Return a statistic over the numbers, or ``None`` if it has no value."""
        if name == "count":
            return self.count
        reducer = self._reducers[self._names.index(name)]
        if reducer is not None:
            return reducer.get()
        return _in_order(self._specs[name], self._numbers) if self._numbers else None

    def get_all(self, own_names: tuple[str, ...], found: dict[str, Any]) -> None:
        """Add the statistics ``names`` to ``found``, under the names ``own_names``."""
        for number, reducer in enumerate(self._reducers):
            found[own_names[number]] = (
                self.statistic(self._names[number]) if reducer is None else reducer.get()
            )


class Values:
    """A collection of numbers that can be changed and removed, with statistics over the numbers."""

    __slots__ = ("_found", "_numbers", "_reducers", "_specs")

    def __init__(self, specs: Mapping[str, StatisticSpec]) -> None:
        self._specs = specs
        self._numbers: dict[Any, float] = {}
        #: Statistics that do not depend on the order. All others are computed when they are read.
        self._reducers: dict[str, OrderFree] = {}
        #: Cache of results. It is cleared when a number changes.
        self._found: dict[str, float | None] = {}

    def put(self, position: Any, value: object) -> None:
        """Set the value at a position. If it is not a number, remove the previous value."""
        old = self._numbers.get(position)
        if value is old:
            return
        number = value if is_number(value) else None
        if number is old:
            return
        for reducer in self._reducers.values():
            if old is not None:
                reducer.remove(old)
            if number is not None:
                reducer.add(number)
        if number is not None:
            self._numbers[position] = number
        else:
            del self._numbers[position]
        self._found.clear()

    def statistic(self, name: str) -> float | None:
        """Return a statistic over the numbers, or ``None`` if it has no value."""
        if name == "count":
            return len(self._numbers)
        if name not in self._found:
            self._found[name] = self._compute(name)
        return self._found[name]

    def _compute(self, name: str) -> float | None:
        if name not in self._specs:
            return None
        if name not in self._reducers:
            reducer = self._specs[name].order_free(grows=False)
            if reducer is None:
                return _in_order(self._specs[name], self._numbers)
            for number in self._numbers.values():
                reducer.add(number)
            self._reducers[name] = reducer
        return self._reducers[name].get()
