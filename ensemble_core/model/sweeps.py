"""Values of a sweep: evenly spaced numbers that are worked out one at a time, when they are asked
for. How many there are is known before any is made.

Made by the config part of ``{from, to, step}`` and ``{from, to, count}``, read by job groups. What
stands for values that a function will give is here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import overload

__all__ = ["GivenBy", "Range", "by_count", "by_step", "rounded"]

#: So near to a step, in steps, the end of a range is one.
_NEAR = 1e-9


def rounded(value: float) -> float:
    """A number that was worked out, as jobs are given it: 12 significant digits; integers are
    exact, and -0 is 0.

    >>> rounded(0.1 + 0.2)
    0.3
    """
    return value if isinstance(value, int) else float(f"{value:.12g}") + 0.0


@dataclass(frozen=True, slots=True)
class GivenBy:
    """Values of a parameter that a function of ``custom:`` gives at each submit of its group. It
    stands in their place, alone."""

    function: str


@dataclass(frozen=True, slots=True)
class Range(Sequence[float]):
    """``length`` numbers from ``first``, each by ``step`` more than the one before, or ``log``:
    ``step`` times it. Where ``last`` is given they go evenly up to that, whatever ``step`` is."""

    first: float
    step: float
    length: int
    log: bool = False
    last: float | None = None

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self.length)))
        at = index + self.length if index < 0 else index
        if not 0 <= at < self.length:
            raise IndexError(index)
        if at == 0:
            return rounded(self.first)
        if self.last is not None and at == self.length - 1:
            return rounded(self.last)
        if self.log:
            power = self.first * self.step**at
            return power if isinstance(power, int) else rounded(power)
        if isinstance(self.first, int) and isinstance(self.step, int):
            return self.first + at * self.step
        # In decimals, as they were written: 0.3 - 3 * 0.1 is 0.
        first = Decimal(repr(self.first))
        if self.last is None:
            way = at * Decimal(repr(self.step))
        else:
            way = at * (Decimal(repr(self.last)) - first) / (self.length - 1)
        value = first + way
        return 0.0 if abs(value) < _NEAR * abs(self.step) else rounded(float(value))


def by_step(first: float, last: float, step: float) -> Range:
    """``first``, ``first + step`` … up to ``last``, which is one of them if it is within 1e-9 of a
    step. Integers where all three are. Empty where ``last`` lies the other way.

    >>> list(by_step(2.0, 2.3, 0.1))
    [2.0, 2.1, 2.2, 2.3]
    """
    if all(isinstance(number, int) for number in (first, last, step)):
        return Range(first, step, max(0, int((last - first) // step) + 1))
    steps = math.floor((last - first) / step + _NEAR)
    return Range(float(first), float(step), max(0, steps + 1))


def by_count(first: float, last: float, count: int, *, log: bool = False) -> Range:
    """``count`` numbers from ``first`` to ``last``, evenly spaced, or with ``log`` evenly spaced in
    their logarithms. All are integers where the ends are and the rest can be, else all are floats.

    >>> list(by_count(1, 1000, 4, log=True))
    [1, 10, 100, 1000]
    """
    if count == 1:
        return Range(first, 0, 1)
    steps = count - 1
    whole = isinstance(first, int) and isinstance(last, int)
    if log:
        ratio: float = (last / first) ** (1 / steps)
        near = round(ratio)
        # Of more bits than a float's largest number has no such power is a range's end.
        small = near >= 1 and steps * math.log2(near) < 1100
        if whole and small and first * near**steps == last:
            return Range(first, near, count, log=True)
        return Range(float(first), ratio, count, log=True, last=float(last))
    if whole and (last - first) % steps == 0:
        return Range(first, (last - first) // steps, count)
    return Range(float(first), (last - first) / steps, count, last=float(last))
