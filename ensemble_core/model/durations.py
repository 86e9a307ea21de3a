"""Parses durations: seconds, or text such as ``10m``, ``1h30m`` or ``1.5h`` (as in Flux)."""

from __future__ import annotations

import math
import re

from ensemble_core.errors import EnsembleError
from ensemble_core.late_pattern import late_pattern

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_PART = late_pattern(rf"({_NUMBER})\s*(ms|s|m|h|d|w)", re.ASCII)
_WHOLE = late_pattern(rf"(?:{_NUMBER}\s*(?:ms|s|m|h|d|w)\s*)+", re.ASCII)
_CLOCK = late_pattern(r"\d+(?::\d+)+(?:\.\d*)?", re.ASCII)
_LONGEST = 3.2e9  # a century: timers have a maximum, and a longer duration is certainly a typo


def seconds(value: object) -> float:
    """Convert a duration to seconds.

    Raises :class:`EnsembleError` (code ``bad-duration``).

    >>> seconds("1h30m"), seconds("1.5h"), seconds(90)
    (5400.0, 5400.0, 90.0)
    """
    found: float | None = None
    text = value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found = float(value) if abs(value) < 1e300 else math.inf
    elif isinstance(value, str) and len(text) <= 100:
        if re.fullmatch(_NUMBER, text, re.ASCII):
            found = float(text)
        elif _WHOLE.fullmatch(text):
            found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if found is not None and 0 <= found <= _LONGEST:
        return found
    short = text if len(text) <= 40 else text[:39] + "…"
    if found is not None or text in ("inf", "infinity", "nan"):
        what = f"the duration {short} is out of range"
        hint = "write 0 for no duration, or at most 100 years"
    else:
        what, hint = f"{short!r} is not a duration", 'write seconds (90), or "10m", "1h30m", "2d"'
    if _CLOCK.fullmatch(text):
        hint = "add units: " + _with_units(text)
    raise EnsembleError(what, hint=hint, code="bad-duration")


def _with_units(text: str) -> str:
    parts = text.split(":")
    if len(parts) == 2:
        return f'"{parts[0]}m{parts[1]}s" or "{parts[0]}h{parts[1]}m"'
    return '"' + "".join(p + u for p, u in zip(parts, "hms", strict=False)) + '"'
