"""Decides whether some values are so far away from the others that they need another axis."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: Distance from which a value counts as an outlier, in multiples of the range of nine tenths of all
#: values.
_FAR = 20.0


def usual_range(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the range of most values; ``None`` if all values can share a linear axis."""
    ordered = sorted(value for value in values if value == value)
    if len(ordered) < 10:
        return None
    low, high = ordered[len(ordered) // 20], ordered[len(ordered) - 1 - len(ordered) // 20]
    span = high - low
    if not 0 < span < math.inf:
        return None
    if ordered[0] >= low - _FAR * span and ordered[-1] <= high + _FAR * span:
        return None
    return low - span / 2, high + span / 2
