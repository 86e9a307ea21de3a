"""Metrics of the run's jobs: counters, statistics over their values, and gauges.

- Counters, such as ``count.GROUP.failed``: attempts, jobs and rows.
- Statistics, such as ``mean.GROUP-duration``: over durations, rows of observers and results.
- Gauges, such as ``waiting.jobs``: counting starts when a gauge is first used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ensemble_core.engine.group_state import CHANGES, Change, GroupState
from ensemble_core.engine.job_record import IndexRecord, JobRecord
from ensemble_core.engine.random_draw import draw
from ensemble_core.engine.repeated_rows import difference_text, repetition_text
from ensemble_core.engine.rule_index import RuleIndex
from ensemble_core.metrics.series import UNREADABLE
from ensemble_core.metrics.store import BACKLOG, ROWS, VARIABLES, MetricStore
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import Observed
from ensemble_core.model.filters import Filter, attempt_fields, filter_in, filter_of
from ensemble_core.model.jobs import Job, JobState

_QUEUE: dict[int, str] = {state: f"queue.{state.name.lower()}" for state in JobState}
_SUSPENDED = "queue.suspended"
#: Gauges that have the number of nodes of one waiting job as their value (0 if no job waits). Rules
#: on them are checked at submits and heartbeats.
_OF_ONE = ("waiting.next", "waiting.smallest", "waiting.largest", "waiting.random")


class JobCounters:
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


class JobStatistics:
    """Adds values of jobs to the statistics of the job, of its slices and of its group."""

    __slots__ = ("_counters", "_groups", "_metrics", "index")

    def __init__(
        self,
        groups: Mapping[str, GroupState],
        metrics: MetricStore,
        counters: JobCounters,
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

    def repeat(self, record: JobRecord, event: Observed, now: float) -> Iterator[Log]:
        """Record a row of an attempt that repeats steps of earlier attempts; yield what to report.

        It replaces their rows from this step on, but only in the statistics of the job. Those of
        groups and slices cannot remove a value: they keep the earlier one. If the earlier rows are
        too old to be replaced, the row is skipped.
        """
        group, index, clock = self._groups[record.job.group], record.index, event.clock
        replaced = clock is not None and index.withdraw_rows(event.observer, clock, group.reads)
        if replaced:
            self.observe(record, event, now, repeats=True)
        if index.repeated is None:
            return
        job, last = record.job.id, index.repeated[event.observer]
        if not group.reported_repeats:
            group.reported_repeats = True
            yield Log(message=repetition_text(job, event.observer, last, replaced), level="info")
        if clock == last and not group.reported_differences and index.before is not None:
            text = difference_text(job, event, last, index.before, replaced)
            if text is not None:
                group.reported_differences = True
                yield Log(message=text, level="warning")

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


class JobGauges:
    """Gauges of the jobs of this run. They are updated once ``active`` is true."""

    __slots__ = (
        "_active", "_groups", "_lines", "_metrics", "_nodes", "_records", "_sizes", "_states",
        "_suspended", "_waiting", "active", "heartbeats", "index", "queue_reported",
    )  # fmt: skip

    def __init__(
        self,
        groups: Mapping[str, GroupState],
        records: Mapping[str, JobRecord],
        metrics: MetricStore,
        index: RuleIndex,
    ) -> None:
        #: True if the executor itself reports ``queue.*`` and ``waiting.nodes``. Its values are
        #: then used, except for ``queue.active`` and ``queue.suspended``.
        self.queue_reported = False
        #: Number of heartbeats so far; each one draws ``waiting.random`` again.
        self.heartbeats = 0
        self.index = index
        self.active = False
        self._groups = groups
        self._records = records
        self._metrics = metrics
        self._active = 0
        self._states = [0] * len(JobState)
        self._suspended = 0
        self._nodes = 0
        self._waiting = 0
        #: How many waiting jobs need a given number of nodes.
        self._sizes: dict[int, int] = {}
        #: For each urgency, the number of nodes of each waiting job, in the order of submission.
        #: These are ordered dicts, because finding the first entry of a plain dict gets slower as
        #: entries are removed.
        self._lines: dict[int, OrderedDict[str, int]] = {}

    def keep(self) -> None:
        """Count the current jobs now, and all changes from now on."""
        if self.active:
            return
        self.active = True
        for group in self._metrics.counts:
            self._active += self._metrics.count(group, "active")
        for record in self._records.values():
            if record.state == "suspended":
                self._suspended += 1
            elif record.state not in ("looking", "held") and record.reused is None:
                self._states[record.phase] += 1
        over = sum(each["submitted"] for each in self._metrics.counts.values()) - len(self._records)
        self._states[JobState.INACTIVE] = over
        for record in sorted(self._records.values(), key=lambda each: each.submitted):
            if record.job.id in self._groups[record.job.group].waiting:
                self._begin_to_wait(record.job)

    # -- updates, while they are active ------------------------------------------------------------

    def count_active(self, by: int) -> None:
        """Update the number of active jobs."""
        self._active += by
        self._touch("queue.active", self._active)

    def enqueue(self, job: Job) -> None:
        """Count a job as waiting in the queue."""
        self._states[JobState.NEW] += 1
        self.wait_again(job)

    def wait_again(self, job: Job) -> None:
        """Count a job as waiting in the queue, after the count of its state was updated."""
        self._begin_to_wait(job)
        if self.index.gauges:
            self._update_waiting()
            for gauge in _OF_ONE:
                if gauge in self.index.gauges:
                    self._touch(gauge, self.value(gauge))

    def _begin_to_wait(self, job: Job) -> None:
        nodes = job.nodes
        self._nodes += nodes
        self._waiting += 1
        self._sizes[nodes] = self._sizes.get(nodes, 0) + 1
        self._lines.setdefault(job.urgency, OrderedDict())[job.id] = nodes

    def dequeue(self, job: Job) -> None:
        """Stop counting a job as waiting, because it has resources or is over."""
        nodes = job.nodes
        self._nodes -= nodes
        self._waiting -= 1
        left = self._sizes[nodes] - 1
        if left:
            self._sizes[nodes] = left
        else:
            del self._sizes[nodes]
        line = self._lines[job.urgency]
        del line[job.id]
        if not line:
            del self._lines[job.urgency]
        if self.index.gauges:
            self._update_waiting()

    def move(self, before: int, after: int) -> None:
        """Count a change of a job's state."""
        states = self._states
        states[before] -= 1
        states[after] += 1
        if self.index.gauges and not self.queue_reported:
            self._touch(_QUEUE[before], states[before])
            self._touch(_QUEUE[after], states[after])

    def suspend(self, by: int) -> None:
        """Count a running job as suspended, or (``by`` = -1) a suspended job as running."""
        self._suspended += by
        self._states[JobState.RUN] -= by
        self._touch(_SUSPENDED, self._suspended)
        if not self.queue_reported:
            self._touch(_QUEUE[JobState.RUN], self._states[JobState.RUN])

    def leave(self, state: int) -> None:
        """Stop counting a job in its current state, because it will be handed over again."""
        self._states[state] -= 1
        if self.index.gauges and not self.queue_reported:
            self._touch(_QUEUE[state], self._states[state])

    def taken(self, group: str) -> None:
        """Update the gauge of a group's backlog."""
        gauge = BACKLOG + group
        if gauge in self.index.gauges:
            self._touch(gauge, self.value(gauge))

    def _update_waiting(self) -> None:
        if not self.queue_reported:
            self._touch("waiting.nodes", self._nodes)
        self._touch("waiting.jobs", self._waiting)

    def _touch(self, gauge: str, value: float | None) -> None:
        watch = self.index.gauges.get(gauge)
        if watch is not None and value is not None:
            self._metrics.gauges[gauge] = value
            self.index.touched[watch] = None

    # -- queries -------------------------------------------------------------------------------

    @property
    def phases(self) -> Sequence[int]:
        """Number of jobs in each state of RFC 21; suspended jobs do not count."""
        return self._states

    def refresh(self, gauge: str) -> None:
        """Update a gauge in the metric store, if it is one of the run's own gauges."""
        value = self.value(gauge)
        if value is not None:
            self._metrics.gauges[gauge] = value

    def fill(self) -> None:
        """Update all gauges, for code that reads every metric."""
        names = [
            *_QUEUE.values(),
            "queue.active",
            _SUSPENDED,
            "waiting.nodes",
            "waiting.jobs",
            *_OF_ONE,
        ]
        for gauge in (*names, *(BACKLOG + group for group in self._groups)):
            if gauge != _QUEUE[JobState.NEW]:
                self.refresh(gauge)

    def value(self, gauge: str) -> float | None:
        """Return the value of a gauge, or ``None`` if the executor reports it."""
        if gauge.startswith(BACKLOG):
            return self._groups[gauge.removeprefix(BACKLOG)].backlog
        self.keep()
        if gauge in _OF_ONE:
            return self._waiting_gauge(gauge)
        if gauge == "queue.active":
            return self._active
        if gauge == _SUSPENDED:
            return self._suspended
        if gauge == "waiting.jobs":
            return self._waiting
        if self.queue_reported:
            return None
        if gauge == "waiting.nodes":
            return self._nodes
        return next((self._states[at] for at, name in _QUEUE.items() if name == gauge), None)

    def _waiting_gauge(self, gauge: str) -> int:
        if not self._waiting:
            return 0
        if gauge == "waiting.smallest":
            return min(self._sizes)
        if gauge == "waiting.largest":
            return max(self._sizes)
        if gauge == "waiting.next":
            # A queue's next job is the oldest one with the highest urgency.
            return next(iter(self._lines[max(self._lines)].values()))
        counts = self._metrics.counts
        submitted = sum(counts[name]["submitted"] - len(x.held) for name, x in self._groups.items())
        position = draw("waiting.random", f"{submitted}.{self.heartbeats}", self._waiting)
        for nodes in sorted(self._sizes):
            position -= self._sizes[nodes]
            if position < 0:
                return nodes
        raise AssertionError("the count of waiting jobs is inconsistent")
