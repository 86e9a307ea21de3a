"""Submits jobs to a queue in batches, so that each job runs once.

If a submission gets no reply, it may be repeated, so the batch may reach the queue twice. Its jobs
still run once, for one of three reasons:

- Wrapper scripts claim their jobs, so the second copy runs nothing.
- The first copy is invalidated before the second is submitted.
- Both copies have the same name, and the queue keeps only one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from ensemble_batch import timing
from ensemble_batch.active_jobs import QueueRun
from ensemble_batch.job_events import JobLife
from ensemble_batch.job_script import Batch
from ensemble_batch.output_files import Place
from ensemble_batch.queries_and_lost_jobs import Queries
from ensemble_batch.submission_records import Sent
from ensemble_core import ExecutorError, Job


@dataclass(slots=True)
class _PendingBatch:
    """A batch whose submission is in progress or got no reply."""

    sent: Sent
    orders: list[tuple[Job, Place]]
    attempts: int = 0
    since: float = 0.0
    due: float = 0.0
    #: Whether the last attempt was invalidated, so that it does not run if it arrives later.
    void: bool = False


class Submission:
    """Jobs that wait to be submitted, and batches whose submission got no reply."""

    def __init__(self, polled: QueueRun, queries: Queries) -> None:
        self._polled = polled
        self._queries = queries
        self._orders: dict[str, tuple[Job, Place]] = {}
        self._unsure: list[_PendingBatch] = []
        self._at = 0.0
        #: Limit for a batch, after the queue rejected a larger one; ``None``: no limit.
        self._most: int | None = None
        #: Size of the largest accepted batch. No batch up to this size is rejected for its size.
        self._fits = 0
        #: Set while the queue is full: the number of jobs that had ended by then, and when to retry
        #: after another job has ended.
        self._full_since: tuple[int, float] | None = None
        self._handing_in = False
        #: Whether a batch was submitted again that may have run.
        self._repeated = False

    @property
    def waiting(self) -> bool:
        """Return whether jobs wait to be submitted, or are being submitted."""
        return bool(self._orders) or self._handing_in

    def take(self, job: Job, place: Place) -> None:
        """Add a job to be submitted with those that follow soon. Needs the lock."""
        self._orders[job.id] = (job, place)
        self._at = max(self._at, time.monotonic() + timing.GATHER)

    def withdraw(self, job: str) -> bool:
        """Do not submit a job; return whether it was still waiting. Needs the lock."""
        return self._orders.pop(job, None) is not None

    def due(self, now: float, dues: list[float]) -> Callable[[], None] | None:
        """Return the next step that is due now; otherwise add its time to ``dues``.

        Needs the lock.
        """
        if self._polled.late:
            self._orders = {
                j: order for j, order in self._orders.items() if not self._polled.adopt(j)
            }
        if self._orders:
            at = self._due_at()
            if at <= now:
                orders = self._next_batch()
                jobs = {job.id: place.files for job, place in orders}
                first = orders[0][0]  # all have its grace and urgency, which are in the shape
                grace, holds = self._polled.hooks.grace_of(first), first.urgency == 0
                sent = Sent(self._polled.key(orders), jobs, grace=grace, holds=holds)
                return partial(self._submit, _PendingBatch(sent, orders))
            dues.append(at)
        for pending in self._unsure:
            if pending.due <= now:
                self._unsure.remove(pending)
                return partial(self._look_up, pending)
            dues.append(pending.due)
        return None

    def _due_at(self) -> float:
        """Return when the next batch is due; if the queue is full, soon after one of our jobs
        ends.
        """
        if self._full_since is None or self._polled.drops == self._full_since[0]:
            return self._at
        return min(self._at, self._full_since[1])

    def _next_batch(self) -> list[tuple[Job, Place]]:
        """Return the next batch: the most urgent job and those of its shape."""
        hooks = self._polled.hooks
        first = max(self._orders.values(), key=lambda order: order[0].urgency)
        shape = hooks.shape(first[0])
        most = max(1, min(hooks.most_jobs, self._most or hooks.most_jobs))
        alike = (order for order in self._orders.values() if hooks.shape(order[0]) == shape)
        chosen = list(islice(alike, most))  # shapes of thousands of waiting jobs take long
        while len(chosen) > 1 and not hooks.fits([job for job, _ in chosen], self._polled.run.tag):
            chosen = chosen[: len(chosen) // 2]
        for job, _ in chosen:
            del self._orders[job.id]
        return chosen

    def _lives(self, pending: _PendingBatch) -> Iterator[tuple[Job, Place, JobLife]]:
        """Yield the jobs of a batch that are not over."""
        for job, place in pending.orders:
            life = self._polled.lives.get(job.id)
            if life is not None and not life.over:
                yield job, place, life

    def _submit(self, pending: _PendingBatch) -> None:
        polled, sent = self._polled, pending.sent
        jobs = tuple(job for job, _ in pending.orders)
        name = polled.name(sent.key, pending.attempts + 1)
        script = ""

        def record() -> None:
            nonlocal script
            script = polled.script(sent.key, name, pending.orders)
            names, sent.names = sent.names, list(dict.fromkeys((*sent.names, name)))
            sent.at = polled.now()
            try:
                polled.records.send(sent)
            except OSError:
                sent.names = names
                raise
            pending.attempts += 1

        with polled.lock:
            if not polled.outlet.write(record):
                again = time.monotonic() + timing.SOON_AGAIN
                if pending.attempts:  # an earlier attempt may still arrive, so keep the batch
                    pending.due = again
                    self._unsure.append(pending)
                else:
                    waiting = {job.id: (job, place) for job, place in pending.orders}
                    self._orders, self._at = waiting | self._orders, again
                return
            polled.sent[sent.key] = sent
            polled.early = {}
            self._handing_in, pending.void = True, False
            if pending.attempts == 1:
                polled.left[sent.key] = len(jobs)
                for _, _, life in self._lives(pending):
                    life.key, life.handed_at = sent.key, sent.at
        try:
            places = tuple(place for _, place in pending.orders)
            batch = Batch(name, jobs, script, places, polled.run.tag, polled.run.id)
            ids = polled.call(lambda: polled.hooks.submit_batch(batch), 1)
        except ExecutorError as error:
            with polled.lock:
                self._handing_in = False
                self._handle_failed_submit(pending, error)
            return
        with polled.lock:
            self._handing_in = False
            self._accept(pending, ids)

    def _handle_failed_submit(self, pending: _PendingBatch, error: ExecutorError) -> None:
        polled, sent = self._polled, pending.sent
        full, first = error.code == "full", pending.attempts == 1
        polled.early = None
        if not (full and first):
            polled.supersede(sent.jobs)
        if full or error.transient:
            now = time.monotonic()
            if full and first:
                for job, place, life in self._lives(pending):
                    life.key = ""
                    if life.cancelled:
                        life.refuse("cancel", polled.note, polled.now())
                    else:
                        self._orders[job.id] = (job, place)
                for batches in (polled.left, polled.sent):
                    batches.pop(sent.key, None)
                size, before = len(pending.orders), self._full_since
                large = size > max(1, self._fits)
                if large or (before is not None and before[0] == polled.drops):
                    self._most = max(1, size // 2)
                self._at = now + (timing.SOON if large else timing.FULL)
                self._full_since = polled.drops, now + timing.SOON_AGAIN
            else:  # an earlier attempt may still arrive, so keep the batch
                pending.since, pending.due = now, now + (timing.FULL if full else timing.SOON_AGAIN)
                self._unsure.append(pending)
            waiting = len(self._orders) + (0 if full and first else len(pending.orders))
            what = "does not answer; retrying until it does"
            if full:
                what = f"accepts no more jobs for now; {waiting} wait here and are retried"
            key = "full" if full else "submit"
            polled.outlet.trouble(key, f"{polled.hooks.name} {what}\n  {error}")
            return
        polled.outlet.answered("submit")
        for job, _, life in self._lives(pending):
            # Bar each job, so that an earlier attempt that arrives later cannot run it.
            if first or (polled.bar(life) and "start" not in life.told):
                kind, note = "cancel", polled.note
                if not life.cancelled:
                    why, *hints = str(error).split("\n")
                    kind, note = "submit", "\n".join([f"{why}{_requested(job)}", *hints])
                life.refuse(kind, note, polled.now())
        if any(self._lives(pending)):
            pending.since = time.monotonic()
            pending.due = pending.since + timing.SOON_AGAIN
            self._unsure.append(pending)

    def _accept(self, pending: _PendingBatch, ids: Sequence[str]) -> None:
        polled, sent = self._polled, pending.sent
        polled.outlet.answered("submit")
        if not (self._orders or self._unsure):
            polled.outlet.answered("full")
        self._full_since = None
        self._most = self._most and self._most * 2
        self._fits = max(self._fits, len(pending.orders))
        early, polled.early = polled.early or {}, None
        polled.supersede(sent.jobs)
        sent.ids = list(ids)
        polled.outlet.write(lambda: polled.records.accept(sent.key, ids))
        now = polled.now()
        for (job, _), id_ in zip(pending.orders, ids, strict=True):
            life = polled.lives.get(job.id)
            if polled.cancel_on_arrival(life):
                polled.cancels.setdefault(id_, 0.0)
                polled.copies[id_] = sent
            if life is not None and not life.over:
                if life.queue_id is None:
                    polled.learn(life, id_)
                elif life.queue_id != id_:
                    polled.found_twice(life, id_)
                shown = timing.appearance_delay(polled.hooks.poll)
                life.counts_at = time.monotonic() + shown
                life.arrived(now)
        polled.tidy(sent.key)
        if early:
            self._queries.handle_reports(early.values())
        if pending.attempts > 1 or pending.since:
            polled.soon()  # the queue may have reported ids that were still unknown

    def _settled(self, pending: _PendingBatch) -> bool:
        """Return whether a batch without an answer would have arrived by now."""
        waited = time.monotonic() - pending.since
        return waited >= max(timing.SETTLE, self._polled.hooks.settle)

    def _look_up(self, pending: _PendingBatch) -> None:
        """Look up a batch that may not have arrived; resubmit it if it is missing."""
        polled, hooks = self._polled, self._polled.hooks
        try:
            for name in reversed(pending.sent.names):
                ids = polled.call(partial(hooks.find_batch, name, len(pending.orders)), 1)
                if ids is None and self._settled(pending) and pending.void:
                    ids = polled.find_ended(pending.sent, name)
                if ids is not None:
                    with polled.lock:
                        self._accept(pending, ids)
                    return
        except ExecutorError:  # already reported
            with polled.lock:
                pending.due = time.monotonic() + timing.AWAY
                self._unsure.append(pending)
            return
        with polled.lock:
            if all(life.queue_id for _, _, life in self._lives(pending)):
                polled.outlet.answered("submit")
                return  # each job has reported itself
            settled = self._settled(pending)
            if not (settled and pending.void):
                pending.due = time.monotonic() + timing.SOON_AGAIN
                if settled and polled.outlet.write(lambda: polled.void(pending.sent.names[-1])):
                    pending.void = True  # it may have arrived just before, and reports that soon
                self._unsure.append(pending)
                return
            lives = [life for _, _, life in self._lives(pending)]
            silent = [life for life in lives if life.queue_id is None]
            if not polled.claims and all(life.cancelled for life in silent):
                for life in silent:
                    life.refuse("cancel", polled.note, polled.now())
                return
            # Jobs that have reported run: the copies in the repeated batch must run nothing.
            if not all(polled.bar(life) for life in lives if life.queue_id is not None):
                pending.due = time.monotonic() + timing.SOON_AGAIN
                self._unsure.append(pending)
                return
            if not (polled.claims or hooks.knows_ended or self._repeated):
                self._repeated = True
                polled.outlet.warn(
                    f"{hooks.name} gave no answer when a batch of {len(pending.orders)} was "
                    "submitted, and does not list it: it is submitted again. Without accounting, "
                    f"{hooks.name} does not know jobs that have ended. If nodes do not see "
                    f"{polled.run.folder}, its jobs may run twice (hint: look for the effects of "
                    "both, or use a folder that nodes see)"
                )
        self._submit(pending)


def _requested(job: Job) -> str:
    """Return what a rejected job asked for, as a remark in parentheses.

    >>> _requested(Job(id="a.0", group="a", index=0, command=("a",), options={"q": {"mem": 600}}))
    ' (it asked for mem=600)'
    """
    asked = {
        "nodes": job.nodes if job.nodes > 1 else None,
        "tasks": job.tasks if job.tasks > 1 else None,
        "cores_per_task": job.cores_per_task if job.cores_per_task > 1 else None,
        "gpus_per_task": job.gpus_per_task or None,
        "memory_per_task": f"{-(-job.memory_per_task // 2**20)}M" if job.memory_per_task else None,
        "duration": f"{job.duration:g}s" if job.duration else None,
        "avoid": ",".join(job.avoid) or None,
    }
    for options in job.options.values():
        asked |= options
    shown = ", ".join(f"{name}={value}" for name, value in asked.items() if value is not None)
    return f" (it asked for {shown[:300]})" if shown else ""
