"""Recovery of jobs that an earlier controller handed to a queue.

From the records, from what wrappers wrote, and from the queue where nobody knows whether a batch
arrived. Used by ``QueueExecutor``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from ensemble_batch import pace
from ensemble_batch.job_table import JobLife
from ensemble_batch.queue_run import QueueRun
from ensemble_batch.records import Sent
from ensemble_core import ExecutorError

__all__ = ["find_again"]


def find_again(polled: QueueRun, jobs: Mapping[str, float]) -> dict[str, bool]:
    """Which of these jobs the queue has, or had; what happened to them since is told."""
    records = polled.records
    batch_of = {job: sent for sent in records.sent.values() for job in sent.jobs}
    wanted = {sent.key: sent for job, sent in batch_of.items() if job in jobs}
    for sent in wanted.values():
        if sent.ids is None:
            _look_for(polled, sent)
    with polled.lock:
        found = {
            job: _restore(polled, job, since, batch_of.get(job)) for job, since in jobs.items()
        }
        records.drop()
        polled.ids |= {job for job, known in found.items() if known}
        polled.read()
        for life in list(polled.lives.values()):
            if life.cancelled and not life.over:
                polled.cancel(life)
        polled.ask_at = time.monotonic() + pace.SOON
        polled.publish()
        polled.lock.notify_all()
    return found


def _restore(polled: QueueRun, job: str, since: float, sent: Sent | None) -> bool:
    told = polled.records.told.get(job, [])
    life = JobLife(job, {} if sent is None else sent.jobs[job], polled.events)
    polled.outlet.add(life.restore(told, since))
    if life.over:
        return True
    if sent is None:
        return bool(told)
    life.key, life.handed_at = sent.key, sent.at
    if sent.ids is not None:
        polled.learn(life, sent.ids[list(sent.jobs).index(job)])
    elif polled.never_runs(life):
        return False  # not there, and if it should come yet, it does not run
    life.cancelled = job in polled.records.cancelled
    polled.lives[job] = life
    polled.sent[sent.key] = sent
    polled.left[sent.key] = polled.left.get(sent.key, 0) + 1
    life.arrived(polled.now())
    return True


def _look_for(polled: QueueRun, sent: Sent) -> None:
    """Looks for a batch of an earlier controller; asked until the queue answers."""
    end = time.monotonic() + pace.PATIENCE
    while True:
        try:
            for name in sent.names:
                ids = polled.call(partial(polled.hooks.find_batch, name, len(sent.jobs)))
                if ids is not None:
                    sent.ids = list(ids)
                    polled.outlet.write(partial(polled.records.accept, sent.key, ids))
                    return
            if polled.claims or polled.now() - sent.at > pace.SETTLE:
                return
            time.sleep(pace.SOON_AGAIN)  # it may arrive yet
        except ExecutorError as error:
            if not error.transient or time.monotonic() > end:
                raise
            time.sleep(pace.SOON_AGAIN)
