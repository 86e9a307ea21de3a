"""State of one job group in the job table: waiting and held jobs, counts, statistics for rules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ensemble_core.engine.rate_limit import HeldJob
from ensemble_core.engine.records import JobRecord, Reads, SliceTable
from ensemble_core.engine.rule_index import Watch
from ensemble_core.metrics.store import split_filter
from ensemble_core.model.jobs import JobGroup

__all__ = ["CHANGES", "Change", "Combination", "GroupState", "combination"]

#: Changes that update counters: submit of an index's first attempt (``first``) or a further one
#: (``again``); an attempt's outcome; the end of an index; reuse of an earlier job.
Change = Literal["first", "again", "success", "failed", "cancelled", "done", "lost", "reused"]
CHANGES: Mapping[Change, tuple[tuple[str, int], ...]] = {
    "first": (("open", 1), ("submitted", 1), ("active", 1)),
    "again": (("submitted", 1), ("active", 1)),
    "success": (("active", -1), ("finished", 1), ("success", 1)),
    "failed": (("active", -1), ("finished", 1), ("failed", 1)),
    "cancelled": (("active", -1), ("cancelled", 1)),
    "done": (("open", -1), ("done", 1)),
    "lost": (("open", -1), ("lost", 1)),
    "reused": (("reused", 1),),
}

#: Digest (16 bytes) of a combination of parameters and its replica.
Combination = bytes


@dataclass(slots=True, eq=False, repr=False)
class GroupState:
    """State of one group.

    ``waiting`` are its jobs without resources, oldest first. ``counts`` are the metric store's
    counts; ``watches`` has the rules that wait for them. ``reads`` are the statistics kept for each
    index. ``tables`` has the slices. ``spoken`` are all names of statistics in rules. ``columns``
    are the columns of output rows, if the group has a ``result``.
    """

    group: JobGroup
    counts: dict[str, int]
    watches: dict[str, Watch] = field(default_factory=dict)
    next_index: int = 0
    waiting: dict[str, JobRecord] = field(default_factory=dict)
    running: int = 0
    #: Number of failed jobs by cause.
    causes: dict[str, int] = field(default_factory=dict)
    reads: Reads = field(default_factory=dict)
    tables: list[SliceTable] = field(default_factory=list)
    spoken: set[str] = field(default_factory=set)
    #: For each of ``CHANGES``, the counters that are also kept per index.
    spoken_changes: dict[Change, tuple[tuple[str, int], ...]] = field(
        default_factory=lambda: dict.fromkeys(CHANGES, ())
    )
    #: For each variable, the names with a filter, such as ``max.E(T > 2)``; and filters of counts.
    filtered: dict[str, list[str]] = field(default_factory=dict)
    count_filters: list[str] = field(default_factory=list)
    #: True if passing attempts are also counted per index.
    counts_passing: bool = False
    #: Submitted combinations, if a rule may request new ones.
    had: set[bytes] | None = None
    columns: set[str] = field(default_factory=set)
    #: Names of its ``result`` that were already reported as having no value.
    without_value: list[str] = field(default_factory=list)
    #: True if an observer understood nothing of a job's output.
    not_understood: bool = False
    #: True if a result that is missing for that reason was reported.
    told: bool = False
    #: Held jobs by id; and a heap of ids by urgency and order, which may contain released jobs.
    held: dict[str, HeldJob] = field(default_factory=dict)
    line: list[tuple[int, int, str]] = field(default_factory=list)
    #: Number of handed-over attempts without ``clean``.
    handed_over: int = 0
    #: Number of sweep elements that ``submit-next`` has taken; elements that moved, by place.
    taken: int = 0
    moved: dict[int, int] = field(default_factory=dict)

    @property
    def backlog(self) -> int:
        """Number of sweep elements that ``submit-next`` has not taken."""
        return max(0, self.group.size - self.taken)

    def speak(self, names: Iterable[str]) -> None:
        """Start keeping these variables per index or slice, and counters per index."""
        for name in names:
            self.spoken.add(name)
            if name.endswith(")"):
                self._speak_filtered(name)
        for change, counters in CHANGES.items():
            self.spoken_changes[change] = tuple(
                each for each in counters if f"count.{each[0]}" in self.spoken
            )

    def _speak_filtered(self, name: str) -> None:
        base, condition = split_filter(name)
        if base.startswith("count."):
            if condition not in self.count_filters:
                self.count_filters.append(condition)
            return
        self.spoken.add(base)
        kept = self.filtered.setdefault(base, [])
        if name not in kept:
            kept.append(name)

    def ages(self, now: float) -> Iterator[float]:
        """Return how long each waiting job has waited, in seconds."""
        for record in self.waiting.values():
            yield max(0.0, now - record.submitted)


def combination(parameters: Mapping[str, object], replica: int) -> Combination:
    """Return the digest of a combination and its replica. It is equal for 1 and 1.0, not for
    ``"1"``."""
    items = [(name, _canonical(parameters[name])) for name in sorted(parameters)]
    return hashlib.blake2b(repr((items, replica)).encode(), digest_size=16).digest()


def _canonical(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
