"""Combinations of parameters that a group has had, so that none is submitted twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

__all__ = ["Combination", "combination"]

#: A combination of parameters and its replica, as 16 bytes.
Combination = bytes


def combination(parameters: Mapping[str, object], replica: int) -> Combination:
    """Digest of a combination and its replica, the same for jobs whose parameters are equal: 1
    equals 1.0 and is never ``"1"``."""
    items = [(name, _canonical(parameters[name])) for name in sorted(parameters)]
    return hashlib.blake2b(repr((items, replica)).encode(), digest_size=16).digest()


def _canonical(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
