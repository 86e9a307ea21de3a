"""Vertical axis for values with outliers: whether a panel needs it, and how it is drawn.

It is linear for most values and logarithmic for outliers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

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


#: Minimum distance between the ticks of decades, if the usual range has height 2.
_ROOM = 0.3


class _Scale:
    """Scale that is linear between ``low`` and ``high``, and logarithmic outside."""

    def __init__(self, low: float, high: float, least: float, most: float) -> None:
        self.middle, self.half = low / 2 + high / 2, high / 2 - low / 2
        decades = sum(
            max(0.0, math.log10(max(1.0, abs(far - self.middle) / self.half)))
            for far in (least, most)
        )
        self.decade = 2.0 / decades if decades > 0 else 1.0

    def forward(self, values: Any) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):
            u = (np.asarray(values, float) - self.middle) / self.half
            far = 1 + self.decade * np.log10(np.maximum(np.abs(u), 1))
        return np.where(np.abs(u) <= 1, u, np.sign(u) * far)

    def inverse(self, values: Any) -> Any:
        import numpy as np

        u = np.asarray(values, float)
        with np.errstate(all="ignore"):
            far = 10 ** np.minimum((np.abs(u) - 1) / self.decade, 307.0)
            return self.middle + self.half * np.where(np.abs(u) <= 1, u, np.sign(u) * far)


def set_outlier_axis(ax: Any, usual: tuple[float, float], least: float, most: float) -> None:
    """Make the panel's vertical axis linear within the range ``usual``, and logarithmic outside.

    The axis extends from ``least`` to ``most``.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    low, high = usual
    scale = _Scale(low, high, least, most)
    ax.set_yscale("function", functions=(scale.forward, scale.inverse))
    near = [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
    far = _outer_ticks(scale, most, 1) + _outer_ticks(scale, -least, -1)
    ax.yaxis.set_major_locator(FixedLocator(sorted([*near, *far])))
    ax.yaxis.set_major_formatter(FuncFormatter(partial(_tick_text, far)))
    for border, beyond in ((high, most > high), (low, least < low)):
        if beyond:
            ax.axhline(border, color="#777777", linewidth=0.8, linestyle=(0, (1, 3)))


def _outer_ticks(scale: _Scale, far: float, sign: int) -> list[float]:
    """Return powers of ten for ticks on one side of the usual range, as far as there is space."""
    if far <= 0:
        return []
    last = math.floor(math.log10(far))
    first = math.ceil(math.log10(max(3 * scale.half, 3 * abs(scale.middle))))
    step = max(1, math.ceil(_ROOM / scale.decade))
    return [sign * 10.0**power for power in range(last, first - 1, -step)]


def _tick_text(far: list[float], value: float, _: int) -> str:
    if value in far:
        return f"${'-' if value < 0 else ''}10^{{{round(math.log10(abs(value)))}}}$"
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")
