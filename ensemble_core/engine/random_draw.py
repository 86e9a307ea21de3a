"""Random order of jobs, the same on all machines: for ``submit-next`` and ``waiting.random``."""

from __future__ import annotations

import hashlib


def draw(seed: object, number: object, below: int) -> int:
    """Return a pseudo-random integer from 0 to ``below`` - 1, from a hash of the arguments.

    Equal arguments give the same integer on all machines.

    >>> draw(0, 0, 10), draw(0, 1, 10)
    (9, 7)
    """
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % below
