"""Colours and line styles of jobs in a picture, or a colour scale if there are many jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ensemble_plot.run_history import Track

#: Maximum number of jobs that each have their own colour and an entry in the legend.
DIRECT = 12

# By Okabe and Ito: people with any kind of colour vision can distinguish them. Yellow and black are
# left for the marks of rules.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_LONGEST = 36


@dataclass(frozen=True, slots=True)
class Style:
    """The style of one job's line."""

    colour: str
    dashes: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A colour scale for many jobs."""

    name: str  # label of the scale
    values: Mapping[str, float]  # by job id; jobs without a value are grey
    logarithmic: bool
    whole: bool


def style_of(place: int) -> Style:
    """Return the style of the job at this index. Styles repeat after ``DIRECT`` jobs."""
    return Style(_COLOURS[place % len(_COLOURS)], ("-", "--")[place // len(_COLOURS) % 2])


def scale_of(jobs: Sequence[Track]) -> Scale:
    """Return the scale for many jobs: the first numeric parameter that varies, or their order."""
    found: dict[str, dict[str, float]] = {}
    for track in jobs:
        for name, value in track.parameters.items():
            number = _number(value)
            if number is not None:
                found.setdefault(name, {})[track.id] = number
    varying = {name: values for name, values in found.items() if len(set(values.values())) > 1}
    # A seed says little on a scale, so it is the last choice.
    for name in sorted(varying, key=lambda name: "seed" in name.lower()):
        values = varying[name]
        low, high = min(values.values()), max(values.values())
        whole = all(value == int(value) for value in values.values())
        return Scale(name, values, low > 0 and high / low > 100, whole)
    order = {track.id: float(place) for place, track in enumerate(jobs)}
    return Scale("job, in order", order, logarithmic=False, whole=True)


def _number(value: object) -> float | None:
    """Return a parameter's value as a number; ``None`` if it is not suitable for a scale."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e300 else None


def label_of(track: Track, jobs: Sequence[Track]) -> str:
    """Return a job's entry in the legend: its id, and the parameters that differ in its group."""
    kin = [each for each in jobs if each.group == track.group]
    parts = [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in track.parameters.items()
        if any(each.parameters.get(name) != value for each in kin)
    ]
    text = "  ".join((track.id, ", ".join(parts))) if parts else track.id
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
