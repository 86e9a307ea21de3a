"""One open run on a polled queue: its jobs that are not over, and what the executor's two threads
know of them. Made by ``BatchExecutor``; ``Submission``, ``Inquiry`` and ``Recovery`` work on it.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ensemble_batch import pace
from ensemble_batch.hooks import QueueHooks
from ensemble_batch.job_table import JobLife
from ensemble_batch.outlet import Outlet
from ensemble_batch.output_files import OutputFiles
from ensemble_batch.records import Records, Sent
from ensemble_batch.spool import Spool
from ensemble_core import Emit, JobEvent, Run

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

    ``lives`` are the jobs that are not over, ``ids`` their names; ``sent`` the batches that have
    such jobs, ``left`` how many of each. ``cancels`` are ids that the queue is to end, and when
    (monotonic seconds, as is ``ask_at``, when it is asked next: infinite while it has no jobs).
    """

    def __init__(
        self,
        hooks: QueueHooks,
        run: Run,
        emit: Emit,
        spool: Spool,
        records: Records,
        places: tuple[str, str],
    ) -> None:
        self.hooks = hooks
        self.run = run
        self.spool = spool
        self.records = records
        self.outlet = Outlet(hooks.name, run.clock, emit, spool.folder)
        self.output = OutputFiles(*places, records.was_emptied, self._begun)
        self.mark = mark_of(run.tag)
        self.note = f"cancelled by run {run.tag}"
        self.lock = threading.Condition()
        self.events: list[JobEvent] = []
        self.lives: dict[str, JobLife] = {}
        self.ids: set[str] = set()
        self.sent: dict[str, Sent] = {}
        self.left: dict[str, int] = {}
        self.cancels: dict[str, float] = {}
        self.ask_at = math.inf
        self.gauges: Mapping[str, float] = {}
        self.closed = False
        self._calling = threading.RLock()

    def call(self, what: Callable[[], _T]) -> _T:
        """Ask the plugin, one thread at a time."""
        with self._calling:
            return what()

    def now(self) -> float:
        return self.run.clock()

    def _begun(self, path: str) -> None:
        self.outlet.write(lambda: self.records.empty(path))

    # -- what wrappers have written ------------------------------------------------------------

    def read(self) -> bool:
        """Process the reports of wrappers. True if there were any."""
        lives = {f"{life.job}@{life.key}": life for life in self.lives.values() if life.key}
        if not lives:
            return False
        try:
            names = set(self.spool.names())
        except OSError:
            return False
        now, news = self.now(), False
        for report, life in lives.items():
            if report not in names or life.over:
                continue
            end = self.spool.end(f"{report}.end") if f"{report}.end" in names else None
            if "start" not in life.told:
                began = self.spool.start(report)
                if began is None:
                    continue
                self._learn(life, began[2])
                if end is None:
                    life.started(began[0], began[1], now)
                    news = True
            if end is not None:
                life.ended(end, now, self.note)
                news = True
        return news

    def _learn(self, life: JobLife, queue_id: str) -> None:
        """Take the queue's id of a job that has begun from what its wrapper reports; a cancel that
        came before it was known goes there now."""
        if life.queue_id is None and queue_id != "-":
            life.queue_id = queue_id
            if life.cancelled:
                self.cancels.setdefault(queue_id, 0.0)

    # -- cancelling ----------------------------------------------------------------------------

    def cancel(self, life: JobLife) -> None:
        """The run does not want this job any more."""
        life.cancelled = True
        if life.queue_id is not None:
            self.cancels.setdefault(life.queue_id, 0.0)
        # Whoever makes the claim decides: a job that has not begun is over now, wherever it waits.
        if "start" not in life.told and life.key and self.spool.claim(life.job, life.key):
            life.refuse("cancel", self.note, self.now())

    def bar(self, life: JobLife) -> bool:
        """See to it that a job which the queue has lost never runs, if it did not begin; false
        where it has begun after all, or where that cannot be settled now."""
        if "start" in life.told or life.barred:
            return True

        def claim() -> None:
            try:
                life.barred = self.spool.claim(life.job, life.key)
            except FileNotFoundError:
                life.barred = True  # who has no place to claim it does not run it either

        if not self.outlet.write(claim):
            return False
        if not life.barred:
            began = self.spool.start(f"{life.job}@{life.key}")
            if began is not None:
                life.misses = 0
                self._learn(life, began[2])
                life.started(began[0], began[1], self.now())
            # One without a word may be about to be written; or is a full disk's, or our own from
            # before a crash.
            elif life.misses > pace.MISSES:
                life.barred = True
        return life.barred

    def lose(self, life: JobLife) -> None:
        """Report a job as lost of which neither the queue nor its wrapper says anything."""
        if self.bar(life):
            note = f"{self.hooks.name} does not know this job any more, and it has left no word"
            life.gone("lost", note, None, self.now())

    def copy_ended(self, life: JobLife) -> None:
        """A copy of the job has ended that found it claimed. If another copy made the claim, that
        one is the job; if it was the same one, its first run died and the queue started it again.
        """
        began = self.spool.start(f"{life.job}@{life.key}")
        if began is None:
            self.lose(life)
        elif began[2] in ("-", life.queue_id):
            now = self.now()
            life.started(began[0], began[1], now)
            name = self.hooks.name
            note = f"its run on {began[1]} was cut off; {name} started it again, which ran nothing"
            life.gone("node-failure", note, None, now)
        else:
            life.queue_id, life.misses = began[2], 0

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
        if life.queue_id is not None and not life.cancelled:
            self.cancels.pop(life.queue_id, None)
        sent = self.sent.get(life.key)
        if sent is None:
            return
        sure = sent.ids is not None and len(sent.names) == 1 and not (life.cancelled or life.barred)
        self.spool.drop(life.job, life.key, claim=sure)
        self.left[life.key] = self.left.get(life.key, 1) - 1
        if self.left[life.key] <= 0 and sent.ids is not None:
            self.spool.drop_script(life.key)
            del self.left[life.key], self.sent[life.key]

    def soon(self) -> None:
        """A job is in doubt: the queue is to be asked before long."""
        self.ask_at = min(self.ask_at, time.monotonic() + pace.SOON)
