"""Values of a sweep's parameter: lazy ranges of numbers, or values that a function computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

from ensemble_core.quick_dataclass import dataclass

#: Tolerance, in steps: the end of a range is included if it is this close to a step.
_NEAR = 1e-9
#: Error of a few operations, in units in the last place.
_NOISE = 4


def rounded(value: float) -> float:
    """Round a computed number for use as a parameter.

    Floats are rounded to 12 significant digits, and -0.0 becomes 0.0. Integers stay exact.

    >>> rounded(0.1 + 0.2), rounded(-0.0), rounded(10**20)
    (0.3, 0.0, 100000000000000000000)
    """
    return value if isinstance(value, int) else float(f"{value:.12g}") + 0.0


def without_noise(value: float) -> float:
    """Return the value of a sweep that this number is, except for the noise of arithmetic.

    All other numbers, such as measured ones, keep all their digits.

    >>> without_noise(0.1 + 0.2), without_noise(-76543.1234567891)
    (0.3, -76543.1234567891)
    """
    short = rounded(value)
    return short if abs(short - value) <= _NOISE * math.ulp(value) else value


@dataclass(frozen=True, slots=True)
class GivenBy:
    """Placeholder for values that a function of ``custom:`` computes at each submit.

    It is the only item in the parameter's list of values.
    """

    function: str


@dataclass(frozen=True, slots=True)
class Range(Sequence[float]):
    """A sequence of ``length`` numbers that begins with ``first``."""

    first: float
    step: float  #: Difference of neighbours; with ``log``, their ratio.
    length: int
    log: bool = False
    #: The last number. Without ``log``, it replaces ``step``: the numbers are evenly spaced.
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
        from decimal import Decimal  # not at the top: most runs have no such range

        # Calculate with decimals as written in the file, so that 0.3 - 3 * 0.1 is 0.
        first = Decimal(repr(self.first))
        if self.last is None:
            way = at * Decimal(repr(self.step))
        else:
            way = at * (Decimal(repr(self.last)) - first) / (self.length - 1)
        value = first + way
        return 0.0 if abs(value) < _NEAR * abs(self.step) else rounded(float(value))


def by_step(first: float, last: float, step: float) -> Range:
    """Return the range ``first``, ``first + step`` … up to ``last``.

    ``last`` is included if it is within 1e-9 of a step. The numbers are integers if all three
    arguments are.

    >>> list(by_step(2.0, 2.3, 0.1))
    [2.0, 2.1, 2.2, 2.3]
    """
    if all(isinstance(number, int) for number in (first, last, step)):
        return Range(first, step, max(0, int((last - first) // step) + 1))
    steps = math.floor((last - first) / step + _NEAR)
    return Range(float(first), float(step), max(0, steps + 1))


def by_count(first: float, last: float, count: int, *, log: bool = False) -> Range:
    """Return ``count`` evenly spaced numbers from ``first`` to ``last``.

    With ``log``, the spacing is even on a logarithmic scale. The numbers are integers if both ends
    and the step (with ``log``, the ratio) are.

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
        # A larger power would exceed the largest float, so no range can end there.
        small = near >= 1 and steps * math.log2(near) < 1100
        if whole and small and first * near**steps == last:
            return Range(first, near, count, log=True)
        return Range(float(first), ratio, count, log=True, last=float(last))
    if whole and (last - first) % steps == 0:
        return Range(first, (last - first) // steps, count)
    return Range(float(first), (last - first) / steps, count, last=float(last))
