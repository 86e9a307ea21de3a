"""Reads the API server's messages about quotas."""

from __future__ import annotations

import re

#: Used up, not counted yet, or changed by a concurrent request.
_QUOTA = (
    "exceeded quota",
    "status unknown for quota",
    "cannot be fulfilled on resourcequotas",
)
_NAME = re.compile(r'(?:exceeded quota: |unknown for quota: |resourcequotas ")([^,"\s]+)')
_EXCEEDED = re.compile(r"exceeded quota: .*?, requested: (.*?), used: .*?, limited: (\S*)")
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?\d+)?)([numkKMGTPE]?i?)")
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3}
_UNITS |= {letter: 1e3**power for power, letter in enumerate("MGTPE", 2)}
_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


def is_about_quota(message: str) -> bool:
    """Return whether a request was rejected because of a quota, so that a retry may succeed."""
    return any(words in message for words in _QUOTA)


def quota_of(message: str) -> str:
    """Return the name of the quota, or an empty text if the message is about another problem.

    >>> quota_of("exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2")
    'few'
    >>> quota_of("status unknown for quota: few, resources: pods")
    'few'
    >>> quota_of('Operation cannot be fulfilled on resourcequotas "few": the object has changed')
    'few'
    """
    found = _NAME.search(message)
    return found[1] if found else ""


def never_fits(message: str) -> bool:
    """Return whether a request exceeds the quota even if nothing else uses it.

    >>> never_fits("exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=0, "
    ...            "limited: requests.cpu=1500m")
    True
    """
    found = _EXCEEDED.search(message)
    if found is None:
        return False
    requested, limited = map(_amounts, found.groups())
    return any(amount > limited.get(what, amount) for what, amount in requested.items())


def _amounts(text: str) -> dict[str, float]:
    """Return the amounts in a text such as ``pods=1,requests.memory=2Gi``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        what, _, amount = part.strip().partition("=")
        quantity = _QUANTITY.fullmatch(amount)
        if quantity is not None and quantity[2] in _UNITS:
            found[what] = float(quantity[1]) * _UNITS[quantity[2]]
    return found
