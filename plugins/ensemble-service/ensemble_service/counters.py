"""Counters of the running service since its start, read by ``prometheus`` on each scrape."""

from __future__ import annotations

from collections import Counter

__all__ = ["Counters"]


class Counters:
    """Counts finished RPCs (``requests``) by method and status, and ``resizes`` by outcome."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.resizes: Counter[str] = Counter()
