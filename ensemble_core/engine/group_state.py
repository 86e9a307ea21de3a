"""Standing of one job group in the job table: its jobs that wait or are held, its counts, and what
rules have the table keep of it.
"""

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

#: How counters change: when a job is submitted, as the ``first`` attempt of its index or ``again``;
#: by the outcome of an attempt; when its index is over; and if an earlier job stood in for it.
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

#: A combination of parameters and its replica, as 16 bytes.
Combination = bytes


@dataclass(slots=True, eq=False, repr=False)
class GroupState:
    """One group's standing. ``waiting`` are its jobs without resources, oldest first; ``counts``
    are the metric store's own, ``watches`` those of them that rules wait for. ``reads`` and
    ``tables`` say what is kept of each index, and in which slices it is, ``spoken`` has the names
    of all that; ``columns`` are those that its rows had, of a group with a ``result``."""

    group: JobGroup
    counts: dict[str, int]
    watches: dict[str, Watch] = field(default_factory=dict)
    next_index: int = 0
    waiting: dict[str, JobRecord] = field(default_factory=dict)
    running: int = 0
    #: How many of its jobs failed by each cause.
    causes: dict[str, int] = field(default_factory=dict)
    reads: Reads = field(default_factory=dict)
    tables: list[SliceTable] = field(default_factory=list)
    spoken: set[str] = field(default_factory=set)
    #: What of ``CHANGES`` is counted of single indices.
    spoken_changes: dict[Change, tuple[tuple[str, int], ...]] = field(
        default_factory=lambda: dict.fromkeys(CHANGES, ())
    )
    #: By variable, the filtered variables that are kept of it; and the filters of counts.
    filtered: dict[str, list[str]] = field(default_factory=dict)
    count_filters: list[str] = field(default_factory=list)
    #: Whether these are counted of single indices too.
    counts_passing: bool = False
    #: The combinations that it has had, where a rule may ask for others.
    had: set[bytes] | None = None
    columns: set[str] = field(default_factory=set)
    #: Names of its ``result`` of which it was told that they have no value.
    without_value: list[str] = field(default_factory=list)
    #: An observer understood nothing of what a job of it printed.
    not_understood: bool = False
    #: That a job had no result for it was told.
    told: bool = False
    #: Jobs that ``at_once`` or a limit holds, by id, and their ids by urgency and order, with some
    #: that are held no more.
    held: dict[str, HeldJob] = field(default_factory=dict)
    line: list[tuple[int, int, str]] = field(default_factory=list)
    #: Attempts that were handed over and have no ``clean`` yet.
    handed_over: int = 0
    #: How many elements of its sweep ``submit-next`` has taken, and which stand in the places of
    #: others by now.
    taken: int = 0
    moved: dict[int, int] = field(default_factory=dict)

    @property
    def backlog(self) -> int:
        """Elements of its sweep that ``submit-next`` has not taken yet."""
        return max(0, self.group.size - self.taken)

    def speak(self, names: Iterable[str]) -> None:
        """From now on these are kept: variables of single indices or in slices, counters of single
        indices."""
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
        """How long each waiting job has waited so far, in seconds."""
        for record in self.waiting.values():
            yield max(0.0, now - record.submitted)


def combination(parameters: Mapping[str, object], replica: int) -> Combination:
    """Digest of a combination and its replica, the same for jobs whose parameters are equal: 1
    equals 1.0 and is never ``"1"``."""
    items = [(name, _canonical(parameters[name])) for name in sorted(parameters)]
    return hashlib.blake2b(repr((items, replica)).encode(), digest_size=16).digest()


def _canonical(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
