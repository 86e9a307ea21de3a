"""Counters of groups, slices and jobs."""

from __future__ import annotations

from collections.abc import Mapping

from ensemble_core.engine.group_state import CHANGES, Change, GroupState
from ensemble_core.engine.job_gauges import JobGauges
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.rule_index import RuleIndex
from ensemble_core.metrics.store import MetricStore
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.filters import attempt_fields, filter_of


class Counters:
    """Counts attempts, jobs and rows, and marks the counters that rules wait for as changed."""

    __slots__ = ("_gauges", "_groups", "_metrics", "index", "now")

    def __init__(
        self,
        groups: Mapping[str, GroupState],
        metrics: MetricStore,
        gauges: JobGauges,
        index: RuleIndex,
    ) -> None:
        self.index = index
        #: The engine's time, if counts within a time need it.
        self.now = 0.0
        self._groups = groups
        self._metrics = metrics
        self._gauges = gauges

    def judge_filters(self, record: JobRecord, group: GroupState) -> None:
        """Evaluate the filters in names of counts for an attempt.

        This happens once for each attempt.
        """
        known = attempt_fields(record.job)
        record.passed = tuple(text for text in group.count_filters if filter_of(text).passes(known))

    def count_passing(self, record: JobRecord, counter: str) -> None:
        """Count an attempt for each filter that it passed."""
        self.count_for(record, record.passed, counter)

    def count_for(
        self, record: JobRecord, passed: tuple[str, ...], counter: str, by: int = 1
    ) -> None:
        """Count an attempt, or ``by`` rows of it, for each of these filters."""
        if not passed:
            return
        kept = self._metrics.filtered.get(record.job.group, {})
        for text in passed:
            if text in kept:
                kept[text][counter] += by
        if self._groups[record.job.group].counts_passing:
            record.index.count_passing(passed, counter, by)
        if record.index_record is not None:
            for each in record.index_record.slices:
                each.count_passing(passed, counter, by)

    def count_change(self, group: GroupState, record: JobRecord, change: Change) -> None:
        """Update counters of a group, and mark them as changed if rules wait for them."""
        if group.watches:
            watches, touched = group.watches, self.index.touched
            for counter, _ in CHANGES[change]:
                if counter in watches:
                    touched[watches[counter]] = None
        if self._gauges.active:
            for counter, by in CHANGES[change]:
                if counter == "active":
                    self._gauges.count_active(by)
        for counter, by in group.counted_changes[change]:
            record.index.count(counter, by)
        if self._metrics.recent:
            for variable, recent in self._metrics.recent.get(record.job.group, NOTHING).items():
                if (recent.counter, 1) in CHANGES[change]:
                    recent.add(self._time_of(record))
                    self.index.touched[group.watches[variable]] = None

    def _time_of(self, record: JobRecord) -> float:
        """Return when an attempt ended, arrived or was cancelled, by our clock.

        ``record.newest`` is a time by the queue's clock, and 0 if the queue does not have the job.
        """
        if record.finished is not None:
            return record.finished
        return max(record.newest, record.submitted) if record.newest else self.now

    def count_reused(self, group: GroupState, record: JobRecord) -> None:
        """Count a reused job."""
        group.counts["reused"] += 1
        if record.index_record is not None:
            for each in record.index_record.slices:
                each.counters["reused"] += 1
        self.count_for(record, record.passed, "reused")
        if group.watches or group.counted_changes["reused"]:
            self.count_change(group, record, "reused")

    def count_rows(self, record: JobRecord, by: int) -> None:
        """Change the number of rows of an attempt."""
        group = self._groups[record.job.group]
        group.counts["rows"] += by
        record.observed += by
        if record.passed:
            self.count_for(record, record.passed, "rows", by)
        if "count.rows" in group.kept_names:
            record.index.count("rows", by)
        if record.index_record is not None:
            for each in record.index_record.slices:
                each.counters["rows"] += by
        if "rows" in group.watches:
            self.index.touched[group.watches["rows"]] = None
