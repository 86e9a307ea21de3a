"""Tests of QueueExecutor on an in-memory queue that loses answers, repeats reports, or is full.

Each job runs once and ends once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from ensemble_batch import Batch, CannotTake, InvalidJob, QueueExecutor, QueueJob, timing
from ensemble_testing import Session, wait_until

from ensemble_core import ExecutorError, Job


class Queue:
    """A queue that outlives its executors: batches, jobs by id, and listeners."""

    def __init__(self) -> None:
        self.batches: dict[str, Batch] = {}
        self.jobs: dict[str, QueueJob] = {}
        self.listeners: list[Callable[[Iterable[QueueJob]], None]] = []

    def tell(self, *rows: QueueJob) -> None:
        self.jobs.update((row.id, row) for row in rows)
        for listener in self.listeners:
            listener(rows)


class Telling(QueueExecutor):
    """An executor for :class:`Queue`."""

    name = "telling"
    poll = 60.0
    most_jobs = 8

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        #: Exceptions by call, raised one per call: after it took effect, or instead of it.
        self.after: dict[str, list[Exception]] = {}
        self.instead: dict[str, list[Exception]] = {}
        self.told_at_once: Mapping[int, QueueJob] = {}
        self.sizes: list[int] = []
        self.asked = self.watched = 0
        self.ended: list[str] = []
        self.room: int | None = None
        self.leave = threading.Event()
        self.broken: list[ExecutorError] = []

    def fault(self, when: dict[str, list[Exception]], call: str) -> None:
        if when.get(call):
            raise when[call].pop(0)

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        self.sizes.append(len(batch.jobs))
        self.fault(self.instead, "submit")
        if self.room is not None and len(batch.jobs) > self.room:
            raise CannotTake("quota", arrived=False)
        ids = [f"{batch.name}-{place}" for place, _ in enumerate(batch.jobs)]
        if batch.name not in self.queue.batches:
            self.queue.batches[batch.name] = batch
            for id_ in ids:
                self.queue.tell(QueueJob(id_, "waiting"))
            if self.room is not None:
                self.room -= len(ids)
        for place, row in self.told_at_once.items():
            self.queue.tell(QueueJob(ids[place], row.state, row.status))
        self.fault(self.after, "submit")
        return ids

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        self.fault(self.instead, "ask")
        self.asked += 1
        return list(self.queue.jobs.values())

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        return [self.queue.jobs.get(id_, QueueJob(id_, "unknown")) for id_ in ids]

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        self.fault(self.instead, "find")
        found = name in self.queue.batches
        return [f"{name}-{place}" for place in range(size)] if found else None

    def end_jobs(self, ids: Collection[str]) -> None:
        self.fault(self.instead, "end")
        self.ended += ids
        self.queue.tell(*(QueueJob(id_, "over", status=15) for id_ in ids))

    def watch(self, told: Callable[[Iterable[QueueJob]], None]) -> None:
        self.watched += 1
        if self.broken:
            raise self.broken.pop(0)
        self.queue.listeners.append(told)
        told(())
        self.leave.wait()
        self.leave.clear()
        self.queue.listeners.remove(told)

    def disconnect(self) -> None:
        self.leave.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOON", "SOON_AGAIN", "AWAY"):
        monkeypatch.setattr(timing, name, 0.05)
    monkeypatch.setattr(timing, "SETTLE", 0.3)


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def session(queue: Queue, tmp_path: Path) -> Iterator[Session]:
    with Session(Telling(queue), tmp_path) as session:
        wait_until(lambda: queue.listeners)
        yield session


def executor_of(session: Session) -> Telling:
    assert isinstance(session.executor, Telling)
    return session.executor


def waiting(session: Session, job: Job) -> str:
    """Submit a job and return its id in the queue."""
    session.submit(job)
    session.wait(lambda: "submit" in session.names(job), "submit")
    return session.queue_id(job)


def test_a_job_begins_and_ends_when_the_queue_reports_it(queue: Queue, session: Session) -> None:
    job = session.job("true")
    id_ = waiting(session, job)
    now = time.time()
    wait_until(lambda: time.time() > now + 0.3)
    queue.tell(QueueJob(id_, "running", began=now + 0.05, host="n1"))
    queue.tell(QueueJob(id_, "over", status=3 << 8, began=now + 0.05, ended=now + 0.25, host="n1"))
    session.wait_clean(job)
    assert session.context(job, "start")["host"] == "n1"
    assert session.context(job, "finish")["status"] == 3 << 8
    times = {event.name: event.timestamp for event in session.of(job)}
    assert times["start"] == pytest.approx(now + 0.05)
    assert times["finish"] == pytest.approx(now + 0.25)
    assert executor_of(session).asked <= 1


def test_without_arrays_shapes_of_waiting_jobs_are_not_compared_for_each_submission(
    queue: Queue, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, shape, calls = executor_of(session), Telling.shape, []
    executor.most_jobs = 1
    monkeypatch.setattr(
        Telling, "shape", lambda self, job: (calls.append(job.id), shape(self, job))[1]
    )
    jobs = [session.job("true") for _ in range(100)]
    session.submit(*jobs)
    session.wait(lambda: all("submit" in session.names(job) for job in jobs), "submit")
    assert executor.sizes == [1] * 100
    assert len(calls) <= 300


def test_an_end_reported_twice_ends_its_job_once(queue: Queue, session: Session) -> None:
    job = session.job("true")
    id_ = waiting(session, job)
    for _ in range(2):
        queue.tell(QueueJob(id_, "over", status=0), QueueJob(id_, "over", status=9))
    session.wait_clean(job)
    assert session.names(job).count("clean") == 1
    assert session.context(job, "finish")["status"] == 0


def test_a_report_before_the_id_is_returned_is_not_lost(queue: Queue, session: Session) -> None:
    executor_of(session).told_at_once = {0: QueueJob("", "over", status=0)}
    job = session.job("true")
    session.run(job)
    assert session.context(job, "finish")["status"] == 0
    assert executor_of(session).asked <= 1


def test_the_queues_reason_becomes_the_jobs_reason(queue: Queue, session: Session) -> None:
    job, other = session.job("true"), session.job("true", group="u")
    session.submit(job, other)
    session.wait(lambda: all("submit" in session.names(each) for each in (job, other)), "submit")
    now = time.time()
    began = QueueJob(session.queue_id(job), "over", 9, "out-of-memory", "OOMKilled", now, now)
    queue.tell(began, QueueJob(session.queue_id(other), "over", None, "alloc", "no such image"))
    session.wait_clean(job, other)
    assert session.exception(job) == "out-of-memory"
    assert session.context(job, "finish")["status"] == signal.SIGKILL
    assert session.context(other, "exception")["note"] == "no such image"
    assert "start" not in session.names(other)


def test_a_submission_whose_answer_is_lost_is_found_by_its_name(
    queue: Queue, session: Session
) -> None:
    executor_of(session).after["submit"] = [CannotTake("the answer was cut")]
    job = session.job("true")
    id_ = waiting(session, job)
    queue.tell(QueueJob(id_, "over", status=0))
    session.wait_clean(job)
    assert len(queue.batches) == 1
    assert len(executor_of(session).sizes) == 1
    assert sum("does not answer" in text for text in session.problems()) == 1


def test_a_submission_that_never_arrived_is_repeated_under_its_name(
    queue: Queue, session: Session
) -> None:
    names: list[str] = []
    executor = executor_of(session)
    submit = executor.submit_batch

    def noted(batch: Batch) -> Sequence[str]:
        names.append(batch.name)
        return submit(batch)

    executor.submit_batch = noted  # type: ignore[method-assign]  # to record its argument
    executor.instead["submit"] = [CannotTake("no route to the queue")]
    waiting(session, session.job("true"))
    assert len(names) == 2
    assert len(set(names)) == 1


def test_an_invalid_job_fails_with_the_queues_message(queue: Queue, session: Session) -> None:
    executor_of(session).instead["submit"] = [InvalidJob("no such image", hint="name another")]
    job = session.job("true")
    session.run(job)
    assert session.exception(job) == "submit"
    assert "no such image" in session.context(job, "exception")["note"]
    assert len(queue.batches) == 0


def test_a_full_queue_gets_smaller_batches_and_more_when_a_job_ends(
    queue: Queue, session: Session
) -> None:
    executor = executor_of(session)
    executor.room = 2
    jobs = [session.job("true") for _ in range(8)]
    session.submit(*jobs)
    wait_until(lambda: sum(len(batch.jobs) for batch in queue.batches.values()) == 2)
    assert executor.sizes[:3] == [8, 4, 2]
    executor.room = 6
    queue.tell(*(QueueJob(id_, "over", status=0) for id_ in list(queue.jobs)))
    wait_until(lambda: sum(len(batch.jobs) for batch in queue.batches.values()) == 8)
    wait_until(lambda: all("submit" in session.names(job) for job in jobs))
    queue.tell(*(QueueJob(id_, "over", status=0) for id_ in list(queue.jobs)))
    session.wait_clean(*jobs)
    assert sum("accepts no more jobs" in text for text in session.problems()) == 1


def test_a_full_queue_does_not_split_a_batch_no_larger_than_an_accepted_one(
    queue: Queue, session: Session
) -> None:
    """A queue that counts an array as one job would reject smaller arrays as well."""
    executor = executor_of(session)
    first = [session.job("true") for _ in range(8)]
    session.submit(*first)
    session.wait(lambda: all("submit" in session.names(job) for job in first), "submit")
    executor.room = 0
    second = [session.job("true") for _ in range(8)]
    session.submit(*second)
    wait_until(lambda: len(executor.sizes) == 2)
    executor.room = 8
    (id_, *_) = queue.jobs
    queue.tell(QueueJob(id_, "over", status=0))
    session.wait(lambda: all("submit" in session.names(job) for job in second), "submit")
    assert executor.sizes == [8, 8, 8]
    queue.tell(*(QueueJob(id_, "over", status=0) for id_ in list(queue.jobs)))
    session.wait_clean(*first, *second)


def test_a_cancelled_job_is_over_when_the_queue_has_ended_it(
    queue: Queue, session: Session
) -> None:
    job = session.job("true")
    id_ = waiting(session, job)
    queue.tell(QueueJob(id_, "running"))
    session.cancel(job)
    session.wait_clean(job)
    assert executor_of(session).ended == [id_]
    assert session.exception(job) == "cancel"
    assert session.context(job, "finish")["status"] == signal.SIGTERM


def test_a_job_that_succeeded_before_its_cancel_arrived_has_succeeded(
    queue: Queue, session: Session
) -> None:
    job = session.job("true")
    id_ = waiting(session, job)
    executor_of(session).end_jobs = lambda ids: None  # type: ignore[method-assign]  # too late
    session.cancel(job)
    queue.tell(QueueJob(id_, "over", status=0))
    session.wait_clean(job)
    assert "exception" not in session.names(job)


def test_a_job_cancelled_while_its_batch_is_being_submitted_is_ended(
    queue: Queue, session: Session
) -> None:
    executor = executor_of(session)
    executor.after["submit"] = [CannotTake("the answer was cut")]
    executor.instead["find"] = [CannotTake("the answer was cut")]
    job = session.job("true")
    session.submit(job)
    wait_until(lambda: queue.batches)
    session.cancel(job)
    session.wait_clean(job)
    assert len(executor.ended) == 1
    assert session.exception(job) == "cancel"


def test_a_job_that_the_queue_loses_is_reported_as_lost(queue: Queue, session: Session) -> None:
    job = session.job("true")
    waiting(session, job)
    queue.jobs.clear()
    executor_of(session).leave.set()  # reports stop and start again
    session.wait_clean(job)
    assert session.exception(job) == "lost"


def test_a_reused_queue_id_belongs_to_the_later_job(queue: Queue, session: Session) -> None:
    executor = executor_of(session)
    submit = executor.submit_batch
    executor.submit_batch = lambda batch: submit(batch) and ["7"]  # type: ignore[method-assign]
    first, second = session.job("true"), session.job("true", group="other")
    waiting(session, first)
    waiting(session, second)
    session.cancel(first)
    queue.tell(QueueJob("7", "over", status=3 << 8))
    executor.leave.set()  # reports stop, so the executor polls
    session.wait_clean(first, second)
    assert session.context(second, "finish")["status"] == 3 << 8
    assert session.exception(first) == "cancel"
    assert executor.ended == []


def test_questions_and_cancels_to_an_unreachable_queue_are_retried(
    queue: Queue, session: Session
) -> None:
    executor = executor_of(session)
    away = CannotTake("no route to the queue")
    job = session.job("true")
    id_ = waiting(session, job)
    executor.instead.update(ask=[away] * 3, end=[away] * 3)
    session.cancel(job)
    session.wait_clean(job)
    assert session.exception(job) == "cancel"
    assert executor.ended == [id_]
    assert sum("does not accept a cancel" in text for text in session.problems()) == 1


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_queue_clock_that_is_an_hour_off_changes_neither_order_nor_durations(
    queue: Queue, session: Session, off: float
) -> None:
    job = session.job("true")
    id_ = waiting(session, job)
    now = time.time()
    wait_until(lambda: time.time() > now + 0.3)
    queue.tell(QueueJob(id_, "over", status=0, began=now + off + 0.1, ended=now + off + 0.2))
    session.wait_clean(job)
    times = [event.timestamp for event in session.of(job)]
    assert times == sorted(times)
    named = {event.name: event.timestamp for event in session.of(job)}
    assert named["finish"] - named["start"] == pytest.approx(0.1, abs=0.01)
    assert session.misdated == []


def test_missed_changes_are_asked_for_when_reports_resume(queue: Queue, session: Session) -> None:
    job = session.job("true")
    id_ = waiting(session, job)
    queue.jobs[id_] = QueueJob(id_, "over", status=0)  # not reported
    executor_of(session).leave.set()
    session.wait_clean(job)
    assert executor_of(session).watched == 2


def test_a_queue_that_stops_reporting_is_reported_once_and_watched_again(
    queue: Queue, tmp_path: Path
) -> None:
    executor = Telling(queue)
    executor.broken = [CannotTake("401: the token has expired")] * 3
    with Session(executor, tmp_path) as session:
        wait_until(lambda: queue.listeners)
        job = session.job("true")
        id_ = waiting(session, job)
        queue.tell(QueueJob(id_, "over", status=0))
        session.wait_clean(job)
        assert sum("reports no changes" in text for text in session.problems()) == 1
    assert executor.watched == 4


def test_a_later_controller_finds_jobs_and_how_they_ended(queue: Queue, tmp_path: Path) -> None:
    with Session(Telling(queue), tmp_path) as first:
        jobs = [first.job("true", group=group) for group in "ab"]
        first.submit(*jobs)
        first.wait(lambda: all("submit" in first.names(job) for job in jobs), "submit")
    queue.tell(*(QueueJob(id_, "over", status=0) for id_ in queue.jobs))
    second = Session(Telling(queue), tmp_path)
    second.resume(first)
    with second:
        second.take_over([job.id for job in jobs])
        second.wait_clean(*jobs)
        assert second.context(jobs[0], "finish")["status"] == 0
    assert len(queue.batches) == 2


def test_a_batch_whose_answer_was_lost_with_its_controller_is_found_again(
    queue: Queue, tmp_path: Path
) -> None:
    """A batch that never arrived is reported as unknown."""
    first = Telling(queue)
    first.after["submit"] = [CannotTake("cut"), CannotTake("cut")]
    first.instead["find"] = [CannotTake("cut")] * 1000
    with Session(first, tmp_path) as session:
        job = session.job("true")
        session.submit(job)
        wait_until(lambda: queue.batches)
        first.instead["submit"] = [CannotTake("away")] * 1000
        other = session.job("true", group="other")
        session.submit(other)
        wait_until(lambda: len(first.sizes) > 1)
    second = Session(Telling(queue), tmp_path)
    second.resume(session)
    with second:
        found = second.executor.reattach({job.id: 0.0, other.id: 0.0})
        assert found == {job.id: True, other.id: False}
        (id_,) = queue.jobs
        queue.tell(QueueJob(id_, "over", status=0))
        second.wait_clean(job)


def test_close_ends_a_watch_and_emits_nothing_afterwards(queue: Queue, tmp_path: Path) -> None:
    with Session(Telling(queue), tmp_path) as session:
        wait_until(lambda: queue.listeners)
        job = session.job("true")
        id_ = waiting(session, job)
        (told,) = queue.listeners
    assert not queue.listeners
    before = len(session.events)
    told([QueueJob(id_, "over", status=0)])
    assert len(session.events) == before


def test_a_job_gets_its_variables_and_its_files_from_its_batch(
    queue: Queue, session: Session, tmp_path: Path
) -> None:
    job = session.job("true", environment={"A": "1"}, stdout="out.txt", workdir=str(tmp_path))
    waiting(session, job)
    (batch,) = queue.batches.values()
    variables = batch.environment(job)
    assert variables["A"] == "1"
    assert variables["ENSEMBLE_JOB_ID"] == job.id
    assert variables["ENSEMBLE_RUN"] == batch.tag == session.tag
    assert batch.places[0].out == str(tmp_path / "out.txt")
    assert not batch.script


def test_a_held_job_is_reported_once_for_its_group_unless_the_run_holds_it(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Telling, "poll", 0.1)
    with Session(Telling(queue), tmp_path) as session:
        wait_until(lambda: queue.listeners)
        wished = session.job("true", group="wished", urgency=0)
        jobs = [session.job("true", group="work") for _ in range(2)]
        ids = [waiting(session, job) for job in (wished, *jobs)]
        queue.tell(*(QueueJob(id_, "held", note=f"'free {id_}' releases it") for id_ in ids))
        session.wait(session.problems, "a warning")
        asked = executor_of(session).asked
        wait_until(lambda: executor_of(session).asked > asked + 2)
        (message,) = session.problems()
        assert "work.1" in message or "work.2" in message
        assert "releases it" in message
    later = Session(Telling(queue), tmp_path)
    later.resume(session)
    with later:
        later.take_over([job.id for job in (wished, *jobs)])
        later.wait(later.problems, "a warning")
        asked = executor_of(later).asked
        wait_until(lambda: executor_of(later).asked > asked + 2)
        (message,) = later.problems()
        assert "work.1" in message or "work.2" in message
        queue.tell(*(QueueJob(id_, "over", status=0) for id_ in ids))
        later.wait_clean(wished, *jobs)
