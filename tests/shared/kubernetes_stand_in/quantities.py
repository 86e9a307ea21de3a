"""Quantities of resources, and the canonical form in which the API server stores them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

__all__ = ["amount", "canonical", "store_canonically"]

_FORM = re.compile(r"([+-]?[0-9.]+)(?:[eE]([-+]?[0-9]+)|([KMGTPE]i)|([numkMGTPE])?)")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "": 0, "m": -3, "u": -6, "n": -9}


def amount(text: str) -> Decimal:
    """Return the value of a quantity. Raise :class:`ValueError`."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(text)
    number, exponent, binary, suffix = found.groups()
    if binary:
        return Decimal(number) * (1 << 10 * _BINARY.index(binary))
    return Decimal(number).scaleb(int(exponent or _DECIMAL[suffix or ""]))


def canonical(text: str) -> str:
    """Return the quantity with the largest unit that leaves an integer: ``1000`` is ``1k``."""
    value = amount(text)
    if text.endswith("i") and abs(value) >= 1024 and value == int(value):
        number, power = int(value), 0
        while number % 1024 == 0 and power < len(_BINARY) - 1:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY[power]}"
    for suffix, exponent in _DECIMAL.items():
        scaled = value.scaleb(-exponent)
        if value and scaled == int(scaled):
            unit = (f"e{exponent}" if exponent else "") if "e" in text.lower() else suffix
            return f"{int(scaled)}{unit}"
    return "0"


def store_canonically(spec: Any) -> None:
    """Change the quantities in the containers of a pod's or a Job's ``spec``."""
    pod = ((spec or {}).get("template") or {}).get("spec") or spec or {}
    for each in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
        for given in (each.get("resources") or {}).values():
            if isinstance(given, dict):
                given.update({name: canonical(str(what)) for name, what in given.items()})
