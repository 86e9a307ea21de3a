"""Records of jobs that are not over: an attempt, and the index whose attempts these are.

An *index* is a job as its group counts it: one place in the sweep. Each time that it is submitted
is an *attempt*, a job of the queue with an id of its own. Kept by ``job_table``, read by the whole
engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ensemble_core.engine.job_steps import Outcome
from ensemble_core.engine.scopes import Scope, Slice
from ensemble_core.model.causes import Cause, cause_of
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.jobs import Job, JobGroup, JobState

if TYPE_CHECKING:
    from ensemble_core.metrics.series import Series
    from ensemble_core.model.decisions import Retry

__all__ = ["MOST_ROWS", "Index", "JobRecord", "Link"]

#: So many rows of one job may be submitted.
MOST_ROWS = 10_000


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
    #: Seconds of cores that earlier attempts of its index took.
    earlier: float = 0.0

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
        if self.started is None or self.finished is None:
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
