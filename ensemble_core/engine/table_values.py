"""Statistics over the numbers in one place of a table, kept up to date as numbers come and change.

Statistics that have an order-free reducer take one number at a time; others are over the numbers in
order, when they are asked for. Used by ``table_work``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ensemble_core.metrics.series import OrderFree, Series, StatisticSpec

__all__ = ["Values", "is_number"]

#: The largest number that a float can hold.
_LARGEST = math.nextafter(math.inf, 0.0)


def is_number(value: object) -> TypeGuard[float]:
    """True for a number that a float can hold."""
    kind = type(value)
    return (kind is float or kind is int) and -_LARGEST <= value <= _LARGEST  # type: ignore[operator]


class Values:
    """Numbers, each at its place, and statistics over them.

    If they only grow (``grows``), the number at a place never changes, and only statistics that
    were named at the start (``names``) are asked for.
    """

    __slots__ = ("_found", "_numbers", "_order", "_reducers", "_specs", "count", "grows")

    def __init__(
        self, specs: Mapping[str, StatisticSpec], names: Iterable[str] = (), *, grows: bool = False
    ) -> None:
        self._specs = specs
        self.grows = grows
        #: How many numbers there are.
        self.count = 0
        self._reducers: dict[str, OrderFree | None] = {}
        #: The numbers by place; ``None`` if no statistic needs them any more.
        self._numbers: dict[Any, float] | None = {}
        #: Their places in order; empty if that is not known.
        self._order: list[Any] = []
        self._found: dict[str, float | None] = {}
        for name in names:
            self._reducer(name)
        if grows and None not in self._reducers.values():
            self._numbers = None

    def put(self, place: Any, value: object) -> None:
        """Set the value at a place; what is no number is none."""
        number = value if is_number(value) else None
        numbers = self._numbers
        old = None if numbers is None else numbers.get(place)
        if number is old:
            return
        self.count += (number is not None) - (old is not None)
        for reducer in self._reducers.values():
            if reducer is not None:
                if old is not None:
                    reducer.remove(old)
                if number is not None:
                    reducer.add(number)
        if numbers is not None:
            if number is not None:
                numbers[place] = number
            else:
                del numbers[place]
            if old is None or number is None:
                self._order.clear()
        self._found.clear()

    def statistic(self, name: str) -> float | None:
        """A statistic over the numbers; ``None`` without a value."""
        if name == "count":
            return self.count
        if name not in self._found:
            self._found[name] = self._worked_out(name)
        return self._found[name]

    def _worked_out(self, name: str) -> float | None:
        reducer = self._reducer(name)
        if reducer is not None:
            return reducer.get()
        if name not in self._specs or self._numbers is None:
            return None
        if not self._order:
            self._order = sorted(self._numbers)
        series = Series([self._specs[name]])
        series.extend([self._numbers[place] for place in self._order])
        return series.scoped(name, 0.0)

    def _reducer(self, name: str) -> OrderFree | None:
        """The order-free reducer of a statistic, with the numbers so far; ``None`` if it has
        none."""
        if name not in self._reducers and name in self._specs:
            reducer = self._reducers[name] = self._specs[name].order_free(grows=self.grows)
            if reducer is not None:
                for number in (self._numbers or {}).values():
                    reducer.add(number)
        return self._reducers.get(name)
