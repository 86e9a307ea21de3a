"""Recovery of jobs that an earlier controller submitted to a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from ensemble_batch import timing
from ensemble_batch.active_jobs import QueueRun
from ensemble_batch.job_events import JobLife
from ensemble_batch.submission_records import Sent
from ensemble_core import ExecutorError

_T = TypeVar("_T")


def find_again(polled: QueueRun, jobs: Mapping[str, float]) -> dict[str, bool]:
    """Return True for each job that the queue has or once had.

    ``jobs`` maps each job to the time of its latest known event. Recorded events after that time
    are emitted.
    """
    records = polled.records
    batch_of = {job: sent for sent in records.sent.values() for job in sent.jobs}
    wanted = {sent.key: sent for job, sent in batch_of.items() if job in jobs}
    for sent in wanted.values():
        if sent.ids is None:
            _look_for(polled, sent)
    shown: Mapping[str, str] = {}
    if any(job not in batch_of and job not in records.told for job in jobs):
        age = polled.now() - min((sent.at for sent in records.sent.values()), default=polled.now())
        shown = _retry_query(polled, partial(polled.hooks.find_jobs, polled.run.id, age))
    with polled.lock:
        polled.sought = True
        found = {
            job: _restore(polled, job, since, batch_of.get(job), shown.get(job))
            for job, since in jobs.items()
        }
        records.drop()
        polled.drop_secrets()
        polled.ids |= {job for job, known in found.items() if known}
        polled.read()
        for life in list(polled.lives.values()):
            if life.cancelled and not life.over:
                polled.cancel(life)
            elif life.verdict and polled.has_id(life):
                polled.cancels[str(life.queue_id)] = 0.0
        polled.ask_at = time.monotonic() + timing.SOON
        polled.publish()
        polled.lock.notify_all()
    return found


def _restore(
    polled: QueueRun, job: str, since: float, sent: Sent | None, queue_id: str | None
) -> bool:
    told = polled.records.told.get(job, [])
    life = JobLife(job, {} if sent is None else sent.jobs[job], polled.events)
    polled.outlet.add(life.restore(told, since))
    if life.over:
        return True
    if sent is None and queue_id is None:
        return bool(told)
    if sent is not None:
        life.key, life.handed_at, life.holds = sent.key, sent.at, sent.holds
        if sent.ids is not None:
            queue_id = sent.ids[list(sent.jobs).index(job)]
    # Its wrapper may have reported before the queue's answer was recorded.
    queue_id = queue_id or next(
        (str(context["queue_id"]) for _, _, context in told if "queue_id" in context), None
    )
    if queue_id is not None:
        polled.learn(life, queue_id)
    elif polled.never_runs(life):
        return False  # not in the queue, and cannot run if it arrives later
    life.cancelled = job in polled.records.cancelled
    life.verdict, life.doomed_at = polled.records.verdicts.get(job, ""), time.monotonic()
    polled.lives[job] = life
    polled.output.hold(life.files)
    if sent is not None:
        polled.sent[sent.key] = sent
        polled.left[sent.key] = polled.left.get(sent.key, 0) + 1
    if queue_id is not None:  # else its report is read next, and has the id
        life.arrived(polled.now())
    return True


def _look_for(polled: QueueRun, sent: Sent) -> None:
    """Look for a batch of an earlier controller until the queue replies."""
    void = polled.claims
    while True:
        for name in sent.names:
            ids = _retry_query(polled, partial(polled.hooks.find_batch, name, len(sent.jobs)))
            if ids is None and void and not polled.claims:
                ids = _retry_query(polled, partial(polled.find_ended, sent, name))
            if ids is not None:
                sent.ids = list(ids)
                polled.outlet.write(partial(polled.records.accept, sent.key, ids))
                return
        if void:
            if not polled.claims:  # a job that began just before reports that in a moment
                time.sleep(timing.SOON_AGAIN)
            return
        # It may still arrive, or may have arrived just before it was invalidated.
        if polled.now() - sent.at > max(timing.SETTLE, polled.hooks.settle):
            void = polled.outlet.write(partial(polled.void, sent.names[-1]))
        if not void:
            time.sleep(timing.SOON_AGAIN)


def _retry_query(polled: QueueRun, ask: Callable[[], _T]) -> _T:
    """Return the queue's reply, with retries.

    Raises :class:`ExecutorError` if the reply takes too long or if retries cannot help.
    """
    end = time.monotonic() + timing.PATIENCE
    while True:
        try:
            return polled.call(ask, 1)
        except ExecutorError as error:
            if not error.transient or time.monotonic() > end:
                raise
            time.sleep(timing.SOON_AGAIN)
