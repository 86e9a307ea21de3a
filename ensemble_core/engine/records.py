"""Records of a run: scopes of rules, attempts, indices, occasions, firings, requests, stops.

Records are plain data that the parts of the engine exchange. The state keeps those that outlast an
event.

- An *index* is a job as its group counts it: one element of the sweep.
- An *attempt* is one submission of an index: a job in the queue with its own id.
- A *scope* is an index, or a slice of a sweep, with its counts and statistics. A rule with ``each``
  has an instance for each scope. ``STAT.NAME`` in the conditions and actions of such a rule is a
  statistic over the scope's values. A statistic is kept only if a rule uses it, but a slice always
  counts its jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ensemble_core.engine.job_states import Outcome
from ensemble_core.engine.rule_index import Instance, RuleState
from ensemble_core.metrics.series import Series, StatisticSpec
from ensemble_core.metrics.store import KEPT, counted, split_filter
from ensemble_core.model.causes import Cause, cause_of
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call, Resize, Retry, Terminate
from ensemble_core.model.events import Event
from ensemble_core.model.jobs import Job, JobGroup, JobState

__all__ = [
    "MOST_ROWS",
    "Index",
    "JobRecord",
    "Link",
    "Occasion",
    "Origin",
    "Pending",
    "Reads",
    "Scope",
    "Slice",
    "SliceKey",
    "SliceTable",
    "Step",
    "Steps",
    "Stop",
    "add_read",
]

#: Maximum number of rows of one job for which jobs can be submitted.
MOST_ROWS = 10_000

Asked = TypeVar("Asked", Call, Resize)

#: A method and its arguments. It is called with the arguments and the event, and returns ``Steps``.
Step: TypeAlias = tuple[Any, ...]
#: The next steps in order (see ``agenda``). ``None`` means that there are no steps, and that no
#: metric rules have to be considered.
Steps: TypeAlias = Sequence[Step] | None

#: The statistics that a scope keeps, by variable. A counter (``count.done``) is a key with no
#: statistics.
Reads = dict[str, list[StatisticSpec]]


def add_read(reads: Reads, name: str, statistics: Mapping[str, StatisticSpec]) -> None:
    """Keep the data for ``STAT.VARIABLE`` from now on."""
    statistic, _, variable = name.partition(".")
    if statistic == "count":
        reads.setdefault(name, [])
        return
    if statistic not in statistics:
        return  # the name is a gauge
    kept = reads.setdefault(variable, [])
    if all(spec.name != statistic for spec in kept):
        kept.append(statistics[statistic])


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """Counts and statistics of one scope, and its instances of rules, by the rules' ``key``."""

    counts: dict[str, int] | None = None
    series: dict[str, Series] | None = None
    instances: dict[int, Instance] | None = None
    #: Number of attempts that pass a filter, by filter and counter (of ``KEPT``).
    filtered: dict[str, dict[str, int]] | None = None

    def count_passing(self, conditions: Iterable[str], counter: str) -> None:
        """Add 1 to this counter for each of these filters."""
        if self.filtered is None:
            self.filtered = {}
        for condition in conditions:
            counts = self.filtered.setdefault(condition, dict.fromkeys(KEPT, 0))
            counts[counter] += 1

    def instance(self, rule: int) -> Instance:
        """Return the rule's instance for this scope, created on first use."""
        if self.instances is None:
            self.instances = {}
        found = self.instances.get(rule)
        if found is None:
            found = self.instances[rule] = Instance()
        return found

    def count(self, counter: str, by: int) -> None:
        """Change a counter."""
        if self.counts is None:
            self.counts = {}
        self.counts[counter] = self.counts.get(counter, 0) + by

    def counted(self, counter: str) -> int:
        """Return the value of a counter."""
        return 0 if self.counts is None else self.counts.get(counter, 0)

    def take(self, variable: str, value: float, now: float, specs: list[StatisticSpec]) -> None:
        """Add a value to the statistics of a variable."""
        if self.series is None:
            self.series = {}
        if variable not in self.series:
            self.series[variable] = Series(specs)
        self.series[variable].record(value, now)

    def read(self, statistic: str, variable: str, now: float) -> float | None:
        """Return the value of ``STAT.VARIABLE`` in this scope, or ``None`` without values."""
        if statistic == "count":
            if not variable.endswith(")"):
                return self.counted(variable)
            counter, condition = split_filter(variable)
            counts = None if self.filtered is None else self.filtered.get(condition)
            return 0 if counts is None else counted(counts, counter)
        series = None if self.series is None else self.series.get(variable)
        return None if series is None else series.scoped(statistic, now)


class SliceKey(NamedTuple):
    """Definition of slices: the groups, and the parameters whose values distinguish the slices."""

    groups: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(slots=True, eq=False, repr=False)
class Slice(Scope):
    """The indices with the same values of some parameters.

    ``order`` is the slice's place in its table; slices are ordered by first submit. ``open`` is the
    number of unfinished indices. ``counters`` has the counters that the metric store has for a
    group.
    """

    key: SliceKey = field(kw_only=True)
    parameters: Mapping[str, object] = field(kw_only=True)
    order: int = field(kw_only=True)
    #: The statistics that the slice keeps. This is the same object as in the slice's table.
    reads: Reads = field(kw_only=True)
    open: int = 0
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEPT, 0))

    @property
    def ever(self) -> int:
        """The number of indices that were ever in the slice."""
        return self.counters["submitted"] - self.counters["repeated"]

    def counted(self, counter: str) -> int:
        return counted(self.counters, counter)


@dataclass(slots=True, eq=False, repr=False)
class SliceTable:
    """All slices of one key. ``reads`` has the statistics that each slice keeps."""

    key: SliceKey
    reads: Reads = field(default_factory=dict)
    slices: dict[tuple[object, ...], Slice] = field(default_factory=dict)

    def of(self, parameters: Mapping[str, object]) -> Slice | None:
        """Return or create the slice for these parameters. Return ``None`` if one is missing."""
        try:
            values = tuple([parameters[name] for name in self.key.parameters])
        except KeyError:
            return None
        found = self.slices.get(values)
        if found is None:
            chosen = dict(zip(self.key.parameters, values, strict=True))
            found = Slice(key=self.key, parameters=chosen, order=len(self.slices), reads=self.reads)
            self.slices[values] = found
        return found


@dataclass(slots=True, eq=False)
class Link:
    """One firing in a chain of firings that cause one another.

    ``depth`` is the number of firings in the chain since a job last finished. ``finishes`` is the
    number of jobs that had finished at the time of this firing.
    """

    rule: str
    parent: Link | None
    depth: int
    finishes: int

    def names(self) -> list[str]:
        """Return the rules of the chain, first to last."""
        link: Link | None = self
        found: list[str] = []
        while link is not None and link.finishes == self.finishes:
            found.append(link.rule)
            link = link.parent
        return found[::-1]


@dataclass(slots=True, eq=False, repr=False)
class JobRecord:
    """An unfinished attempt.

    ``source`` is the group from which the job was created. ``kept`` is the attempt's index, or
    ``None`` while nothing needs the index.
    """

    job: Job
    submitted: float
    link: Link | None
    source: JobGroup | None = None
    kept: Index | None = None
    state: int = JobState.NEW.value
    started: float | None = None
    finished: float | None = None
    status: int | None = None
    exception: str | None = None
    note: str = ""
    #: Why the attempt ended, if its executor reported the cause.
    cause: Cause | None = None
    outcome: Outcome | None = None
    queue_id: object = None
    seen: int = 0
    #: True if a rule that handles failures matched an event of this job.
    concern: bool = False
    #: True if the executor was asked to cancel the job.
    cancelling: bool = False
    #: True if the executor could not cancel the job.
    refused: bool = False
    #: True if an observer understood nothing of the job's output.
    not_understood: bool = False
    #: True if a stop cancelled the job, so that a resume must submit it again.
    stopping: bool = False
    #: Time of the job's newest event, or 0 before the first event.
    newest: float = 0.0
    #: ``files``: the context of the ``start`` event, with the paths of the output. ``rows``: the
    #: number of rows by observer.
    files: Mapping[str, Any] | None = None
    rows: dict[str, int] | None = None
    #: The last value of each column.
    columns: dict[str, Any] | None = None
    #: ``passed``: the filters of counts that the job passed at its submit. ``verdicts``: whether
    #: the job passes other filters that use no columns.
    passed: tuple[str, ...] = ()
    verdicts: dict[str, bool] | None = None
    #: Core-seconds of earlier attempts of the same index.
    earlier: float = 0.0
    #: The job of an earlier run that replaces this attempt, as ``RUN/JOB``.
    reused: str | None = None
    #: The key of the job's input files. They are checked when the job ends.
    inputs: str | None = None

    @property
    def index(self) -> Index:
        """The attempt's index, created on first use."""
        if self.kept is None:
            self.kept = Index(record=self)
        return self.kept

    @property
    def retried(self) -> bool:
        """True if a retry of the job is already decided."""
        return self.kept is not None and self.kept.retry is not None

    @property
    def result(self) -> Mapping[str, Any]:
        """The values of the group's ``result``."""
        return NOTHING if self.kept is None else self.kept.result

    @property
    def spent(self) -> float:
        """The core-seconds of this attempt and of earlier attempts of the same index."""
        if self.started is None or self.finished is None or self.reused is not None:
            return self.earlier
        return self.earlier + self.job.cores * (self.finished - self.started)

    def count_row(self, observer: str, anew: bool) -> None:
        """Count a row of this observer. With ``anew``, the file was truncated or replaced, so the
        count starts again at this row."""
        if self.rows is None:
            self.rows = {}
        self.rows[observer] = 1 if anew else self.rows.get(observer, 0) + 1

    @property
    def why(self) -> Cause | None:
        """The cause of the attempt's end, or ``None``."""
        if self.outcome is None and self.exception is None:
            return None
        return self.cause or cause_of(self.exception, self.status)


@dataclass(slots=True, eq=False, repr=False)
class Index(Scope):
    """A job with all its attempts, kept until the job is over. Most jobs do not need this object.

    ``record`` is the newest attempt. Statistics cover the rows of this attempt, and of earlier
    attempts that it continues (``resume``).
    """

    record: JobRecord = field(kw_only=True)
    slices: tuple[Slice, ...] = ()
    #: The retry that was decided, until its attempt is submitted.
    retry: Retry | None = None
    #: Number of times that the group's ``retry`` was used.
    retried: int = 0
    #: Number of pending function calls about the job's attempts.
    calls: int = 0
    #: ``waited``: the number of the last attempt after which the index waited. ``waits``: whether
    #: the index still waits.
    waited: int = -1
    waits: bool = False
    #: True if a retry was dropped.
    dropped: bool = False
    #: If attempts continue earlier ones, the statistics at the start of the newest attempt.
    base: dict[str, Series] | None = None
    over: bool = False
    #: The stored rows of observers with the option ``rows``, each with its attempt and observer.
    printed: list[tuple[int, str, Mapping[str, float]]] | None = None
    #: Values of the group's ``result``.
    result: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def keep_row(self, observer: str, values: Mapping[str, float]) -> None:
        """Store a row of the newest attempt."""
        if self.printed is None:
            self.printed = []
        if len(self.printed) <= MOST_ROWS:  # store one more row, to detect an overflow
            self.printed.append((self.record.job.attempt, observer, values))

    def forget_rows(self, observer: str) -> None:
        """Drop this observer's rows of the newest attempt, which it will read again."""
        attempt = self.record.job.attempt
        if self.printed is not None:
            self.printed = [row for row in self.printed if row[:2] != (attempt, observer)]


class Occasion(NamedTuple):
    """A trigger event for rules: an event, the event's job if it belongs to this run, and extra
    fields.

    For an instance of a rule with ``each``, ``scope`` is the instance's index or slice.
    """

    event: Event
    record: JobRecord | None = None
    fields: Mapping[str, Any] = NOTHING
    scope: Scope | None = None


@dataclass(slots=True, eq=False)
class Origin:
    """The firing from which a decision comes, as plain data. Plans see it as an ``EngineFiring``.

    ``number`` is the firing's number in the run, and ``link`` is its place in a chain. ``fields``
    has the fields for conditions and messages.
    """

    rule_state: RuleState
    number: int
    link: Link
    occasion: Occasion
    fields: Mapping[str, Any]

    @property
    def rule(self) -> str:
        """The id of the rule."""
        return self.rule_state.rule.id

    @property
    def mark(self) -> dict[str, Any]:
        """The fields that identify the origin in each decision."""
        return {"rule": self.rule, "firing": self.number}

    @property
    def job(self) -> str | None:
        """The id of the event's job, if the job belongs to this run."""
        record = self.occasion.record
        return None if record is None else record.job.id

    def knowing(self, fields: Mapping[str, Any]) -> Origin:
        """Return the same origin with additional fields."""
        return replace(self, fields={**self.fields, **fields})


@dataclass(frozen=True, slots=True)
class Pending(Generic[Asked]):
    """A call or resize without an answer so far. Later firings continue the chain of ``link``."""

    origin: Origin
    link: Link
    decision: Asked

    def retry(self) -> Pending[Asked]:
        """Return the request, to be delivered again; receivers ignore duplicates.

        The request has the rule's present id, which a change of the file may have changed.
        """
        attempt = self.decision.attempt + 1
        return Pending(
            self.origin,
            self.link,
            replace(self.decision, rule=self.origin.rule, attempt=attempt),
        )


@dataclass(slots=True, eq=False)
class Stop:
    """A stop in force: the decision, the deferred events, and the jobs that ended in them."""

    decision: Terminate
    deferred: list[Event] = field(default_factory=list)
    over: dict[str, None] = field(default_factory=dict)
