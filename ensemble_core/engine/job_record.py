"""Records of jobs that are not over: ``JobRecord`` for an attempt, ``IndexRecord`` for a job.

- *Attempt*: one submission of a job, with its own id in the queue.
- *Index*: a job with all its attempts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ensemble_core.engine.job_states import CANCEL, AttemptState, CancelState, IndexState, Outcome
from ensemble_core.engine.repeated_rows import RecentRows, without_discarded
from ensemble_core.engine.scopes import Reads, Scope, Slice
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.store import VARIABLES, split_filter
from ensemble_core.model.causes import Cause, cause_of
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Retry
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job, JobState
from ensemble_core.quick_dataclass import dataclass

#: Values of ``JobRecord.cancelled_by``: the run asked for the cancel, or the canceller is unknown.
BY_RUN, BY_OTHERS = "run", "others"
#: For how many rows of one job ``submit-rows`` can submit jobs at most.
MOST_ROWS = 10_000


@dataclass(slots=True, eq=False)
class JobRecord:
    """An attempt that is not over."""

    job: Job
    submitted: float
    link: Link | None
    #: The group from which the job was created.
    source: JobGroup | None = None
    #: The attempt's index, or ``None`` as long as nothing needs the index.
    index_record: IndexRecord | None = None
    #: Only ``JobTable.move`` changes the state. ``phase`` is the state in RFC 21.
    state: AttemptState = "new"
    phase: int = JobState.NEW.value
    #: The rule and firing that submitted the attempt, and its position among held jobs.
    origin: tuple[str | None, int] = (None, 0)
    position: int = 0
    #: The time of the last start; ``None`` while the job waits, also after a ``requeue``.
    #: ``began``: the time of the first start.
    started: float | None = None
    began: float | None = None
    #: Since when the job runs, or since when it is suspended.
    runs_since: float | None = None
    suspended: float | None = None
    #: Seconds that it ran before ``runs_since``. At ``finish``, all seconds that it ran.
    ran: float = 0.0
    #: The time of the submit or of the last ``requeue``, and the seconds that the job had waited
    #: until then.
    waits_since: float = 0.0
    waited: float = 0.0
    finished: float | None = None
    status: int | None = None
    exception: str | None = None
    note: str = ""
    #: Why the attempt ended, if the executor reported a cause.
    cause: Cause | None = None
    #: Who cancelled the attempt: ``BY_RUN``, a user's name or ``BY_OTHERS``.
    cancelled_by: str | None = None
    outcome: Outcome | None = None
    queue_id: object = None
    seen: int = 0
    #: True if a rule that handles failures has matched an event of this job.
    failure_rule_matched: bool = False
    #: Only ``change_cancel`` changes the state of the cancel.
    cancel: CancelState = "none"
    #: True if an observer could not parse any of the job's output.
    unparsed_output: bool = False
    #: Whether the newest row has a value that could not be read.
    unreadable: bool = False
    #: Time of the job's latest event, or 0 before the first one.
    newest: float = 0.0
    #: ``files``: the context of the ``start`` event, with the paths of the output. ``rows``: the
    #: number of rows by observer.
    files: Mapping[str, Any] | None = None
    rows: dict[str, int] | None = None
    #: Number of all rows, also of files that were truncated or replaced.
    observed: int = 0
    #: The last value of each column, and the last clock of each observer.
    columns: dict[str, Any] | None = None
    clocks: dict[str, float] | None = None
    #: ``passed``: the filters in names of counts that the job passed when it was submitted.
    #: ``verdicts``: whether it passes other filters that use no column.
    passed: tuple[str, ...] = ()
    verdicts: dict[str, bool] | None = None
    #: Core-seconds of earlier attempts of the index.
    earlier: float = 0.0
    #: The job of an earlier run that replaces this attempt, as ``RUN/JOB``.
    reused: str | None = None
    #: Key of the job's input files, which are checked when the job ends.
    inputs: str | None = None

    def change_cancel(self, cause: str) -> None:
        """Change the state of the cancel, if the table ``CANCEL`` has this cause."""
        self.cancel = CANCEL[self.cancel].get(cause, self.cancel)

    @property
    def runs(self) -> bool:
        """True if the job has processes that the run is not ending. It may be suspended."""
        return self.state in ("running", "suspended") and not self.cancelling

    @property
    def waits(self) -> bool:
        """True if the job waits in the queue, and nothing ends it."""
        return self.state == "queued" and self.cancel == "none" and self.exception is None

    @property
    def cancelling(self) -> bool:
        """True if the executor was asked to cancel the job, other than by a stop."""
        return self.cancel in ("asked", "refused")

    @property
    def index(self) -> IndexRecord:
        """The index to which this attempt belongs. The object is created on first use."""
        if self.index_record is None:
            self.index_record = IndexRecord(record=self)
        return self.index_record

    @property
    def retried(self) -> bool:
        """True if a retry of the job has been decided already."""
        return self.index_record is not None and self.index_record.retry is not None

    @property
    def cancelled_by_others(self) -> bool:
        """True if the attempt was cancelled, and the run had not asked for that."""
        return self.outcome == "cancelled" and self.cancelled_by != BY_RUN

    @property
    def failed(self) -> bool:
        """True if the attempt has ended in a way that has to be handled (law 7 in ``engine``)."""
        return self.outcome == "failed" or self.cancelled_by_others

    @property
    def result(self) -> Mapping[str, Any]:
        """The values of the group's ``result``."""
        return NOTHING if self.index_record is None else self.index_record.result

    @property
    def spent(self) -> float:
        """Core-seconds of this attempt and of earlier attempts of the index."""
        return self.earlier if self.reused is not None else self.earlier + self.job.cores * self.ran

    @property
    def duration(self) -> float | None:
        """The seconds that the attempt ran, or ``None`` if it did not start or finish.

        The time while it was suspended does not count; the time before a ``requeue`` does.
        """
        return None if self.started is None or self.finished is None else self.ran

    def duration_until(self, now: float) -> float | None:
        """Return the seconds that the attempt ran until now, or ``None`` if it did not start."""
        if self.started is None:
            return None
        return self.ran + (0.0 if self.runs_since is None else now - self.runs_since)

    @property
    def pending(self) -> float | None:
        """The seconds that the attempt waited in the queue, or ``None`` while it waits."""
        return None if self.started is None else self.waited + (self.started - self.waits_since)

    def count_row(self, observer: str, restarted: bool) -> None:
        """Count a row of an observer.

        With ``restarted``, the file was truncated or replaced, so this row is the first one.
        """
        if self.rows is None:
            self.rows = {}
        self.rows[observer] = 1 if restarted else self.rows.get(observer, 0) + 1

    @property
    def why(self) -> Cause | None:
        """Why the attempt ended, or ``None`` before its end."""
        if self.outcome is None and self.exception is None:
            return None
        return self.cause or cause_of(self.exception, self.status)


@dataclass(slots=True, eq=False)
class IndexRecord(Scope):
    """A job with all its attempts, until it is over. Created only for jobs that need it."""

    #: The newest attempt. The statistics cover its rows and, if it continues earlier attempts
    #: (``resume``), also their rows.
    record: JobRecord = field(kw_only=True)
    slices: tuple[Slice, ...] = ()
    #: The retry that was decided, until its attempt is submitted.
    retry: Retry | None = None
    #: How often the group's ``retry`` was used.
    retried: int = 0
    #: Number of pending calls of functions because of the job's attempts.
    calls: int = 0
    #: ``waited``: the last attempt after which the index had to wait for its retry. ``waits``:
    #: whether it still waits.
    waited: int = -1
    waits: bool = False
    #: True if a retry was dropped.
    dropped: bool = False
    #: True if the index is lost and counts as a failure that no rule has handled.
    unhandled: bool = False
    #: If attempts continue earlier ones: the statistics when the newest attempt started.
    base: dict[str, Series] | None = None
    #: ``recent``: the newest rows, if attempts may continue earlier ones and rows have a clock.
    #: ``base_recent``: those when the newest attempt started.
    recent: RecentRows | None = None
    base_recent: RecentRows | None = None
    #: By observer: the attempt that has withdrawn rows of earlier ones, and from which clock on.
    withdrawn: dict[str, tuple[int, float]] | None = None
    #: ``continues``: whether the newest attempt continues earlier ones. ``repeated``: if so, the
    #: last clock of each observer; rows up to this clock repeat earlier ones.
    continues: bool = False
    repeated: dict[str, float] | None = None
    #: If the newest attempt continues an earlier one: the last values that this one had printed.
    before: Mapping[str, Any] | None = None
    #: Only ``JobTable.move_index`` changes the state.
    state: IndexState = "open"
    #: Rows of observers with the option ``rows``, each with its attempt, observer and clock.
    printed: list[tuple[int, str, float | None, Mapping[str, float]]] | None = None
    #: The values under the group's ``result``.
    result: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    @property
    def over(self) -> bool:
        """True if no further attempt follows."""
        return self.state in ("done", "lost")

    def forget_earlier(self) -> None:
        """Start the statistics and the number of rows again."""
        self.series = self.printed = self.repeated = self.recent = self.withdrawn = None
        if self.filtered:
            for counts in self.filtered.values():
                counts["rows"] = 0
        if self.counts is not None and "rows" in self.counts:
            self.counts["rows"] = 0

    def keep_row(self, observer: str, clock: float | None, values: Mapping[str, float]) -> None:
        """Store a row of the newest attempt."""
        if self.printed is None:
            self.printed = []
        if len(self.printed) <= MOST_ROWS:  # store one row more, to detect an overflow
            self.printed.append((self.record.job.attempt, observer, clock, values))

    def repeats(self, observer: str, clock: float | None) -> bool:
        """Return True if an earlier attempt has printed a row with this clock or a later one."""
        if self.repeated is None or clock is None:
            return False
        return observer in self.repeated and clock <= self.repeated[observer]

    def begin_row(self, observer: str, clock: float | None, now: float) -> None:
        """Note that the values that follow are those of this row, so that it can be withdrawn."""
        if self.recent is None:
            earlier = {**(self.repeated or {}), **(self.record.clocks or {})}
            self.recent = RecentRows.after(self.series, earlier)
        self.recent.begin(self.record.job.attempt, observer, clock, now, self.series)

    def add_value(
        self, variable: str, value: float, now: float, specs: list[StatisticSpec]
    ) -> None:
        Scope.add_value(self, variable, value, now, specs)
        if self.recent is not None:
            self.recent.add(variable, value)

    def withdraw_rows(self, observer: str, clock: float, reads: Reads) -> bool:
        """Withdraw the observer's rows of earlier attempts from this clock on, if the newest
        attempt has not done so yet. ``reads``: the statistics that are kept for the job.

        Return False if the statistics can no longer be calculated without these rows.
        """
        attempt = self.record.job.attempt
        by, since = (self.withdrawn or {}).get(observer, (-1, math.inf))
        if by == attempt and since <= clock:
            return True
        if reads:

            def add(series: dict[str, Series], variable: str, value: float, now: float) -> None:
                if variable not in series:
                    series[variable] = Series(reads[variable])
                series[variable].record(value, now)

            recent = self.recent
            left = None if recent is None else recent.withdraw(attempt, observer, clock, add)
            if left is None:
                return False
            others = {name: each for name, each in (self.series or {}).items() if _no_column(name)}
            self.series = left | others
        if self.printed is not None:
            self.printed, _ = without_discarded(self.printed, attempt, observer, clock)
        self.withdrawn = {**(self.withdrawn or {}), observer: (attempt, clock)}
        return True

    def forget_rows(self, observer: str) -> None:
        """Drop the rows of the newest attempt that this observer will read again."""
        attempt = self.record.job.attempt
        if self.printed is not None:
            self.printed = [row for row in self.printed if row[:2] != (attempt, observer)]


@dataclass(slots=True, eq=False)
class Link:
    """A firing in a chain, in which each firing caused the next one."""

    rule: str
    parent: Link | None
    #: Position in the chain, counted since a job last finished.
    depth: int
    #: Number of jobs that had finished when the rule fired.
    finishes: int

    def names(self) -> list[str]:
        """Return the rules in the chain, first to last."""
        link: Link | None = self
        found: list[str] = []
        while link is not None and link.finishes == self.finishes:
            found.append(link.rule)
            link = link.parent
        return found[::-1]


def _no_column(variable: str) -> bool:
    """Return True for a variable that is no column of rows, such as the duration."""
    return split_filter(variable)[0].partition(".")[0] in VARIABLES
