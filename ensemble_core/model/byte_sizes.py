"""Parses sizes, such as amounts of memory: a number with a unit, such as ``4G``, or bytes."""

from __future__ import annotations

import math
import re

from ensemble_core.errors import EnsembleError
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import whole

_MEBI = 1 << 20
#: As in Slurm, PBS and Grid Engine, units are powers of 1024.
_UNITS = {"k": 1 << 10, "m": _MEBI, "g": 1 << 30, "t": 1 << 40}
_SIZE = late_pattern(r"(\d+\.?\d*|\.\d+)\s*([kmgt])(?:i?b)?", re.ASCII | re.IGNORECASE)
_MOST = 1 << 60


def memory_bytes(value: object, of: str = "memory") -> int:
    """Convert an amount of memory to bytes, rounded up. A number is a number of bytes.

    ``of`` says, for errors, what the amount is one of.

    Raises :class:`EnsembleError` (code ``bad-memory``).

    >>> memory_bytes("4G"), memory_bytes("1.5 MiB"), memory_bytes(2.0**30)
    (4294967296, 1572864, 1073741824)
    """
    found: float | None = None
    text = (value.strip() if isinstance(value, str) else str(value))[:40]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        found = float(match[1]) * _UNITS[match[2].lower()]
    elif re.fullmatch(r"[\d.]*\d[\d.]*", text, re.ASCII):
        raise _error(f"the amount of {of} {text} has no unit", f'write "{text}M" or "{text}G"')
    if found is None:
        what = f"{text!r} is not an amount of {of}"
        raise _error(what, 'write a number with a unit: "500M", "4G" or "1.5T"')
    if _MEBI <= found <= _MOST:
        return math.ceil(found)
    if 0 < found < _MEBI and not isinstance(value, str):
        text = str(whole(found))
        what = f"{text} means {text} bytes of {of}, which is too little"
        raise _error(what, f'add a unit: "{text}M" or "{text}G"')
    what = f"the amount of {of} {text} is out of range"
    raise _error(what, "write at least 1M, or remove the key")


def _error(what: str, hint: str) -> EnsembleError:
    return EnsembleError(what, hint=hint, code="bad-memory")


def memory_text(amount: int) -> str:
    """Return an amount of memory with its largest suitable unit.

    >>> memory_text(4 << 30), memory_text(1572864), memory_text(1500)
    ('4G', '1.5M', '1.46K')
    """
    for unit in ("t", "g", "m"):
        if amount >= _UNITS[unit]:
            return f"{amount / _UNITS[unit]:.3g}{unit.upper()}"
    return f"{amount / 1024:.3g}K"
