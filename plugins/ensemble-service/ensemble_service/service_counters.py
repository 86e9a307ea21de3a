"""Counters of the running service, for Prometheus."""

from __future__ import annotations

from collections import Counter


class Counters:
    """Counts finished RPCs by method and status, and finished resizes by outcome."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.resizes: Counter[str] = Counter()
