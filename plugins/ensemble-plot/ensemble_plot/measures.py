"""Numbers and names for pictures: limits, time units, short names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_plot.picture import Panel

#: Limit of every axis. Beyond this limit, the length of an axis might not be a finite number.
_HUGE = 1e300


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most this width, and replace its control characters with spaces."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def clamp(number: float) -> float:
    """Return the number, limited to what an axis can show; nan stays nan."""
    return max(-_HUGE, min(_HUGE, number)) if number == number else number


def isolated_points(ys: Sequence[float]) -> list[int]:
    """Return the indices of points between two gaps, which a line does not show."""
    last = len(ys) - 1
    return [
        at
        for at, y in enumerate(ys)
        if y == y and (at == 0 or math.isnan(ys[at - 1])) and (at == last or math.isnan(ys[at + 1]))
    ]


def total_variation(ys: Sequence[float]) -> float:
    """Return how far a curve moves up and down in total, in multiples of its height."""
    finite = [clamp(y) for y in ys if y == y]
    height = max(finite, default=0.0) / 2 - min(finite, default=0.0) / 2
    if not height > 0:
        return 0.0
    return sum(abs(b / 2 - a / 2) / height for a, b in itertools.pairwise(finite))


def time_unit(panels: Iterable[Panel]) -> tuple[str, float]:
    """Return the unit for the panels' time axes, and the number of seconds in that unit."""
    longest = max(
        (
            abs(x)
            for panel in panels
            if panel.axis == "time"
            for line in panel.lines
            for x in line.xs
            if x == x
        ),
        default=0.0,
    )
    return unit_of(longest)


def unit_of(longest: float) -> tuple[str, float]:
    """Return the unit for a duration in seconds, and the number of seconds in that unit."""
    for name, seconds, least in (("d", 86400.0, 3.0), ("h", 3600.0, 3.0), ("min", 60.0, 10.0)):
        if longest >= least * seconds:
            return name, seconds
    return "s", 1.0
