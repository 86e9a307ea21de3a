"""Jobs of a run that are not over, and other state that an executor's threads share."""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import ClassVar, TypeVar

from ensemble_batch import timing
from ensemble_batch.event_emitter import Outlet
from ensemble_batch.job_events import JobLife, Report
from ensemble_batch.output_files import OutputClaims, OutputFiles, Place
from ensemble_batch.queue_hooks import QueueHooks, QueueJob
from ensemble_batch.shared_folder import script_name
from ensemble_batch.submission_records import Lost, Records, Sent
from ensemble_core import Emit, Job, JobEvent, Run

_T = TypeVar("_T")
#: Factor for the time to wait for the queue's reason while it cleans up after a job. That may take
#: minutes, and the job may be requeued.
_CLEANING = 10


def index_of(job: str) -> str:
    """Return a job's name without the number of its attempt.

    >>> index_of("sim.3-1~2"), index_of("a-b.3")
    ('sim.3', 'a-b.3')
    """
    group, _, rest = job.rpartition(".")
    return f"{group}.{re.split('[-~]', rest)[0]}"


def _is_of(row: QueueJob, key: str, names: Sequence[str]) -> bool:
    """Return whether a report of the queue is about a job of this batch, which may be renamed."""
    return not row.batch or row.batch in names or os.path.basename(row.batch) == script_name(key)


class QueueRun:
    """State of one run. Hold ``lock`` while you use it; only :meth:`call` needs no lock."""

    #: Whether only the first copy of a job runs anything, whatever the queue does.
    claims: ClassVar[bool] = False
    #: Whether a cancelled job may be over while the queue still has it.
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
        claims = None if run.state is None else OutputClaims(run.id, run.tag, folder)
        self.output = OutputFiles(*places, records.was_emptied, self._empty_output, claims)
        self.note = f"cancelled by run {run.tag}"
        self.lock = threading.Condition()
        self.events: list[JobEvent] = []
        #: Jobs that are not over: by name, by the queue's id, and their names.
        self.lives: dict[str, JobLife] = {}
        self.by_id: dict[str, JobLife] = {}
        self.ids: set[str] = set()
        #: Batches with such jobs, and the number of jobs left in each.
        self.sent: dict[str, Sent] = {}
        self.left: dict[str, int] = {}
        #: Time of the next cancel by the queue's id, in monotonic seconds (0 before the first one).
        self.cancels: dict[str, float] = {}
        #: Reports of unknown ids, received while a batch is being submitted.
        self.early: dict[str, QueueJob] | None = None
        #: Batches of ids to cancel that belong to no job in ``lives``.
        self.copies: dict[str, Sent] = {}
        #: Time of the next query, in monotonic seconds (infinite without jobs).
        self.ask_at = math.inf
        #: Jobs that were reported as lost, by name; of those without a newer attempt in the queue,
        #: the names by index, and the late successes by index.
        self.lost: dict[str, JobLife] = {}
        self.newest: dict[str, str] = {}
        self.late: dict[str, tuple[JobLife, Report]] = {}
        #: Lost jobs with the names of their batches, by the queue's id.
        self.strays: dict[str, tuple[JobLife, Sequence[str]]] = {}
        for job, lost in records.lost.items():
            life = JobLife(job, lost.files, self.events)
            life.key, life.queue_id, life.over = lost.key, lost.queue_id, True
            self._note_lost(life, lost.names, newest=job not in records.superseded)
        for job, (files, report) in records.late.items():
            self.late[index_of(job)] = JobLife(job, files, self.events), Report(**report)
        #: Number of jobs that have ended.
        self.drops = 0
        self.gauges: Mapping[str, float] = {}
        self.closed = False
        #: Whether the jobs of an earlier controller, if there was one, have been looked for.
        self.sought = not records.resumed
        self._calling = [threading.RLock()] * 2
        if hooks.lanes == 2:
            self._calling[1] = threading.RLock()

    def call(self, what: Callable[[], _T], lane: int = 0) -> _T:
        """Call the plugin, from one thread at a time in each lane. Lane 1 is for batches."""
        with self._calling[lane]:
            return what()

    def find_ended(self, sent: Sent, name: str) -> Sequence[str] | None:
        """Look for a batch in the queue's accounting."""
        age = max(0.0, self.now() - sent.at)
        return self.call(lambda: self.hooks.find_ended_batch(name, len(sent.jobs), age), 1)

    def now(self) -> float:
        return self.run.clock()

    def _empty_output(self, path: str) -> None:
        self.outlet.write(lambda: self.records.empty(path))

    def learn(self, life: JobLife, queue_id: str) -> None:
        """Set a job's id in the queue.

        A queue that crashed may assign the same id twice. The id then belongs to the job that was
        submitted last.
        """
        if life.queue_id is not None and self.has_id(life):
            del self.by_id[life.queue_id]
        life.queue_id = queue_id
        other = self.by_id.get(queue_id)
        if other is None or other.handed_at <= life.handed_at:
            self.by_id[queue_id] = life

    def has_id(self, life: JobLife) -> bool:
        """Return whether the queue's id of this job refers to no other job."""
        return life.queue_id is not None and self.by_id.get(life.queue_id) is life

    def owns(self, row: QueueJob) -> bool:
        """Return whether a report of the queue is about our job.

        If not, the queue has assigned the job's id to a foreign job, and the id is forgotten.
        """
        life = self.by_id.get(row.id)
        sent = self.copies.get(row.id) if life is None else self.sent.get(life.key)
        if life is None and sent is None and row.id in self.strays:
            life, names = self.strays[row.id]
            own = _is_of(row, life.key, names)
        else:
            own = sent is None or _is_of(row, sent.key, sent.names)
        if not own:
            for ids in (self.by_id, self.cancels, self.copies, self.strays):
                ids.pop(row.id, None)
            self.soon()
        return own

    def ours(self, ids: Sequence[str]) -> list[str]:
        """Return those of these ids that are not known to belong to foreign jobs now.

        A queue that lost its state assigns ids again, so ask it just before an id is used in a
        cancel. Without the lock. Raises :class:`ExecutorError` if the queue does not answer.
        """
        rows = self.call(lambda: list(self.hooks.ask(ids)))
        asked = set(ids)
        with self.lock:
            foreign = {row.id for row in rows if row.id in asked and not self.owns(row)}
            self.lock.notify_all()
        return [id_ for id_ in ids if id_ not in foreign]

    # -- overridden for jobs with a wrapper ------------------------------------------------

    def key(self, orders: Sequence[tuple[Job, Place]]) -> str:
        """Return the key of a new batch.

        The same jobs have the same key, so that a later controller submits them under the same
        name.
        """
        text = "\0".join((self.run.id, *(job.id for job, _ in orders)))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def name(self, key: str, attempt: int) -> str:
        """Return the name under which to submit a batch."""
        return f"ens_{self.run.id[:8]}_{key}"

    def script(self, key: str, name: str, orders: Sequence[tuple[Job, Place]]) -> str:
        """Return the path of the script to submit under this name, or an empty string.

        Raises :class:`OSError`.
        """
        return ""

    def void(self, name: str) -> None:
        """Prevent a missing batch from running if it arrives after all.

        Raises :class:`OSError`.
        """

    def read(self) -> bool:
        """Process the reports of wrappers. Return whether there were any."""
        return False

    def end_reported(self, life: JobLife, report: Report) -> None:
        """Handle a wrapper's report of its job's end.

        If the queue may have ended the job, wait until it gives its reason.
        """
        now = self.now()
        ours = self.ends_copies and (life.cancelled or life.verdict)
        if ours or not (self.hooks.explains and report.doubtful):
            life.ended(report, now, self.note)
        elif life.reported is None:
            life.started(report.at - report.seconds, report.host, now, report.seconds)
            life.reported, life.heard = report, now
            self.soon()

    def still_in_queue(self, life: JobLife, row: QueueJob) -> None:
        """Handle the queue's report that a job is not over."""
        now = self.now()
        if not self.claims and row.state in ("running", "suspended"):
            life.started(now if row.began is None else row.began, row.host, now)
        self.follow_suspension(life, row)
        patience = self.hooks.patience * (_CLEANING if row.state == "ending" else 1)
        if life.reported is not None and now - life.heard > patience:
            life.ended(life.reported, now, self.note)

    def follow_suspension(self, life: JobLife, row: QueueJob) -> None:
        """Report that a running job is suspended, or continues."""
        if row.state == "suspended":
            life.suspend(self.now(), row.note or f"suspended in {self.hooks.name}")
        elif row.state == "running":
            life.unsuspend(self.now())

    def over_in_queue(self, life: JobLife, row: QueueJob) -> bool:
        """Handle the queue's report that a job is over. Return whether that is conclusive."""
        if life.reported is not None:
            life.ended(life.reported, self.now(), self.note, row)
            return True
        known = row.status is not None or row.exception is not None or life.cancelled
        if known:
            life.finished(row, self.now(), self.note)
        return known

    def cancel_on_arrival(self, life: JobLife | None) -> bool:
        """Return whether to cancel this job as soon as its queue id is known."""
        return life is None or life.over or life.cancelled

    def found_twice(self, life: JobLife, queue_id: str) -> None:
        """Handle a second copy of a job, with this id in the queue."""

    def never_runs(self, life: JobLife) -> bool:
        """Prevent a missing job from ever running. Return False if the job has begun."""
        return True

    def cancel(self, life: JobLife) -> None:
        """Cancel a job."""
        life.cancelled = True
        if life.queue_id is not None and self.has_id(life):
            self.cancels.setdefault(life.queue_id, 0.0)

    def bar(self, life: JobLife) -> bool:
        """Prevent a job that the queue has lost from running.

        Return False if the job has begun after all, or if that cannot be determined now.
        """
        return True

    def clear(self, life: JobLife, sent: Sent) -> None:
        """Remove the files of a job that is over or about to be submitted."""

    def clear_batch(self, key: str) -> None:
        """Remove the files of a batch without jobs."""

    def remove(self) -> None:
        """Remove all files, after the last job has ended."""

    def drop_secrets(self) -> None:
        """Remove files with variables that no job can start with any more."""

    # -- lost jobs ---------------------------------------------------

    def send_signal(self, lives: Sequence[JobLife], signal: str) -> None:
        """Send a signal to jobs that have started. Without the lock."""
        ids = self.ours([life.queue_id for life in lives if life.queue_id is not None])
        if ids:
            self.call(lambda: self.hooks.signal_jobs(ids, signal))

    def grace(self, life: JobLife) -> float:
        """Return the seconds from SIGTERM to SIGKILL for a job."""
        sent = self.sent.get(life.key)
        return self.hooks.grace if sent is None or sent.grace is None else sent.grace

    def lose(self, life: JobLife, verdict: str, patience: float) -> None:
        """Cancel a job that counts as lost, because its next attempt must not run beside it.

        Report it as lost when the queue has accepted the cancel, after ``patience`` seconds, in
        which the job may report its end.
        """
        if not self.bar(life):
            return
        now = time.monotonic()
        if not life.verdict:
            life.verdict, life.doomed_at = verdict, now
            self.outlet.write(lambda: self.records.doom(life.job, verdict))
            if life.queue_id is not None and self.has_id(life):
                self.cancels.setdefault(life.queue_id, 0.0)
        delivered = not self.has_id(life) or life.queue_id not in self.cancels
        if delivered and now >= life.doomed_at + patience:
            sent = self.sent.get(life.key)
            names = () if sent is None else sent.names
            queue_id = life.queue_id if self.has_id(life) else None
            lost = Lost(life.key, names, life.files, queue_id)
            self.outlet.write(lambda: self.records.lose(life.job, lost))
            self._note_lost(life, names, newest=True)
            life.gone("lost", life.verdict, None, self.now())

    def _note_lost(self, life: JobLife, names: Sequence[str], *, newest: bool) -> None:
        self.lost[life.job] = life
        if newest:
            self.newest[index_of(life.job)] = life.job
        if life.queue_id is not None and self.by_id.get(life.queue_id, life) is life:
            self.strays[life.queue_id] = life, names

    def ended_late(self, life: JobLife, report: Report) -> None:
        """Handle the end of a job that was reported as lost.

        A success counts as the end of the job's next attempt, unless the queue has that.
        """
        index = index_of(life.job)
        del self.lost[life.job]
        self.outlet.write(lambda: self.records.end_late(life.job))
        self.strays.pop(life.queue_id or "", None)
        if report.kind != "end" or report.status or report.why:
            return
        then = "its next attempt was submitted before, and continues"
        if self.newest.get(index) == life.job:
            self.late[index] = life, report
            self.outlet.write(
                lambda: self.records.succeed_late(life.job, life.files, asdict(report))
            )
            then = "a next attempt that the queue does not have yet ends with this success"
        self.outlet.warn(
            f"{life.job} was taken for lost, but has succeeded after all: {then}\n"
            f"  hint: its output is in {life.files['stdout']}"
        )

    def supersede(self, jobs: Iterable[str]) -> None:
        """Note attempts that the queue may have: no earlier attempt ends them any more."""
        if self.newest or self.late:
            indices = set(map(index_of, jobs))
            unused = [self.late.pop(index)[0].job for index in indices & self.late.keys()]
            if unused:
                self.outlet.write(lambda: self.records.use(unused))
            old = [self.newest.pop(index) for index in indices & self.newest.keys()]
            if old:
                self.outlet.write(lambda: self.records.supersede(old))

    def end_strays(self, rows: Mapping[str, QueueJob]) -> None:
        """Cancel lost jobs that the queue lists again: their next attempts must run alone."""
        for id_ in self.strays.keys() & rows.keys():
            row, (life, names) = rows[id_], self.strays[id_]
            own = _is_of(row, life.key, names)
            if id_ in self.by_id or row.state in ("over", "unknown", "absent") or not own:
                del self.strays[id_]  # it has ended, or the queue has assigned its id again
            elif row.state != "ending" and id_ not in self.cancels:
                self.cancels[id_] = time.monotonic() + timing.HEEDS if life.cancelled else 0.0
                if not life.cancelled:
                    life.cancelled = True
                    self.outlet.warn(
                        f"{life.job} was taken for lost, but {self.hooks.name} lists it again "
                        f"({id_}): cancelling it"
                    )

    def adopt(self, job: str) -> bool:
        """End an attempt with the late success of its predecessor; return whether there is one."""
        late, life = self.late.pop(index_of(job), None), self.lives.get(job)
        if late is None or life is None:
            return False
        before, report = late
        self.outlet.write(lambda: self.records.use([before.job]))
        life.files = before.files
        life.ended(report, self.now(), self.note)
        return True

    # -- events --------------------------------------------------------------------------------

    def publish(self) -> None:
        """Record new events on disk, then emit them."""
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
        """Remove a job that is over."""
        del self.lives[life.job]
        self.output.release(life.files)
        self.ids.discard(life.job)
        self.drops += 1
        if life.queue_id is not None and self.has_id(life):
            del self.by_id[life.queue_id]
            if not (life.cancelled and self.ends_copies):
                self.cancels.pop(life.queue_id, None)
            elif life.queue_id in self.cancels and life.key in self.sent:
                self.copies[life.queue_id] = self.sent[life.key]
        sent = self.sent.get(life.key)
        if sent is None:
            return
        self.clear(life, sent)
        self.left[life.key] = self.left.get(life.key, 1) - 1
        self.tidy(life.key)

    def tidy(self, key: str) -> None:
        """Forget a batch if none of its jobs is left and their queue ids are known."""
        sent = self.sent.get(key)
        if sent is not None and sent.ids is not None and self.left.get(key, 0) <= 0:
            self.clear_batch(key)
            del self.left[key], self.sent[key]

    def soon(self) -> None:
        """Query the queue soon, because a job is in doubt."""
        self.ask_at = min(self.ask_at, time.monotonic() + timing.SOON)


class WrappedRun(QueueRun):
    """A run whose jobs have a wrapper script. No two batches have the same name."""

    def key(self, orders: Sequence[tuple[Job, Place]]) -> str:
        return secrets.token_hex(5)

    def name(self, key: str, attempt: int) -> str:
        return f"{super().name(key, attempt)}_{attempt}"
