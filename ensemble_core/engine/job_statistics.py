"""Statistics over the values of jobs: durations, rows of observers and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble_core.engine.group_state import GroupState
from ensemble_core.engine.job_counters import Counters
from ensemble_core.engine.job_record import IndexRecord, JobRecord
from ensemble_core.engine.rule_index import RuleIndex
from ensemble_core.metrics.series import UNREADABLE
from ensemble_core.metrics.store import ROWS, VARIABLES, MetricStore
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.events import Observed
from ensemble_core.model.filters import Filter, attempt_fields, filter_in


class Samples:
    """Adds values of jobs to the statistics of the job, of its slices and of its group."""

    __slots__ = ("_counters", "_groups", "_metrics", "index")

    def __init__(
        self,
        groups: Mapping[str, GroupState],
        metrics: MetricStore,
        counters: Counters,
        index: RuleIndex,
    ) -> None:
        self.index = index
        self._groups = groups
        self._metrics = metrics
        self._counters = counters

    def record_result(self, index: IndexRecord, now: float) -> None:
        """Add the result of a done job to the variables of its group."""
        record, metrics = index.record, self._metrics
        name = record.job.group
        group = self._groups[name]
        row = index.result
        duration = record.duration
        if group.filtered and duration is not None:
            row = {**row, "duration": duration}
            if duration >= 0 and "duration" in group.filtered:
                self.sample_durations(group, record, duration, now, with_result=True)
        columns = NOTHING if record.columns is None else record.columns
        for variable, value in index.result.items():
            if not isinstance(value, str):
                if metrics.all_statistics:
                    metrics.add(name, variable)
                # In the statistics of one job, the name of a column means the job's rows.
                own = variable not in columns
                self._add_value(group, record, variable, value, now, row, own=own)

    def repeat(self, record: JobRecord, event: Observed, now: float) -> bool:
        """Record a row of an attempt that repeats steps of earlier attempts.

        It replaces their rows from this step on, but only in the statistics of the job. Those of
        groups and slices cannot remove a value: they keep the earlier one. Return False, and
        record nothing, if the earlier rows are too old to be replaced.
        """
        reads, clock = self._groups[record.job.group].reads, event.clock
        if clock is None or not record.index.withdraw_rows(event.observer, clock, reads):
            return False
        self.observe(record, event, now, repeats=True)
        return True

    def observe(
        self, record: JobRecord, event: Observed, now: float, *, repeats: bool = False
    ) -> None:
        """Record a row that an observer read from the job's output.

        If it ``repeats`` a step, the statistics of groups and slices have this step already.
        """
        observer, values, unreadable = event.observer, event.values, event.unreadable
        record.unreadable = bool(unreadable)
        group = record.job.group
        state = self._groups[group]
        if record.columns is None:
            record.columns = {}
        record.columns.update(values)
        if not repeats:
            self._counters.count_rows(record, 1)
        options = record.job.observe.get(observer)
        if options and options.get("rows"):
            record.index.keep_row(observer, event.clock, values)
        if state.continues and state.reads:
            index = record.index
            if event.clock is not None or index.recent is not None:
                index.begin_row(observer, event.clock, now)
        for variable, value in values.items():
            if variable.partition(".")[0] in VARIABLES:
                continue  # the engine sets this variable; output must not change it
            try:
                number = UNREADABLE if variable in unreadable else float(value)
            except (TypeError, ValueError, OverflowError):
                continue  # a bug in the observer: no value is better than a wrong one
            rows, shared = ROWS + variable, variable not in state.results
            if self._metrics.all_statistics:
                self._metrics.add(group, variable if shared else rows)
            shared = shared and not repeats
            self._add_value(state, record, variable, number, now, values, shared=shared)
            if rows not in values:  # a column with exactly this name takes precedence
                self._add_value(state, record, rows, number, now, values, shared=not repeats)

    def _add_value(
        self,
        group: GroupState,
        record: JobRecord,
        variable: str,
        value: float,
        now: float,
        row: Mapping[str, Any],
        *,
        own: bool = True,
        shared: bool = True,
    ) -> None:
        """Add a value of a job to the statistics of a variable, and to those whose filter passes.

        ``own``: to the statistics of the job alone. ``shared``: to those of its slices and group.
        ``row`` has the columns that filters can use.
        """
        if shared:
            self.record(record.job.group, variable, value, now)
        if variable not in group.kept_names:
            return
        self.sample(group, record, variable, value, now, own=own, shared=shared)
        for name in group.filtered.get(variable, ()):
            if self._passes_filter(record, filter_in(name), row):
                self.sample(group, record, name, value, now, own=own, shared=shared)
                if shared:
                    self.record(record.job.group, name, value, now)

    @staticmethod
    def _passes_filter(record: JobRecord, condition: Filter, row: Mapping[str, Any]) -> bool:
        """Return True if this row passes the filter.

        If the filter uses no column, the answer is stored for the attempt.
        """
        text, verdicts = condition.condition.text, record.verdicts
        if verdicts is not None and text in verdicts:
            return verdicts[text]
        known: Mapping[str, Any] = record.job.parameters
        if not condition.condition.names <= known.keys():
            known = attempt_fields(record.job)
        if condition.condition.names <= known.keys():
            if record.verdicts is None:
                record.verdicts = {}
            found = record.verdicts[text] = condition.passes(known)
            return found
        return condition.passes({**row, **known})

    @staticmethod
    def sample(
        group: GroupState,
        record: JobRecord,
        variable: str,
        value: float,
        now: float,
        *,
        own: bool = True,
        shared: bool = True,
    ) -> None:
        """Add a value of a job to the statistics of its index (``own``) and slices (``shared``)."""
        specs = group.reads.get(variable) if own else None
        if specs:
            record.index.add_value(variable, value, now, specs)
        if shared and record.index_record is not None:
            for each in record.index_record.slices:
                specs = each.reads.get(variable)
                if specs:
                    each.add_value(variable, value, now, specs)

    def sample_durations(
        self,
        group: GroupState,
        record: JobRecord,
        duration: float,
        now: float,
        *,
        with_result: bool,
    ) -> None:
        """Add the duration of an attempt to statistics with filters.

        With ``with_result``, only those statistics are updated whose filter uses the job's result;
        otherwise, only the others.
        """
        source = record.source
        results: Mapping[str, Any] = NOTHING if source is None else source.result
        row = {**record.result, "duration": duration}
        for name in group.filtered["duration"]:
            condition = filter_in(name)
            named = any(each in results for each in condition.names)
            if named is with_result and self._passes_filter(record, condition, row):
                self.sample(group, record, name, duration, now)
                self.record(record.job.group, name, duration, now)

    def record(self, group: str, variable: str, value: float, now: float) -> None:
        """Add a value to the statistics of a variable of a group."""
        key = (group, variable)
        series = self._metrics.series.get(key)
        if series is not None:
            series.record(value, now)
            watches = self.index.series.get(key)
            if watches is not None:
                if value - value != 0.0:  # most statistics skip nan and infinity
                    concerned = [
                        each for each in watches if self._metrics.accepts_nonfinite(each.path)
                    ]
                    watches = dict.fromkeys(concerned)
                self.index.touched.update(watches)
