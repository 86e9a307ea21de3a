"""Counters of the running service since its start; ``prometheus`` reads them when it is asked."""

from __future__ import annotations

from collections import Counter

__all__ = ["Counters"]


class Counters:
    """``requests`` are RPCs that are over, by method and name of the status; ``resizes`` requests
    for another size, by outcome."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.resizes: Counter[str] = Counter()
