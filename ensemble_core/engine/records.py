"""Records of a run: scopes of rules, attempts, their indices, occasions, firings, requests, stops.

Plain data that the parts of the engine hand to one another, and that the run's state keeps where it
outlasts an event. An *index* is a job as its group counts it: one place in the sweep. Each time
that it is submitted is an *attempt*, a job of the queue with an id of its own. A *scope* is one
index, or one slice of a sweep, with what is counted and measured of it: a rule with ``each`` has an
instance for each scope. ``STAT.NAME`` in its conditions and actions is a statistic over the scope's
values alone; only those are kept that some rule names, but a slice counts its jobs in any case.
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

#: So many rows of one job may be submitted.
MOST_ROWS = 10_000

Asked = TypeVar("Asked", Call, Resize)

#: A method and its arguments. It is called with the event after them, and returns ``Steps``.
Step: TypeAlias = tuple[Any, ...]
#: What follows, first to last; see ``agenda``. ``None``: nothing, not even a metric rule.
Steps: TypeAlias = Sequence[Step] | None

#: The statistics that are kept in a scope, by the variable that they are of. Of a counter there are
#: none: it is kept where its name (``count.done``) is a key.
Reads = dict[str, list[StatisticSpec]]


def add_read(reads: Reads, name: str, statistics: Mapping[str, StatisticSpec]) -> None:
    """Keep what ``STAT.VARIABLE`` needs."""
    statistic, _, variable = name.partition(".")
    if statistic == "count":
        reads.setdefault(name, [])
        return
    if statistic not in statistics:
        return  # a gauge
    kept = reads.setdefault(variable, [])
    if all(spec.name != statistic for spec in kept):
        kept.append(statistics[statistic])


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """Counts and statistics of one scope, and the instances of rules by the rule's
    ``key``."""

    counts: dict[str, int] | None = None
    series: dict[str, Series] | None = None
    instances: dict[int, Instance] | None = None
    #: By filter, what of ``KEPT`` is counted of the attempts that pass.
    filtered: dict[str, dict[str, int]] | None = None

    def count_passing(self, conditions: Iterable[str], counter: str) -> None:
        """Count one more for each of these filters."""
        if self.filtered is None:
            self.filtered = {}
        for condition in conditions:
            counts = self.filtered.setdefault(condition, dict.fromkeys(KEPT, 0))
            counts[counter] += 1

    def instance(self, rule: int) -> Instance:
        """The instance of this rule here, made at its first look."""
        if self.instances is None:
            self.instances = {}
        found = self.instances.get(rule)
        if found is None:
            found = self.instances[rule] = Instance()
        return found

    def count(self, counter: str, by: int) -> None:
        """Count so many more, or fewer."""
        if self.counts is None:
            self.counts = {}
        self.counts[counter] = self.counts.get(counter, 0) + by

    def counted(self, counter: str) -> int:
        """The value of one of the counters that rules name."""
        return 0 if self.counts is None else self.counts.get(counter, 0)

    def take(self, variable: str, value: float, now: float, specs: list[StatisticSpec]) -> None:
        """Take one more value of a variable of which these statistics are kept."""
        if self.series is None:
            self.series = {}
        if variable not in self.series:
            self.series[variable] = Series(specs)
        self.series[variable].record(value, now)

    def read(self, statistic: str, variable: str, now: float) -> float | None:
        """The value of ``STAT.VARIABLE`` here; ``None`` while there is none."""
        if statistic == "count":
            if not variable.endswith(")"):
                return self.counted(variable)
            counter, condition = split_filter(variable)
            counts = None if self.filtered is None else self.filtered.get(condition)
            return 0 if counts is None else counted(counts, counter)
        series = None if self.series is None else self.series.get(variable)
        return None if series is None else series.scoped(statistic, now)


class SliceKey(NamedTuple):
    """Which slices: of these groups, by the values of these parameters."""

    groups: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(slots=True, eq=False, repr=False)
class Slice(Scope):
    """The indices that have the same values of some parameters.

    ``order`` is its place among the slices of its table, by their first submits. ``open`` counts
    its indices that are not over, which is asked at the end of each; ``counters`` are those of its
    attempts and indices, as the metric store keeps a group's.
    """

    key: SliceKey = field(kw_only=True)
    parameters: Mapping[str, object] = field(kw_only=True)
    order: int = field(kw_only=True)
    #: Those of its table.
    reads: Reads = field(kw_only=True)
    open: int = 0
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEPT, 0))

    @property
    def ever(self) -> int:
        """How many indices there were so far."""
        return self.counters["submitted"] - self.counters["repeated"]

    def counted(self, counter: str) -> int:
        return counted(self.counters, counter)


@dataclass(slots=True, eq=False, repr=False)
class SliceTable:
    """All slices of one key; ``reads`` are the statistics kept in each."""

    key: SliceKey
    reads: Reads = field(default_factory=dict)
    slices: dict[tuple[object, ...], Slice] = field(default_factory=dict)

    def of(self, parameters: Mapping[str, object]) -> Slice | None:
        """The slice of a job with these parameters, made if there is none yet; ``None`` where it
        lacks one of them."""
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
    """One firing in a chain of firings that caused one another.

    ``depth`` counts the firings since a job last finished; ``finishes`` says when that was.
    """

    rule: str
    parent: Link | None
    depth: int
    finishes: int

    def names(self) -> list[str]:
        """The rules of the chain, first to last."""
        link: Link | None = self
        found: list[str] = []
        while link is not None and link.finishes == self.finishes:
            found.append(link.rule)
            link = link.parent
        return found[::-1]


@dataclass(slots=True, eq=False, repr=False)
class JobRecord:
    """An attempt that is not over yet. ``source`` is the group with the fields that it was made of,
    ``kept`` what is kept of its index, once there is something."""

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
    #: Why it ended, where its executor said so.
    cause: Cause | None = None
    outcome: Outcome | None = None
    queue_id: object = None
    seen: int = 0
    #: Whether a rule that concerns itself with failure matched an event of this job.
    concern: bool = False
    #: Whether the executor was told to cancel it.
    cancelling: bool = False
    #: Whether it then could not be.
    refused: bool = False
    #: Whether an observer understood nothing of what it printed.
    not_understood: bool = False
    #: Whether a stop of the run cancelled it, and a resume is to hand it on again.
    stopping: bool = False
    #: When its newest event was, as the executor told it; 0 before the first.
    newest: float = 0.0
    #: The context of its ``start``, which says where its output is, and, of an observed job,
    #: the rows read so far by observer.
    files: Mapping[str, Any] | None = None
    rows: dict[str, int] | None = None
    #: The last value of each column that it printed.
    columns: dict[str, Any] | None = None
    #: The filters of counts that it passed when it was submitted; and of other filters that name
    #: nothing that it prints, whether it passes.
    passed: tuple[str, ...] = ()
    verdicts: dict[str, bool] | None = None
    #: Seconds of cores that earlier attempts of its index took.
    earlier: float = 0.0
    #: The job of an earlier run that stands in for it: ``RUN/JOB``.
    reused: str | None = None
    #: Its identity, if files are part of it, for whoever checks these at its end.
    identity: str | None = None

    @property
    def index(self) -> Index:
        """Its index: from now on something is kept of it."""
        if self.kept is None:
            self.kept = Index(record=self)
        return self.kept

    @property
    def retried(self) -> bool:
        """True if it is to be submitted again already."""
        return self.kept is not None and self.kept.retry is not None

    @property
    def result(self) -> Mapping[str, Any]:
        """The values of the group's ``result`` at the job's success."""
        return NOTHING if self.kept is None else self.kept.result

    @property
    def spent(self) -> float:
        """Seconds of cores that it took, with earlier attempts of its index."""
        if self.started is None or self.finished is None or self.reused is not None:
            return self.earlier
        return self.earlier + self.job.cores * (self.finished - self.started)

    def count_row(self, observer: str, anew: bool) -> None:
        """One more row of this observer was taken; the first, where its file was begun anew."""
        if self.rows is None:
            self.rows = {}
        self.rows[observer] = 1 if anew else self.rows.get(observer, 0) + 1

    @property
    def why(self) -> Cause | None:
        """Why it ended; ``None`` while nothing says that it does."""
        if self.outcome is None and self.exception is None:
            return None
        return self.cause or cause_of(self.exception, self.status)


@dataclass(slots=True, eq=False, repr=False)
class Index(Scope):
    """A job with all its attempts, kept until the last is over and none is to come. Most jobs need
    none of this, and have no index.

    ``record`` is the newest attempt. The statistics are over the attempt's rows, or over those of
    the chain that it continues.
    """

    record: JobRecord = field(kw_only=True)
    slices: tuple[Slice, ...] = ()
    #: The retry that was decided, until its attempt is submitted.
    retry: Retry | None = None
    #: How often the group's own ``retry`` was used.
    retried: int = 0
    #: Functions under way that its attempts' events asked for.
    calls: int = 0
    #: The attempt after which its wait began, and whether it still lasts.
    waited: int = -1
    waits: bool = False
    #: Whether a retry of it was dropped.
    dropped: bool = False
    #: In a chain, the statistics as they were when its newest attempt began.
    base: dict[str, Series] | None = None
    over: bool = False
    #: Rows that observers with ``rows`` read, with the attempt and the observer of each.
    printed: list[tuple[int, str, Mapping[str, float]]] | None = None
    #: What the group's ``result`` gave at its success.
    result: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def keep_row(self, observer: str, values: Mapping[str, float]) -> None:
        """Keep a row that the newest attempt printed."""
        if self.printed is None:
            self.printed = []
        if len(self.printed) <= MOST_ROWS:  # one more says that there were too many
            self.printed.append((self.record.job.attempt, observer, values))

    def forget_rows(self, observer: str) -> None:
        """The newest attempt's rows of this observer come anew."""
        attempt = self.record.job.attempt
        if self.printed is not None:
            self.printed = [row for row in self.printed if row[:2] != (attempt, observer)]


class Occasion(NamedTuple):
    """Occasion that wakes rules: an event, our job that it concerns, and fields of the event's own
    beside those that the job and its event have; for an instance of a rule with ``each``, the index
    or slice that it is about."""

    event: Event
    record: JobRecord | None = None
    fields: Mapping[str, Any] = NOTHING
    scope: Scope | None = None


@dataclass(slots=True, eq=False)
class Origin:
    """The firing that a decision comes from; plain data. Plans see it as an ``EngineFiring``.

    ``number`` counts the firings of the whole run, ``link`` is its place in a chain of them, and
    ``fields`` is what conditions and messages may speak of.
    """

    rule_state: RuleState
    number: int
    link: Link
    occasion: Occasion
    fields: Mapping[str, Any]

    @property
    def rule(self) -> str:
        """The rule's id."""
        return self.rule_state.rule.id

    @property
    def mark(self) -> dict[str, Any]:
        """Fields by which each of its decisions says where it comes from."""
        return {"rule": self.rule, "firing": self.number}

    @property
    def job(self) -> str | None:
        """Our id of the event's job, if it has one that is ours."""
        record = self.occasion.record
        return None if record is None else record.job.id

    def knowing(self, fields: Mapping[str, Any]) -> Origin:
        """The same firing, with these fields beside those that it has."""
        return replace(self, fields={**self.fields, **fields})


@dataclass(frozen=True, slots=True)
class Pending(Generic[Asked]):
    """A call or a resize that was decided and has no answer yet. Firings that follow from the
    answer go on from ``link``."""

    origin: Origin
    link: Link
    decision: Asked

    def retry(self) -> Pending[Asked]:
        """The same request once more: who knows it answers, and does not carry it out twice. Its
        rule may have another id since the file changed."""
        attempt = self.decision.attempt + 1
        return Pending(
            self.origin,
            self.link,
            replace(self.decision, rule=self.origin.rule, attempt=attempt),
        )


@dataclass(slots=True, eq=False)
class Stop:
    """A stop that is in force: what was decided, the events since, and the jobs of which the last
    is among these."""

    decision: Terminate
    deferred: list[Event] = field(default_factory=list)
    over: dict[str, None] = field(default_factory=dict)
