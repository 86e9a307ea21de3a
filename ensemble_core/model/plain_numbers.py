"""Numbers as text: in commands, paths, environments, options and file names of jobs.

A whole number is written as an integer, however it was computed: 200.0 becomes ``200``, because
no queue takes ``--mem=200.0``.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from ensemble_core.model.numbers import MOST_EXACT

#: Whole floats below this become integers: programs read integers of 64 bits.
_LARGEST = 2.0**63


def whole(value: Any) -> Any:
    """Return a whole float as an integer, and any other value unchanged.

    Floats of 2**63 and more stay floats, because they are no integers for programs. Floats of NumPy
    become Python's.

    >>> whole(200.0), whole(1e16), whole(-0.0), whole(1.5), whole(1e22), whole("2.0")
    (200, 10000000000000000, 0, 1.5, 1e+22, '2.0')
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _LARGEST else float(value)
    if isinstance(value, (str, int)) or not isinstance(value, Real):
        return value
    return whole(float(value))  # a number of another library


def as_text(value: object) -> str:
    """Return a value as text: a whole number as an integer, a boolean as ``true`` or ``false``.

    >>> as_text(200.0), as_text(0.1), as_text(1e22), as_text(True), as_text("2.0")
    ('200', '0.1', '1e+22', 'true', '2.0')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value if type(value) is int else whole(value))


def format_number(value: float) -> str:
    """Return a number with six digits, or with all of them if it is a whole number up to 2^53.

    >>> format_number(9007199254740992.0), format_number(1 / 3), format_number(-0.0)
    ('9007199254740992', '0.333333', '0')
    """
    whole = abs(value) <= MOST_EXACT and value == int(value)
    return f"{value + 0.0:.0f}" if whole else f"{value:.6g}"
