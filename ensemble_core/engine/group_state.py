"""State of a job group: its waiting and held jobs, its counts, and the statistics for rules."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, Literal

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.past_submits import PastSubmits, of_entries, pairs, same_sweep
from ensemble_core.engine.replicas import Replicas
from ensemble_core.engine.rule_index import Watch
from ensemble_core.engine.scopes import Reads, SliceTable
from ensemble_core.metrics.store import counted, split_filter
from ensemble_core.model.job_group import JobGroup
from ensemble_core.quick_dataclass import dataclass, replace

#: Fields of a group that can be set during a run. Those in one tuple belong together.
_SETTABLE: tuple[tuple[str, ...], ...] = (
    ("command", "text"),
    ("at_once", "at_once_each"),
    ("count", "replicated"),
    *(
        (each.name,)
        for each in fields(JobGroup)
        if each.name
        not in (
            *("name", "command", "text", "at_once", "at_once_each", "count", "replicated"),
            *("reads", "compared", "here", "run", "cwd", "more"),
        )
    ),
)

#: Changes that update counters. ``first``: an index is submitted for the first time. ``again``: a
#: further attempt is submitted. ``success``, ``failed``, ``cancelled``: the outcome of an attempt.
#: ``done``, ``lost``: the end of an index. ``reopened``: a lost index is retried on request.
#: ``reused``: a job of an earlier run replaces an attempt.
Change = Literal[
    "first", "again", "success", "failed", "cancelled", "done", "lost", "reopened", "reused"
]
CHANGES: Mapping[Change, tuple[tuple[str, int], ...]] = {
    "first": (("open", 1), ("submitted", 1), ("active", 1)),
    "again": (("submitted", 1), ("active", 1)),
    "success": (("active", -1), ("finished", 1), ("success", 1)),
    "failed": (("active", -1), ("finished", 1), ("failed", 1)),
    "cancelled": (("active", -1), ("cancelled", 1)),
    "done": (("open", -1), ("done", 1)),
    "lost": (("open", -1), ("lost", 1)),
    "reopened": (("open", 1), ("lost", -1)),
    "reused": (("reused", 1),),
}


@dataclass(slots=True, eq=False)
class GroupState:
    """State of one job group."""

    group: JobGroup
    #: The group's counts in the metric store.
    counts: dict[str, int]
    #: The rules that wait for a count.
    watches: dict[str, Watch] = field(default_factory=dict)
    next_index: int = 0
    #: The paced and queued jobs, oldest first.
    waiting: dict[str, JobRecord] = field(default_factory=dict)
    #: Number of jobs that run, and of those that are suspended.
    running: int = 0
    suspended: int = 0
    #: Number of failed jobs by cause.
    causes: dict[str, int] = field(default_factory=dict)
    #: The statistics that are kept for each index.
    reads: Reads = field(default_factory=dict)
    #: The slices that contain jobs of this group.
    tables: list[SliceTable] = field(default_factory=list)
    #: All names of statistics that rules use.
    kept_names: set[str] = field(default_factory=set)
    #: For each change in ``CHANGES``, those counters that are also kept for each index.
    counted_changes: dict[Change, tuple[tuple[str, int], ...]] = field(
        default_factory=lambda: dict.fromkeys(CHANGES, ())
    )
    #: ``filtered``: for each variable, the names with a filter, such as ``max.E(T > 2)``.
    #: ``count_filters``: the filters in names of counts.
    filtered: dict[str, list[str]] = field(default_factory=dict)
    count_filters: list[str] = field(default_factory=list)
    #: True if attempts that pass a filter are also counted for each index.
    counts_passing: bool = False
    #: How many attempts were cancelled although the run had not asked for that, by canceller.
    cancelled_by: dict[str, int] = field(default_factory=dict)
    #: The replicas that were submitted of each combination of parameters, if the group numbers them
    #: or a rule may need to know which combinations are new.
    replicas: Replicas | None = None
    #: The names under ``result`` in all entries of the group. In statistics over several jobs, they
    #: mean the results, also if the jobs print columns with these names.
    results: set[str] = field(init=False)
    #: Names under ``result`` for which a missing value was reported already.
    without_value: list[str] = field(default_factory=list)
    #: Fields that two rules have set to different values at one event, which was reported.
    contested: dict[str, None] = field(default_factory=dict)
    #: True if attempts may continue earlier ones.
    continues: bool = False
    #: True if the replacement of repeated rows was reported.
    reported_repeats: bool = False
    reported_differences: bool = False
    #: True if an observer could not parse any of a job's output.
    unparsed_output: bool = False
    #: True if a result that is missing for this reason was reported.
    reported_unread: bool = False
    #: ``held``: the held jobs by id. ``line``: a heap of their ids by urgency and order, which may
    #: also contain jobs that were released.
    held: dict[str, JobRecord] = field(default_factory=dict)
    line: list[tuple[int, int, str]] = field(default_factory=list)
    #: Held jobs whose values have no slot (``at_once`` with ``each``), as in ``line``.
    blocked: dict[tuple[str, ...], list[tuple[int, int, str]]] = field(default_factory=dict)
    #: The submits of this group, which a resume completes if the file has new values.
    past: PastSubmits = field(default_factory=PastSubmits)
    #: ``taken``: how many elements of the sweep ``submit-next`` has taken. ``moved``: the elements
    #: that were moved, by position.
    taken: int = 0
    moved: dict[int, int] = field(default_factory=dict)
    #: By combination, the jobs that ``submit-next`` has taken and that are no longer in the sweep.
    gone: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.use(self.group)

    def use(self, group: JobGroup) -> None:
        """Use this definition of the group from now on."""
        if (self.taken or self.gone) and not same_sweep(self.group, group):
            self._keep_taken(group)
        self.group = group
        entries = (group, *group.more)
        self.results = {name for entry in entries for name in entry.result}
        self.continues |= any(entry.retry and entry.retry.resume for entry in entries)

    def rebuild_line(self) -> None:
        """Rebuild the line of held jobs, because their slots or urgencies have changed."""
        self.line = [(-each.job.urgency, each.position, job) for job, each in self.held.items()]
        heapq.heapify(self.line)
        self.blocked.clear()

    def _keep_taken(self, group: JobGroup) -> None:
        """Let ``submit-next`` take each combination of a changed sweep that it has not taken."""
        if pairs(self.group, group) is None:
            return  # parameters have other names: it continues at the same position
        before, after = of_entries(self.group), of_entries(group)
        left = {self.moved.get(position, position) for position in range(self.taken, len(before))}
        taken: Counter[tuple[object, ...]] = Counter(self.gone)
        taken.update(key for position, key in enumerate(before) if position not in left)
        rest: list[int] = []
        for position, key in enumerate(after):
            if taken.get(key):
                taken[key] -= 1
            else:
                rest.append(position)
        self.taken, self.gone = len(after) - len(rest), dict(+taken)
        self.moved = {
            at: position for at, position in enumerate(rest, self.taken) if at != position
        }

    def reconfigure(self, before: JobGroup | None, group: JobGroup) -> None:
        """Use a changed definition from the file, ``before`` which the file had another one.

        Fields that were set during the run stay if they have not changed in the file.
        """
        if before is not None and self.group != before:
            group = self._with_set_fields(before, group)
        self.use(group)

    def _with_set_fields(self, before: JobGroup, after: JobGroup) -> JobGroup:
        entries: list[JobGroup] = []
        now, earlier = (self.group, *self.group.more), (before, *before.more)
        for position, entry in enumerate((after, *after.more)):
            if position < min(len(now), len(earlier)):
                one, was = now[position], earlier[position]
                kept: dict[str, Any] = {}
                for names in _SETTABLE:
                    if any(getattr(one, name) != getattr(was, name) for name in names):
                        if all(getattr(entry, name) == getattr(was, name) for name in names):
                            kept |= {name: getattr(one, name) for name in names}
                        elif any(getattr(entry, name) != getattr(one, name) for name in names):
                            self.past.replaced[names[0]] = None
                entry = replace(entry, **kept, reads=entry.reads | one.reads) if kept else entry
            entries.append(replace(entry, more=()))
        return replace(entries[0], more=tuple(entries[1:]))

    @property
    def backlog(self) -> int:
        """Number of elements of the sweep that ``submit-next`` has not taken."""
        return max(0, self.group.size - self.taken)

    @property
    def open(self) -> int:
        """Number of unfinished indices."""
        return counted(self.counts, "open")

    def keep_variables(self, names: Iterable[str]) -> None:
        """Keep these variables for each index or slice from now on, and counters for each index."""
        for name in names:
            self.kept_names.add(name)
            if name.endswith(")"):
                self._keep_filtered(name)
        for change, counters in CHANGES.items():
            self.counted_changes[change] = tuple(
                each for each in counters if f"count.{each[0]}" in self.kept_names
            )

    def _keep_filtered(self, name: str) -> None:
        base, condition = split_filter(name)
        if base.startswith("count."):
            if condition not in self.count_filters:
                self.count_filters.append(condition)
            return
        self.kept_names.add(base)
        kept = self.filtered.setdefault(base, [])
        if name not in kept:
            kept.append(name)

    def ages(self, now: float) -> Iterator[float]:
        """Yield how long each waiting job has waited, in seconds."""
        for record in self.waiting.values():
            yield max(0.0, now - record.waits_since)
