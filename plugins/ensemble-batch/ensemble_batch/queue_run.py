"""One open run on a queue: its jobs that are not over, and what the threads know of them.

Made by ``QueueExecutor``; ``Submission``, ``Inquiry`` and ``Recovery`` work on it. ``BatchRun``
and ``ReportRun`` are those of queues whose jobs have a wrapper.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

from ensemble_batch import pace
from ensemble_batch.hooks import QueueHooks, QueueJob
from ensemble_batch.job_table import JobLife
from ensemble_batch.outlet import Outlet
from ensemble_batch.output_files import OutputFiles, Place
from ensemble_batch.records import Records, Sent
from ensemble_core import Emit, Job, JobEvent, Run

__all__ = ["QueueRun", "mark_of"]

_T = TypeVar("_T")


def mark_of(tag: str) -> str:
    """A short mark of a run, for names of its jobs and folders.

    >>> mark_of("melt-20261121T074954-e9d91d")
    'bd94cc00'
    """
    return hashlib.sha256(tag.encode("utf-8", "surrogateescape")).hexdigest()[:8]


class QueueRun:
    """The state of one run; all but :meth:`call` is used with ``lock`` held.

    ``lives`` are the jobs that are not over, ``ids`` their names, ``by_id`` the same jobs by the
    queue's ids; ``sent`` the batches that have such jobs, ``left`` how many of each. ``cancels``
    are ids that the queue is to end, and when (monotonic seconds, as is ``ask_at``, when it is
    asked next: infinite while it has no jobs). ``early`` is what the queue has told of ids that it
    has not yet returned, while a batch is handed in. ``drops`` counts jobs that are over.
    """

    #: Whether a job's first copy is the only one that runs anything, whatever the queue does.
    claims: ClassVar[bool] = False
    #: Whether a cancelled job may be over while the queue has it.
    ends_copies: ClassVar[bool] = True

    def __init__(
        self,
        hooks: QueueHooks,
        run: Run,
        emit: Emit,
        folder: str,
        records: Records,
        places: tuple[str, str],
    ) -> None:
        self.hooks = hooks
        self.run = run
        self.records = records
        self.outlet = Outlet(hooks.name, run.clock, emit, folder)
        self.output = OutputFiles(*places, records.was_emptied, self._begun)
        self.mark = mark_of(run.tag)
        self.note = f"cancelled by run {run.tag}"
        self.lock = threading.Condition()
        self.events: list[JobEvent] = []
        self.lives: dict[str, JobLife] = {}
        self.by_id: dict[str, JobLife] = {}
        self.ids: set[str] = set()
        self.sent: dict[str, Sent] = {}
        self.left: dict[str, int] = {}
        self.cancels: dict[str, float] = {}
        self.early: dict[str, QueueJob] | None = None
        self.ask_at = math.inf
        self.drops = 0
        self.gauges: Mapping[str, float] = {}
        self.closed = False
        #: Whether an earlier controller's jobs were looked for, if there was one.
        self.sought = not records.resumed
        self._calling = [threading.RLock()] * 2
        if hooks.lanes == 2:
            self._calling[1] = threading.RLock()

    def call(self, what: Callable[[], _T], lane: int = 0) -> _T:
        """Ask the plugin, one thread at a time in each lane: 1 is that of batches."""
        with self._calling[lane]:
            return what()

    def now(self) -> float:
        return self.run.clock()

    def _begun(self, path: str) -> None:
        self.outlet.write(lambda: self.records.empty(path))

    def learn(self, life: JobLife, queue_id: str) -> None:
        """The queue's id of a job. A queue that crashed may give one away again: it is that of the
        job which was handed in last."""
        if life.queue_id is not None and self.has_id(life):
            del self.by_id[life.queue_id]
        life.queue_id = queue_id
        other = self.by_id.get(queue_id)
        if other is None or other.handed_at <= life.handed_at:
            self.by_id[queue_id] = life

    def has_id(self, life: JobLife) -> bool:
        """True if the queue means this job by its id."""
        return life.queue_id is not None and self.by_id.get(life.queue_id) is life

    # -- what differs where jobs have a wrapper ------------------------------------------------

    def key(self, orders: Sequence[tuple[Job, Place]]) -> str:
        """The key of a new batch: the same for the same jobs, so that they are handed in under one
        name, also by a later controller."""
        text = "\0".join((self.run.tag, *(job.id for job, _ in orders)))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def name(self, key: str, attempt: int) -> str:
        """The name that a batch is handed in under."""
        return f"ens_{self.mark}_{key}"

    def script(self, key: str, name: str, orders: Sequence[tuple[Job, Place]]) -> str:
        """The path of the script of a batch that is handed in under this name; empty if it has
        none. Raises :class:`OSError`."""
        return ""

    def void(self, name: str) -> None:
        """See to it that a batch which was handed in under this name, and is not seen, does not
        run if it arrives. Raises :class:`OSError`."""

    def read(self) -> bool:
        """Process the reports of wrappers. True if there were any."""
        return False

    def goes_on(self, life: JobLife, row: QueueJob) -> None:
        """The queue says that a job is not over."""
        now = self.now()
        if row.state == "running":
            life.started(now if row.began is None else row.began, row.host, now)

    def ends(self, life: JobLife, row: QueueJob) -> bool:
        """The queue says that a job is over; whether that settles it."""
        known = row.status is not None or row.exception is not None or life.cancelled
        if known:
            life.finished(row, self.now(), self.note)
        return known

    def doomed(self, life: JobLife | None) -> bool:
        """True if the queue is to end this job as soon as its id is known."""
        return life is None or life.over or life.cancelled

    def found_twice(self, life: JobLife, queue_id: str) -> None:
        """The queue has two jobs in the place of one, the second under this id."""

    def never_runs(self, life: JobLife) -> bool:
        """See to it that a job which the queue does not have never runs; false if it has begun."""
        return True

    def cancel(self, life: JobLife) -> None:
        """The run does not want this job any more."""
        life.cancelled = True
        if life.queue_id is not None and self.has_id(life):
            self.cancels.setdefault(life.queue_id, 0.0)

    def bar(self, life: JobLife) -> bool:
        """See to it that a job which the queue has lost never runs, if it did not begin; false
        where it has begun after all, or where that cannot be settled now."""
        return True

    def clear(self, life: JobLife, sent: Sent) -> None:
        """Remove the files of a job that is over, or of one that is being handed in."""

    def clear_batch(self, key: str) -> None:
        """Remove the files of a batch without jobs."""

    def remove(self) -> None:
        """Remove all files; nobody is left who would use them."""

    # -- jobs of which nothing more is heard ---------------------------------------------------

    def lose(self, life: JobLife) -> None:
        """Report a job as lost of which neither the queue nor its wrapper says anything."""
        if self.bar(life):
            note = f"{self.hooks.name} does not know this job any more, and it has left no word"
            life.gone("lost", note, None, self.now())

    # -- telling -------------------------------------------------------------------------------

    def publish(self) -> None:
        """Record what has happened on disk, then emit it."""
        events, self.events[:] = self.events[:], []
        if events:
            self.outlet.write(lambda: self.records.tell(events))
            self.outlet.add(events)
        if not self.closed:
            self.outlet.emit()
        for event in events:
            life = self.lives.get(event.job) if event.name == "clean" else None
            if life is not None:
                self._drop(life)

    def _drop(self, life: JobLife) -> None:
        """A job is over."""
        del self.lives[life.job]
        self.ids.discard(life.job)
        self.drops += 1
        if life.queue_id is not None and self.has_id(life):
            del self.by_id[life.queue_id]
            if not (life.cancelled and self.ends_copies):
                self.cancels.pop(life.queue_id, None)
        sent = self.sent.get(life.key)
        if sent is None:
            return
        self.clear(life, sent)
        self.left[life.key] = self.left.get(life.key, 1) - 1
        self.tidy(life.key)

    def tidy(self, key: str) -> None:
        """Forget a batch if none of its jobs is left and its ids are known."""
        sent = self.sent.get(key)
        if sent is not None and sent.ids is not None and self.left.get(key, 0) <= 0:
            self.clear_batch(key)
            del self.left[key], self.sent[key]

    def soon(self) -> None:
        """A job is in doubt: the queue is to be asked before long."""
        self.ask_at = min(self.ask_at, time.monotonic() + pace.SOON)
