"""Tests of polling: how often the executor polls the queue, and how soon it notices changes.

The clock advances only while all threads wait, and while the queue answers.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from ensemble_batch import (
    Batch,
    BatchExecutor,
    QueueJob,
    Records,
    active_jobs,
    queries_and_lost_jobs,
    timing,
)
from ensemble_batch.claims_and_file_reports import ClaimedRun, ClaimFolder
from ensemble_batch.job_events import JobLife
from ensemble_batch.queries_and_lost_jobs import Queries
from ensemble_testing import Session

from ensemble_core import Job, Run
from ensemble_core.model.events import JobEvent


class Clockwork(BatchExecutor):
    """A queue with a fake clock and one job.

    It lists the job from ``shown_at`` to ``gone_at``, except in the answers numbered in ``holes``.
    An answer takes 0.3 s (less for short periods) and describes the time of the request.
    """

    def __init__(self, period: float) -> None:
        self.poll = period
        self.now = 1000.0
        self.gone_at = self.shown_at = 0.0
        self.holes: set[int] = set()
        self.knows = True
        self.asked: list[float] = []
        self.accounted: list[float] = []

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        there = self.shown_at <= self.now < self.gone_at and len(self.asked) not in self.holes
        self.asked.append(self.now)
        self.now += min(0.3, self.poll / 50)
        return [QueueJob("7", "running")] if there else []

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        self.accounted.append(self.now)
        self.now += min(0.3, self.poll / 50)
        return [QueueJob("7", "over", status=3 << 8) if self.knows else QueueJob("7", "unknown")]

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    find_batch = submit_batch  # type: ignore[assignment]  # not used here

    def end_jobs(self, ids: Collection[str]) -> None: ...


class Watched:
    """Polls a :class:`Clockwork` for its job."""

    def __init__(self, period: float, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.queue = Clockwork(period)
        clock = SimpleNamespace(monotonic=lambda: self.queue.now)
        patch.setattr(queries_and_lost_jobs, "time", clock)
        patch.setattr(active_jobs, "time", clock)
        run = Run("r", folder, lambda: self.queue.now)
        self.told: list[JobEvent] = []
        spool = ClaimFolder(str(folder / "spool"), {})
        places = (str(folder), str(folder))
        self.run = ClaimedRun(self.queue, run, self.told.extend, spool, Records(None), places)  # type: ignore[arg-type]  # of all events these are a job's
        self.queries = Queries(self.run)
        self.life = JobLife("a.0", {}, self.run.events)

    def taken(self) -> None:
        """Note that the queue has accepted the job."""
        self.run.learn(self.life, "7")
        self.life.counts_at = self.queue.now + timing.appearance_delay(self.queue.poll)
        self.life.arrived(self.queue.now)
        self.run.lives["a.0"] = self.life

    def until(self, end: float) -> float | None:
        """Advance until the job is over and return the time, or ``None`` if ``end`` comes first."""
        while not self.life.over:
            dues = [end]
            now = self.queue.now
            step = self.queries.cancels_due(now, dues) or self.queries.due(now, dues)
            if step is not None:
                step()
            elif self.queue.now >= end:
                return None
            else:
                self.queue.now = min(dues)
        return self.queue.now


def forgotten(folder: Path, patch: pytest.MonkeyPatch) -> Watched:
    """Return a poller whose job the queue has accepted, but no longer knows."""
    watched = Watched(15.0, folder, patch)
    watched.queue.knows = False
    watched.life.key = "k"
    watched.taken()
    return watched


@pytest.mark.parametrize("period", [0.2, 1.0, 5.0, 6.0, 15.0, 60.0])
def test_an_unreported_end_is_known_within_one_period_after_three_answers(
    period: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0.0
    for phase in range(48):
        with monkeypatch.context() as patch:
            watched = Watched(period, tmp_path, patch)
            queue = watched.queue
            watched.taken()
            # Phases over nearly three periods, including the moment after a poll.
            queue.gone_at = queue.now + 1e-6 + phase * period / 16
            known = watched.until(queue.now + 100 * period)
            assert known is not None
            longest = max(longest, known - queue.gone_at)
            answers = sum(at >= queue.gone_at for at in queue.asked)
            assert answers >= timing.MISSES if period < 6.0 else answers == timing.MISSES
            assert len(queue.accounted) == 1
    assert longest <= max(period, 6.0)
    assert longest > 0.9 * period  # that moment is covered, and polling is not continuous


@pytest.mark.parametrize("period", [0.2, 1.0, 5.0])
def test_frequent_questions_do_not_make_a_lagging_queue_credible_sooner(
    period: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a qmaster that updates its list of jobs late."""
    watched = Watched(period, tmp_path, monkeypatch)
    queue = watched.queue
    queue.knows, queue.gone_at, queue.shown_at = False, float("inf"), queue.now + 2.5
    watched.taken()
    watched.run.ask_at = queue.now
    assert watched.until(queue.now + 20.0) is None
    queue.gone_at, begin = queue.now, queue.now  # a gap of two seconds
    assert watched.until(begin + 2.0) is None
    queue.gone_at = float("inf")
    assert watched.until(begin + 20.0) is None


def test_a_job_missing_later_does_not_hurry_the_verdict_on_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(15.0, tmp_path, monkeypatch)
    queue = watched.queue
    queue.gone_at = queue.now + 1.0
    watched.taken()
    other = JobLife("b.0", {}, watched.run.events)
    watched.run.learn(other, "8")
    other.counts_at = queue.now + timing.query_interval(15.0) + 0.1
    watched.run.lives["b.0"] = other
    assert watched.until(queue.now + 15.0) is not None
    assert other.misses == 2
    assert queue.accounted[0] - queue.asked[0] >= timing.SOON + timing.SOON_AGAIN


def test_a_job_that_begins_while_the_queue_seems_to_have_lost_it_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's claim may not be visible yet to an NFS client."""
    watched = forgotten(tmp_path, monkeypatch)
    monkeypatch.setattr(watched.run.spool, "names", list)
    (tmp_path / "spool/reports/a.0@k").write_text("1000.5 node1 7\n")
    begin = watched.queue.now
    assert watched.until(begin + 16.0) is None
    assert "start" in watched.life.told
    assert watched.until(begin + 60.0) is not None  # its node has died


def test_a_claim_without_a_report_does_not_keep_a_lost_job_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, or an earlier controller crashed after the claim."""
    watched = forgotten(tmp_path, monkeypatch)
    assert watched.run.spool.claim("a.0", "k")
    assert watched.until(watched.queue.now + 30.0) is not None
    assert watched.run.events[-2].context["type"] == "lost"


def test_a_queue_is_asked_at_most_a_quarter_more_often_than_each_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(15.0, tmp_path, monkeypatch)
    watched.queue.gone_at = float("inf")
    watched.taken()
    watched.until(watched.queue.now + 1500.0)
    assert 100 <= len(watched.queue.asked) <= 125
    assert not watched.told


def test_a_queue_without_jobs_of_the_run_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(15.0, tmp_path, monkeypatch)
    monkeypatch.setattr(watched.queue, "nodes", lambda: watched.queue.asked.append(0.0) or {})
    assert watched.until(watched.queue.now + 3600.0) is None
    assert not watched.queue.asked


@pytest.mark.parametrize("holes", [{2}, {2, 3}, {2, 3, 5, 6, 8}])
def test_answers_are_ignored_that_lack_a_job_which_later_ones_have(
    holes: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(15.0, tmp_path, monkeypatch)
    watched.queue.gone_at, watched.queue.holes = float("inf"), holes
    watched.taken()
    assert watched.until(watched.queue.now + 300.0) is None
    assert len(watched.queue.asked) > max(holes)


@pytest.mark.parametrize("period", [1.0, 15.0])
def test_a_job_may_appear_in_the_answers_some_time_after_the_first_question(
    period: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is polled because of another job, and its answers lag."""
    watched = Watched(period, tmp_path, monkeypatch)
    queue = watched.queue
    queue.gone_at = float("inf")
    queue.shown_at = queue.now + period / 5
    watched.taken()
    watched.run.ask_at = queue.now
    assert watched.until(queue.now + 4 * period) is None
    assert queue.asked[0] < queue.shown_at
    queue.gone_at = queue.now
    assert watched.until(queue.now + max(period, 6.0)) is not None


def test_a_job_that_never_appears_in_the_answers_is_over_within_one_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(15.0, tmp_path, monkeypatch)
    watched.taken()
    watched.run.ask_at = watched.queue.now
    assert watched.until(watched.queue.now + 15.0) is not None


class Slow(BatchExecutor):
    """A queue that accepts one job at a time and is polled as often as possible."""

    poll = 60.0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.full = threading.Event()

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        self.calls.append("submit")
        return [str(len(self.calls))]

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        if self.calls[-1] == "submit":
            self.calls.append("ask")
        return [QueueJob(id_, "waiting") for id_ in ids]

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        return None

    def end_jobs(self, ids: Collection[str]) -> None: ...


def test_submissions_and_questions_do_not_starve_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "query_interval", lambda period: 0.0)
    queue = Slow()
    with Session(queue, tmp_path) as session:
        jobs: list[Job] = [session.job("true") for _ in range(10)]
        session.submit(*jobs)
        for job in jobs:
            session.wait_for(job, "priority")
        session.cancel(*jobs)
        session.wait_clean(*jobs)
    # The first job may be polled before the second exists.
    assert queue.calls[:19] == ["submit", "ask"] * 9 + ["submit"]
