"""Tests of jobs that a queue omits from its lists, suspends or requeues, with both wrappers.

The queue answers in part or not at all, and is asked about single jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from ensemble_batch import Batch, BatchExecutor, CannotTake, QueueJob, timing
from ensemble_batch.queries_and_lost_jobs import Absences
from ensemble_testing import Session, wait_until

from ensemble_core import Job


class Forgetful(BatchExecutor):
    """An in-memory queue that starts each job at once."""

    name = "forgetful"
    task_id = "$QUEUE_ID"
    task_restarts = "${RESTARTS:-0}"
    poll = 0.2
    grace = 0.2
    explains: ClassVar[bool] = True
    lanes: ClassVar[Literal[1, 2]] = 1

    def __init__(self, claims: bool) -> None:
        self.claims = claims  # type: ignore[misc]  # an instance may have another than its class
        self.scripts: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Ids that lists omit, ids that the queue has forgotten, and whether lists are empty.
        self.unlisted: set[str] = set()
        self.forgotten: set[str] = set()
        self.blind = False
        #: Whether it can be asked about a single job, and whether it accepts and obeys cancels.
        self.knows_jobs = self.accepts = self.obeys = True
        #: How it denies a job although it has not lost its records.
        self.denies: Literal["unknown", "absent"] | None = None
        #: What it says about jobs that wait.
        self.note = ""
        #: Whether new jobs wait, and whether lists show how jobs ended.
        self.holds = self.shows_ends = False
        #: Whether questions about single jobs get an answer.
        self.answers = True
        self.suspended: set[str] = set()
        self.restarts: dict[str, int] = {}
        #: Why the queue ended a job: its exception.
        self.reasons: dict[str, str] = {}
        self.ended: list[str] = []
        self.lists = 0
        self.folder = Path()

    def may_restart(self, job: Job) -> bool:
        return True

    def begin(self, id_: str) -> None:
        """Start a job as the queue would."""
        variables = {"QUEUE_ID": id_, "RESTARTS": str(self.restarts.get(id_, 0))}
        self.processes[id_] = subprocess.Popen(
            ["bash", self.scripts[id_]], start_new_session=True, env={**os.environ, **variables}
        )

    def requeue(self, id_: str) -> None:
        """Kill a job's processes, and let it wait."""
        process = self.processes.pop(id_)
        process.terminate()
        process.wait(120)
        self.restarts[id_] = self.restarts.get(id_, 0) + 1

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        id_ = str(len(self.scripts))
        self.scripts[id_] = self.folder / f"script.{id_}"
        self.scripts[id_].write_bytes(Path(batch.script).read_bytes())
        if not self.holds:
            self.begin(id_)
        return [id_]

    def rows(self) -> Iterator[QueueJob]:
        for id_ in self.scripts.keys() - self.forgotten:
            process, restarts = self.processes.get(id_), self.restarts.get(id_, 0)
            if process is None:
                yield QueueJob(id_, "waiting", restarts=restarts, note=self.note)
            elif process.poll() is None:
                state = "suspended" if id_ in self.suspended else "running"
                # On a loaded machine, the list says so before the job itself does.
                yield QueueJob(id_, state, host="n1", restarts=restarts)  # type: ignore[arg-type]  # is narrower
            elif self.shows_ends:
                yield QueueJob(
                    id_,
                    "over",
                    status=process.returncode << 8,
                    exception=self.reasons.get(id_),
                    note=f"ended by {self.name}",
                )

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        self.lists += 1
        return [row for row in self.rows() if not (self.blind or row.id in self.unlisted)]

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        if not self.answers:
            raise CannotTake("the accounting is away")
        if self.knows_jobs:
            rows = {row.id: row for row in self.rows()}
            kind = "cancel" if self.denies == "unknown" else None
            missing = self.denies or "unknown"
            yield from (rows.get(id_, QueueJob(id_, missing, exception=kind)) for id_ in ids)

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        return None

    def end_jobs(self, ids: Collection[str]) -> None:
        if not self.accepts:
            raise CannotTake("the queue is away")
        self.ended += ids
        for id_ in ids if self.obeys else ():
            if id_ in self.processes:
                self.processes[id_].terminate()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOON", "SOON_AGAIN", "AWAY", "SHOWN", "RESERVE"):
        monkeypatch.setattr(timing, name, 0.05)


@pytest.fixture(params=[True, False], ids=["claims", "reports"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Forgetful]:
    queue = Forgetful(request.param)
    queue.folder = tmp_path
    yield queue
    for process in queue.processes.values():
        process.terminate()
        process.wait(120)


@pytest.fixture
def session(queue: Forgetful, tmp_path: Path) -> Iterator[Session]:
    with Session(queue, tmp_path) as session:
        yield session
        (tmp_path / "gate").touch()


def gated(session: Session, folder: Path, **fields: Any) -> Job:
    """Return a job that records its start, and ends once the file ``gate`` exists."""
    script = "echo $ENSEMBLE_JOB_ID >> ran; until [ -e gate ]; do sleep 0.05; done"
    return session.job("sh", "-c", script, workdir=str(folder), **fields)


def running(session: Session, folder: Path, count: int = 1) -> list[Job]:
    jobs = [gated(session, folder, group=f"g{number}") for number in range(count)]
    session.submit(*jobs)
    for job in jobs:
        session.wait_for(job, "start")
    # A job may report its start before the queue's thread continues.
    wait_until(lambda: len(ran(folder)) == count == len(session.executor.processes))  # type: ignore[attr-defined]
    return jobs


def ran(folder: Path) -> list[str]:
    path = folder / "ran"
    return path.read_text().split() if path.exists() else []


def lists(queue: Forgetful, more: int = 12) -> None:
    """Wait for further lists."""
    before = queue.lists
    wait_until(lambda: queue.lists > before + more)


def missing(
    queue: Forgetful, session: Session, folder: Path, *, after: float = 0.1
) -> tuple[Job, Job]:
    """Start two jobs, of which the queue then omits the first one, and obeys no cancel."""
    queue.lost_after, queue.knows_jobs, queue.obeys = after, False, False
    first, second = running(session, folder, 2)
    queue.unlisted = {session.queue_id(first)}
    return first, second


def forget(queue: Forgetful, session: Session, job: Job) -> None:
    """Let the queue forget a job, which is then lost, but continues."""
    queue.obeys = False
    queue.forgotten = {session.queue_id(job)}
    session.wait_clean(job)
    assert session.exception(job) == "lost"


def succeed(session: Session, folder: Path) -> str:
    """Let a lost job succeed. Return the message about that."""
    (folder / "gate").touch()
    session.wait(lambda: any("succeeded after all" in text for text in session.problems()), "it")
    return session.problems()[-1]


def attempt(job: Job, number: int) -> Job:
    """Return a further attempt of a job, which fails."""
    return Job(
        id=f"{job.id}-{number}", group=job.group, index=job.index, attempt=number,
        command=("sh", "-c", "exit 3"), workdir=job.workdir,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("knows_jobs", [True, False])
def test_a_blind_queue_loses_no_job_and_is_reported_once(
    queue: Forgetful, session: Session, tmp_path: Path, count: int, knows_jobs: bool
) -> None:
    queue.lost_after, queue.knows_jobs = 0.0, knows_jobs
    jobs = running(session, tmp_path, count)
    queue.blind = True
    session.wait(lambda: bool(session.problems()), "a warning")
    lists(queue)
    assert not any("exception" in session.names(job) for job in jobs)
    queue.blind = False
    session.wait(lambda: len(session.problems()) == 2, "the second message")
    (tmp_path / "gate").touch()
    session.wait_clean(*jobs)
    assert [session.context(job, "finish")["status"] for job in jobs] == [0] * count
    first, second = session.problems()
    assert f"lists {count} of the run's jobs no more" in first
    assert "hint" in first
    assert "responds again" in second
    assert not queue.ended


def test_a_partial_list_loses_no_job_that_the_queue_knows(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    queue.lost_after = 0.0
    jobs = running(session, tmp_path, 2)
    queue.unlisted = {"0"}
    lists(queue)
    (tmp_path / "gate").touch()
    session.wait_clean(*jobs)
    assert [session.context(job, "finish")["status"] for job in jobs] == [0, 0]
    assert sum("responds again" not in text for text in session.problems()) == 1
    assert not queue.ended


def test_a_job_missing_from_lists_of_others_is_lost_after_a_while_and_cancelled_first(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    began = time.monotonic()
    first, second = missing(queue, session, tmp_path, after=1.0)
    session.wait_clean(first)
    assert time.monotonic() - began > 1.0
    assert queue.ended[0] == session.queue_id(first)
    assert session.exception(first) == "lost"
    assert "for 1 s" in session.context(first, "exception")["note"]
    (tmp_path / "gate").touch()
    session.wait_clean(second)
    assert session.context(second, "finish")["status"] == 0


def test_a_job_that_reports_its_end_while_it_is_given_up_is_not_lost(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    queue.grace = 600.0
    first, second = missing(queue, session, tmp_path)
    wait_until(lambda: queue.ended)
    (tmp_path / "gate").touch()
    session.wait_clean(first, second)
    assert session.context(first, "finish")["status"] == 0
    assert "exception" not in session.names(first)


def test_a_lost_job_gets_the_grace_of_its_group_before_its_next_attempt(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    queue.lost_after, queue.knows_jobs = 0.1, False
    (other,) = running(session, tmp_path)
    script = "trap 'sleep 2; touch saved; exit 1' TERM; touch up; while :; do sleep 0.1; done"
    job = session.job("bash", "-c", script, workdir=str(tmp_path), group="saves", grace=600.0)
    session.submit(job)
    session.wait_for(job, "start")
    wait_until((tmp_path / "up").exists)
    queue.unlisted = {session.queue_id(job)}
    session.wait_clean(job)
    assert (tmp_path / "saved").exists()
    assert session.exception(job) == "lost"
    (tmp_path / "gate").touch()
    session.wait_clean(other)


@pytest.mark.parametrize("queue", [False], indirect=True, ids=["reports"])
def test_a_lost_job_that_the_queue_starts_after_all_is_no_success(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    """The queue did not accept the cancel. The wrapper runs nothing, and ends at once."""
    queue.lost_after, queue.knows_jobs, queue.shows_ends = 0.1, False, True
    (other,) = running(session, tmp_path)
    queue.holds, queue.accepts = True, False
    job = gated(session, tmp_path, group="waits")
    session.submit(job)
    session.wait_for(job, "submit")
    id_ = session.queue_id(job)
    queue.unlisted = {id_}
    session.wait(lambda: any("a cancel" in text for text in session.problems()), "a cancel")
    queue.begin(id_)
    queue.processes[id_].wait(60)
    queue.unlisted = set()
    session.wait_clean(job)
    assert session.exception(job) == "lost"
    assert "it was cancelled" in session.context(job, "exception")["note"]
    queue.accepts = True
    (tmp_path / "gate").touch()
    session.wait_clean(other)
    assert ran(tmp_path) == [other.id]


def test_a_job_that_the_queue_denies_is_lost_at_once(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    """Its node has died, and the queue has forgotten it."""
    (job,) = running(session, tmp_path)
    queue.processes["0"].send_signal(signal.SIGSTOP)  # it cannot report
    queue.forgotten = {"0"}
    session.wait_clean(job)
    queue.processes["0"].send_signal(signal.SIGCONT)
    assert session.exception(job) == "lost"
    assert "has not reported its end" in session.context(job, "exception")["note"]


@pytest.mark.parametrize("queue", [True], indirect=True)
def test_a_job_whose_wrapper_never_ran_is_no_success_whatever_the_queue_says(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    """PBS reports the exit status of an array also for tasks that never ran."""
    queue.holds = queue.shows_ends = True
    session.submit(job := gated(session, tmp_path))
    wait_until(lambda: "0" in queue.scripts)
    queue.scripts["0"].write_text("exit 0\n")
    queue.begin("0")
    session.wait_clean(job)
    assert session.exception(job) == "lost"
    assert "the job has reported nothing" in session.context(job, "exception")["note"]
    assert ran(tmp_path) == []


def test_late_success_of_a_lost_job_counts_if_its_next_attempt_has_not_begun(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    (job,) = running(session, tmp_path)
    forget(queue, session, job)
    succeed(session, tmp_path)
    again = attempt(job, 1)
    session.run(again)
    assert session.context(again, "finish")["status"] == 0
    assert session.context(again, "start")["stdout"] == session.context(job, "start")["stdout"]
    assert ran(tmp_path) == [job.id]
    assert len(queue.scripts) == 1


def test_late_success_of_a_lost_job_ends_no_attempt_after_the_next(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    (job,) = running(session, tmp_path)
    forget(queue, session, job)
    session.run(attempt(job, 1))
    assert "its next attempt was submitted before" in succeed(session, tmp_path)
    session.run(attempt(job, 2))
    assert session.context(attempt(job, 2), "finish")["status"] == 3 << 8
    assert len(queue.scripts) == 3


def test_a_lost_job_that_the_queue_lists_again_is_cancelled_again(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    first, second = missing(queue, session, tmp_path)
    lost = session.queue_id(first)
    session.wait_clean(first)
    before = queue.ended.count(lost)
    queue.obeys, queue.unlisted = True, set()
    wait_until(lambda: queue.processes[lost].poll() is not None)
    assert queue.ended.count(lost) == before + 1
    (tmp_path / "gate").touch()
    session.wait_clean(second)
    assert sum("lists it again" in text for text in session.problems()) == 1


@pytest.mark.parametrize("queue", [False], indirect=True, ids=["reports"])
def test_a_job_that_was_given_up_before_a_resume_is_lost(queue: Forgetful, tmp_path: Path) -> None:
    queue.grace = 600.0
    with Session(queue, tmp_path) as first:
        job, other = missing(queue, first, tmp_path)
        wait_until(lambda: queue.ended)
    process = queue.processes[first.queue_id(job)]
    process.terminate()
    process.wait(60)
    queue.shows_ends, queue.unlisted = True, set()
    again = Session(queue, tmp_path)
    again.resume(first)
    with again:
        queue.reattach({job.id: 0.0, other.id: 0.0})
        (tmp_path / "gate").touch()
        again.wait_clean(job, other)
        assert again.exception(job) == "lost"


@pytest.mark.parametrize("next_attempt", [False, True])
def test_late_success_of_a_lost_job_is_noticed_after_a_resume(
    queue: Forgetful, tmp_path: Path, next_attempt: bool
) -> None:
    with Session(queue, tmp_path) as first:
        (job,) = running(first, tmp_path)
        forget(queue, first, job)
        queue.forget([job.id])
        if next_attempt:
            first.run(attempt(job, 1))
    second = Session(queue, tmp_path)
    second.resume(first)
    with second:  # which rewrites the records
        queue.reattach({})
    third = Session(queue, tmp_path)
    third.resume(second)
    with third:
        queue.reattach({})
        told = succeed(third, tmp_path)
        assert third.problems() == [told]
        assert ("its next attempt was submitted before" in told) == next_attempt


def test_late_success_of_a_lost_job_counts_also_after_a_resume(
    queue: Forgetful, tmp_path: Path
) -> None:
    with Session(queue, tmp_path) as first:
        (job,) = running(first, tmp_path)
        forget(queue, first, job)
        queue.forget([job.id])
        succeed(first, tmp_path)
    second = Session(queue, tmp_path)
    second.resume(first)
    with second:  # which rewrites the records
        queue.reattach({})
    third = Session(queue, tmp_path)
    third.resume(second)
    with third:
        queue.reattach({})
        third.run(attempt(job, 1))
        assert third.context(attempt(job, 1), "finish")["status"] == 0
        third.run(attempt(job, 2))
        assert third.context(attempt(job, 2), "finish")["status"] == 3 << 8
    assert len(queue.scripts) == 2


def test_one_unanswered_question_hides_no_other_job(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    first, second = running(session, tmp_path, 2)
    queue.answers = False
    queue.lost_after, queue.unlisted = 0.0, {session.queue_id(first)}
    session.wait(lambda: bool(session.problems()), "a warning")
    queue.suspended = {session.queue_id(second)}
    session.wait_for(second, "suspend")
    lists(queue)
    assert "exception" not in session.names(first)
    (text,) = session.problems()
    assert "does not say what became of 1 of the run's jobs" in text
    queue.answers, queue.unlisted, queue.suspended = True, set(), set()
    (tmp_path / "gate").touch()
    session.wait_clean(first, second)


def test_a_lost_job_does_not_count_as_listed_again(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    queue.lost_after, queue.knows_jobs, queue.obeys = 1.0, False, False
    first, second = running(session, tmp_path, 2)
    queue.unlisted = {session.queue_id(first)}
    session.wait_clean(first)
    lists(queue)
    assert not any("responds again" in text for text in session.problems())
    (tmp_path / "gate").touch()
    session.wait_clean(second)


def test_only_unusually_long_absences_are_reported_again() -> None:
    told: list[str] = []
    absences = Absences(told.append)
    for since, until in ((0.0, 10.0), (20.0, 30.0), (40.0, 45.0), (50.0, 71.0), (100.0, 110.0)):
        absences.begin(since, f"from {since:g}")
        absences.begin(until, f"from {since:g}")
        absences.end(until, f"to {until:g}")
    assert told == ["from 0", "to 10", "from 50", "to 71"]
    assert "omitted jobs of the run 5 times, for at most 21 s" in absences.summary(110.0, "x")


def test_absence_that_was_reported_is_not_repeated_at_the_end() -> None:
    absences = Absences(lambda text: None)
    absences.begin(0.0, "missing")
    absences.end(10.0, "again")
    assert absences.summary(20.0, "x") == ""


def test_executor_says_at_its_close_how_often_the_queue_omitted_jobs(
    queue: Forgetful, tmp_path: Path
) -> None:
    with Session(queue, tmp_path) as session:
        (job,) = running(session, tmp_path)
        absences = queue._queries._absences
        for times in (1, 2, 3):
            queue.blind = True
            wait_until(lambda times=times: absences._times == times)
            # The first phase is the longest one, so that only this one is reported.
            lists(queue, 12 if times == 1 else 0)
            queue.blind = False
            wait_until(lambda: absences._since is None)
        (tmp_path / "gate").touch()
        session.wait_clean(job)
    assert "omitted jobs of the run 3 times, for at most" in session.problems()[-1]


def test_blind_lists_at_a_resume_lose_no_job(
    queue: Forgetful, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(queue, tmp_path) as first:
        jobs = running(first, tmp_path, 2)
    queue.blind, queue.knows_jobs, queue.lost_after = True, False, 0.0
    again = Session(queue, tmp_path)
    again.resume(first)
    with again:
        found = queue.reattach({job.id: 0.0 for job in jobs})
        assert found == {job.id: True for job in jobs}
        lists(queue)
        queue.blind = False
        (tmp_path / "gate").touch()
        again.wait_clean(*jobs)
        assert [again.context(job, "finish")["status"] for job in jobs] == [0, 0]
    assert sorted(ran(tmp_path)) == sorted(job.id for job in jobs)


def test_a_suspended_job_is_reported_also_after_a_resume(queue: Forgetful, tmp_path: Path) -> None:
    with Session(queue, tmp_path) as first:
        (job,) = running(first, tmp_path)
        queue.suspended = {"0"}
        first.wait_for(job, "suspend")
        lists(queue, 4)
        assert first.names(job).count("suspend") == 1
    again = Session(queue, tmp_path)
    again.resume(first)
    with again:
        assert queue.reattach({job.id: 0.0}) == {job.id: True}
        queue.suspended = set()
        again.wait_for(job, "unsuspend")
        (tmp_path / "gate").touch()
        again.wait_clean(job)
        wanted = ["start", "suspend", "unsuspend", "finish"]
        assert [name for name in again.names(job) if name in wanted] == wanted


@pytest.mark.parametrize("queue", [False], indirect=True, ids=["reports"])
def test_a_requeued_job_waits_and_starts_again_also_after_a_resume(
    queue: Forgetful, tmp_path: Path
) -> None:
    with Session(queue, tmp_path) as first:
        (job,) = running(first, tmp_path)
        queue.requeue("0")
        first.wait_for(job, "requeue")
        assert "finish" not in first.names(job)
    again = Session(queue, tmp_path)
    again.resume(first)
    with again:
        assert queue.reattach({job.id: 0.0}) == {job.id: True}
        lists(queue, 2)
        assert "clean" not in again.names(job)
        queue.begin("0")
        again.wait(lambda: again.names(job).count("start") == 2, "the second start")
        (tmp_path / "gate").touch()
        again.wait_clean(job)
        names = again.names(job)
        assert names.count("alloc") == names.count("start") == 2
        assert names.count("submit") == names.count("clean") == names.count("finish") == 1
        requeue = names.index("requeue")
        assert "start" in names[:requeue]
        assert "start" in names[requeue:]
        assert all("host" in event.context for event in again.of(job) if event.name == "start")
        assert again.context(job, "finish")["status"] == 0
    assert ran(tmp_path) == [job.id, job.id]


@pytest.mark.parametrize("queue", [True], indirect=True, ids=["claims"])
def test_a_claimed_job_that_the_queue_requeues_no_longer_runs(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    """Its second copy will run nothing."""
    (job,) = running(session, tmp_path)
    queue.processes["0"].kill()  # its node
    queue.processes.pop("0").wait(120)
    queue.restarts["0"] = 1
    session.wait_for(job, "requeue")
    lists(queue)
    assert session.names(job)[-1] == "requeue"
    queue.begin("0")
    session.wait_clean(job)
    assert session.exception(job) in ("node-failure", "lost")
    assert ran(tmp_path) == [job.id]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("out-of-memory", "memory"), ("timeout", "timeout"), ("cancel", "cancelled")],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_job_that_the_queue_ends_has_the_queues_reason(
    queue: Forgetful, session: Session, tmp_path: Path, reason: str, cause: str, listed: bool
) -> None:
    """Its wrapper knows only that it got a signal."""
    (job,) = running(session, tmp_path)
    queue.shows_ends = True
    queue.reasons["0"] = reason
    if not listed:
        queue.unlisted = {"0"}  # only the queue's accounting shows it
    queue.processes["0"].terminate()
    session.wait_clean(job)
    assert session.cause(job) == cause
    assert session.context(job, "exception")["note"] == "ended by forgetful"


def test_a_job_that_an_unexplained_signal_ends_is_over(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    (job,) = running(session, tmp_path)
    queue.processes["0"].terminate()
    session.wait_clean(job)
    assert session.cause(job) == "signal"


@pytest.mark.parametrize("queue", [True], indirect=True)
@pytest.mark.parametrize("soon", [True, False])
def test_a_claimed_job_that_the_queue_stops_and_requeues_is_cut_off(
    queue: Forgetful, session: Session, tmp_path: Path, soon: bool
) -> None:
    (job,) = running(session, tmp_path)
    queue.shows_ends, queue.blind = True, soon
    queue.requeue("0")
    if soon:  # the queue starts its copy before it lists the job again
        queue.begin("0")
        queue.processes["0"].wait(120)
        queue.blind = False
    session.wait_clean(job)
    assert session.cause(job) == "node-failure"
    if not soon:
        wait_until(lambda: "0" in queue.ended)  # its copy in the queue
        queue.begin("0")
        queue.processes["0"].wait(120)
    assert ran(tmp_path) == [job.id]


@pytest.mark.parametrize("state", ["unknown", "absent"])
def test_a_waiting_job_that_a_queue_with_its_records_denies_was_deleted_by_others(
    queue: Forgetful, session: Session, tmp_path: Path, state: Literal["unknown", "absent"]
) -> None:
    """The queue then starts it after all: it must run nothing."""
    queue.holds, queue.denies = True, state
    job = gated(session, tmp_path)
    session.submit(job)
    wait_until(lambda: bool(queue.scripts))
    queue.forgotten = {"0"}
    session.wait_clean(job)
    assert (session.exception(job), session.cause(job)) == ("cancel", "cancelled")
    queue.begin("0")
    assert queue.processes["0"].wait(60)
    assert not ran(tmp_path)


def test_a_job_that_is_absent_after_its_start_may_still_report_its_end(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    queue.denies = "absent"
    (job,) = running(session, tmp_path)
    queue.forgotten = {"0"}
    lists(queue)
    assert "exception" not in session.names(job)
    (tmp_path / "gate").touch()
    session.wait_clean(job)
    assert session.context(job, "finish")["status"] == 0


def test_a_job_that_had_started_when_the_queue_denied_it_is_lost(
    queue: Forgetful, session: Session, tmp_path: Path
) -> None:
    queue.denies = "unknown"
    (job,) = running(session, tmp_path)
    queue.processes["0"].send_signal(signal.SIGSTOP)  # it cannot report
    queue.forgotten = {"0"}
    session.wait_clean(job)
    queue.processes["0"].send_signal(signal.SIGCONT)
    assert session.exception(job) == "lost"


def test_a_job_that_a_limit_holds_back_is_reported_while_no_job_of_the_run_runs(
    queue: Forgetful, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may need more than the limit allows to all jobs together, and then waits forever."""
    monkeypatch.setattr(timing, "LIMITED", 0.1)
    queue.note = "limit of 2 cores: ask for less"
    job = running(session, tmp_path)[0]
    queue.holds = True
    waiting = [gated(session, tmp_path, group="g1") for _ in range(2)]
    session.submit(*waiting)
    lists(queue)
    assert not session.problems()  # our own job may be what uses up the limit
    (tmp_path / "gate").touch()
    session.wait_clean(job)
    session.wait(session.problems, "a warning")
    lists(queue)
    assert len(session.problems()) == 1
    assert "waits in forgetful: limit of 2 cores" in session.problems()[0]
    for id_ in map(session.queue_id, waiting):
        queue.begin(id_)
    session.wait_clean(*waiting)
