"""Tests of BatchExecutor on a misbehaving queue.

Nothing runs twice, nothing is lost, and each problem is reported once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ensemble_batch import Batch, BatchExecutor, CannotTake, Place, QueueJob, Records, Sent, timing
from ensemble_batch.claims_and_file_reports import CLAIMED
from ensemble_batch.job_events import JobLife, Report
from ensemble_batch.job_script import script_of
from ensemble_testing import Session, wait_until

from ensemble_core import ExecutorError, ExecutorLost, Job
from ensemble_core.model.events import JobEvent

AWAY = ExecutorError("no route to the queue", hint="wait", transient=True)


class Odd(BatchExecutor):
    """An in-memory queue. Jobs start at submission (``auto``) or by :meth:`begin`."""

    name = "odd"
    task_id = "-"
    poll = 0.2

    def __init__(self, *, auto: bool = True) -> None:
        self.auto = auto
        #: Exceptions by call, raised one per call: after it took effect, or instead of it.
        self.after: dict[str, list[Exception]] = {}
        self.instead: dict[str, list[Exception]] = {}
        self.batches: dict[str, Batch] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.forgets = self.tells_codes = False
        #: Ids that lists of jobs omit although the queue knows them, and whether lists are empty.
        self.unlisted: set[str] = set()
        self.blind = False
        #: Whether the queue can be asked about a single job.
        self.knows_jobs = True
        self.suspended: set[str] = set()
        #: Whether the queue identifies jobs by their scripts, since users may rename jobs.
        self.shows_scripts = False
        #: Batches that the queue does not list, and whether it hides new ones.
        self.hidden: set[str] = set()
        self.hides = False
        self.ended: list[str] = []
        self.answers = 0

    def fault(self, when: dict[str, list[Exception]], call: str) -> None:
        if when.get(call):
            raise when[call].pop(0)

    def begin(self, id_: str) -> None:
        """Start a job as the queue would."""
        script = self.batches[id_].script
        self.processes[id_] = subprocess.Popen(["bash", script], start_new_session=True)

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        self.fault(self.instead, "submit")
        id_ = str(len(self.batches))
        if self.hides:
            self.hidden.add(batch.name)
        self.batches[id_] = batch
        if self.auto:
            self.begin(id_)
        self.fault(self.after, "submit")
        return [id_]

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        self.fault(self.instead, "ask")
        self.answers += 1
        yield from () if self.blind else (row for row in self.rows() if row.id not in self.unlisted)

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        rows = {row.id: row for row in self.rows()}
        if self.knows_jobs:
            yield from (rows.get(id_, QueueJob(id_, "unknown")) for id_ in ids)

    def rows(self) -> Iterator[QueueJob]:
        for id_, each in () if self.forgets else self.batches.items():
            process = self.processes.get(id_)
            batch = each.script if self.shows_scripts else each.name
            if process is None:
                yield QueueJob(id_, "waiting", batch=batch)
            elif process.poll() is None:
                state = "suspended" if id_ in self.suspended else "running"
                yield QueueJob(id_, state, batch=batch)  # type: ignore[arg-type]  # is narrower
            elif self.tells_codes:
                status = (process.returncode & 0xFF) << 8
                yield QueueJob(id_, "over", status=status, batch=batch)

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        self.fault(self.instead, "find")
        found = [id_ for id_, each in self.batches.items() if each.name == name]
        return found if found and name not in self.hidden else None

    def end_jobs(self, ids: Collection[str]) -> None:
        self.fault(self.instead, "end")
        for id_ in ids:
            self.ended.append(id_)
            if id_ in self.processes:
                self.processes[id_].terminate()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOON", "SOON_AGAIN", "AWAY", "FULL", "SHOWN"):
        monkeypatch.setattr(timing, name, 0.05)
    monkeypatch.setattr(timing, "SETTLE", 0.3)


@pytest.fixture
def odd() -> Iterator[Odd]:
    odd = Odd()
    yield odd
    for process in odd.processes.values():
        process.terminate()
        process.wait(120)


def counted(session: Session, folder: Path, **fields: Any) -> Any:
    """Return a job that appends a line to ``ran`` each time it runs."""
    return session.job("sh", "-c", "echo x >> ran", workdir=str(folder), **fields)


def submit_unseen(odd: Odd, session: Session, job: Job) -> None:
    """Submit a job that reaches the queue, but lose the answer and hide the job."""
    odd.auto, odd.hides = False, True
    odd.after["submit"] = [AWAY]
    session.submit(job)
    wait_until(lambda: odd.batches)
    odd.hides = False


def ran(folder: Path) -> int:
    return len((folder / "ran").read_text().split()) if (folder / "ran").exists() else 0


def test_a_submit_whose_answer_is_lost_is_found_in_the_queue(odd: Odd, tmp_path: Path) -> None:
    odd.after["submit"] = [AWAY]
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        session.run(job)
        assert session.context(job, "finish")["status"] == 0
    assert len(odd.batches) == 1
    assert ran(tmp_path) == 1
    assert len(session.problems()) <= 2  # no "back" if the job reports first
    assert sum("does not answer" in text for text in session.problems()) == 1


def test_a_submission_that_never_arrived_is_repeated(odd: Odd, tmp_path: Path) -> None:
    odd.instead["submit"] = [AWAY]
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        session.run(job)
    assert len(odd.batches) == 1
    assert ran(tmp_path) == 1


def test_a_submission_that_was_repeated_and_arrived_twice_runs_once(
    odd: Odd, tmp_path: Path
) -> None:
    """The queue lists the first submission only after the second, and starts both."""
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        submit_unseen(odd, session, job)
        wait_until(lambda: len(odd.batches) == 2)
        odd.begin("0")
        odd.begin("1")
        session.wait_clean(job)
        for process in odd.processes.values():
            process.wait(120)
        assert session.context(job, "finish")["status"] == 0
        session.check_ended_once()
    assert ran(tmp_path) == 1


def test_a_full_disk_between_two_attempts_does_not_create_another_batch(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt arrives late and finds its job claimed."""
    full = [OSError(28, "No space left on device")]
    send = Records.send

    def sometimes(self: Records, sent: Sent) -> None:
        if len(sent.names) > 1 and full:
            raise full.pop()
        send(self, sent)

    monkeypatch.setattr(Records, "send", sometimes)
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        submit_unseen(odd, session, job)
        wait_until(lambda: len(odd.batches) == 2)
        odd.begin("1")
        session.wait_clean(job)
        odd.begin("0")
        odd.processes["0"].wait(120)
        assert sum("cannot write" in text for text in session.problems()) == 1
    assert ran(tmp_path) == 1
    assert not full


def test_a_queue_that_is_full_after_a_lost_answer_does_not_run_jobs_twice(
    odd: Odd, tmp_path: Path
) -> None:
    """The first attempt filled the queue, but the queue lists it late."""
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        submit_unseen(odd, session, job)
        odd.instead["submit"] = [ExecutorError("1 job is the most", code="full")]
        wait_until(lambda: len(odd.batches) == 2)
        odd.begin("1")
        session.wait_clean(job)
        odd.begin("0")
        odd.processes["0"].wait(120)
        assert session.context(job, "finish")["status"] == 0
    assert ran(tmp_path) == 1


def test_a_job_rejected_after_a_lost_answer_does_not_run_if_it_arrives_later(
    odd: Odd, tmp_path: Path
) -> None:
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        submit_unseen(odd, session, job)
        odd.instead["submit"] = [ExecutorError("the project is closed")]
        session.wait_clean(job)
        odd.begin("0")
        odd.processes["0"].wait(120)
        assert session.exception(job) == "submit"
        session.check_ended_once()
    assert ran(tmp_path) == 0


@pytest.mark.parametrize(("task_id", "cancelled"), [("-", False), ("0", False), ("0", True)])
def test_a_job_that_began_while_its_second_attempt_was_rejected_does_not_fail(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_id: str, cancelled: bool
) -> None:
    monkeypatch.setattr(Odd, "task_id", task_id)
    with Session(odd, tmp_path) as session:
        gate = tmp_path / "gate"
        job = session.job("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        submit_unseen(odd, session, job)
        began = odd.submit_batch

        def refused(batch: Batch) -> Sequence[str]:
            odd.begin("0")
            reports = Path(batch.script).parents[1] / "reports"
            wait_until(lambda: any(path.read_text() for path in reports.iterdir()))
            odd.submit_batch = began  # type: ignore[method-assign]
            raise ExecutorError("the project is closed")

        odd.submit_batch = refused  # type: ignore[method-assign]
        session.wait_for(job, "start")
        if cancelled:
            session.cancel(job)
            wait_until(lambda: odd.ended == ["0"])
        gate.touch()
        session.wait_clean(job)
        assert cancelled or session.context(job, "finish")["status"] == 0
        session.check_ended_once()


def test_a_cancel_before_the_id_of_a_running_job_is_known_reaches_the_queue(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "task_id", "0")
    monkeypatch.setattr(timing, "READ", 3600.0)  # no report is read meanwhile
    with Session(odd, tmp_path) as session:
        gate = tmp_path / "gate"
        job = session.job("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        submit_unseen(odd, session, job)
        odd.begin("0")
        reports = Path(odd.batches["0"].script).parents[1] / "reports"
        wait_until(lambda: any(path.read_text() for path in reports.iterdir()))
        session.cancel(job)
        monkeypatch.undo()
        wait_until(lambda: odd.ended == ["0"])
        gate.touch()
        session.wait_clean(job)
        session.check_ended_once()


def test_a_job_that_cannot_write_to_the_spool_never_runs_and_is_reported_once(
    odd: Odd, tmp_path: Path
) -> None:
    odd.auto = False
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        session.submit(job)
        session.wait_for(job, "priority")
        reports = Path(odd.batches["0"].script).parents[1] / "reports"
        reports.rename(reports.with_name("away"))
        odd.begin("0")
        assert odd.processes["0"].wait(120) == 125
        session.wait_clean(job)
        reports.with_name("away").rename(reports)
        assert session.exception(job) == "lost"
        session.check_ended_once()
    assert ran(tmp_path) == 0


def test_a_full_disk_leaves_the_end_of_a_job_to_a_later_controller(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be recorded, and the controller is killed before the run's journal has it."""

    def tell(records: Records, events: Sequence[JobEvent]) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full, Session(odd, tmp_path) as first:
        job = counted(first, tmp_path)
        full.setattr(Records, "tell", tell)
        first.submit(job)
        first.wait_clean(job)
    later = Session(Odd(), tmp_path)
    later.resume(first)
    with later:
        assert later.executor.reattach({job.id: 0.0}) == {job.id: True}
        later.wait_clean(job)
        assert later.context(job, "finish")["status"] == 0


def test_events_are_repeated_once_to_each_later_controller(odd: Odd, tmp_path: Path) -> None:
    odd.auto = False
    with Session(odd, tmp_path) as first:
        job = first.job("true")
        first.submit(job)
        first.wait_for(job, "priority")
        told = first.of(job)
    for _ in range(2):
        later = Session(odd, tmp_path)
        later.resume(first)
        with later:
            assert odd.reattach({job.id: 0.0}) == {job.id: True}
            later.wait(lambda later=later: len(later.of(job)) >= len(told), "its events")
            assert later.of(job) == told


def test_a_job_cancelled_while_waiting_is_over_and_never_runs(odd: Odd, tmp_path: Path) -> None:
    """The queue rejects the cancellation and starts the job later."""
    odd.auto = False
    odd.instead["end"] = [AWAY] * 3
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        session.submit(job)
        session.wait_for(job, "priority")
        session.cancel(job)
        session.wait_clean(job)
        odd.begin("0")
        odd.processes["0"].wait(120)
        wait_until(lambda: odd.ended == ["0"])
        assert session.exception(job) == "cancel"
        assert "start" not in session.names(job)
    assert ran(tmp_path) == 0


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_succeeds_before_its_cancel_takes_effect_has_succeeded(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Exit code 0 counts as success, or a resume would run the job again. Others are cancelled."""
    with Session(odd, tmp_path) as session:
        gate = tmp_path / "gate"
        job = session.job("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done; exit {code}")
        session.submit(job)
        session.wait_for(job, "start")
        monkeypatch.setattr(Odd, "end_jobs", lambda odd, ids: odd.ended.extend(ids))
        session.cancel(job)
        wait_until(lambda: odd.ended == ["0"])
        gate.touch()
        session.wait_clean(job)
        session.check_ended_once()
        if code:
            assert session.exception(job) == "cancel"
        else:
            assert "exception" not in session.names(job)
            assert session.context(job, "finish")["status"] == 0


def test_a_job_that_ends_with_exit_code_0_after_its_cancel_is_cancelled(
    odd: Odd, tmp_path: Path
) -> None:
    with Session(odd, tmp_path) as session:
        here = tmp_path / "here"
        job = session.job(
            "sh", "-c", f"trap 'exit 0' TERM; touch {here}; while :; do sleep 0.05; done"
        )
        session.submit(job)
        wait_until(here.exists)
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"


@pytest.mark.parametrize("call", ["ask", "find"])
def test_an_unreachable_queue_is_reported_once_and_costs_nothing(
    odd: Odd, tmp_path: Path, call: str
) -> None:
    odd.instead[call] = [AWAY] * 5
    if call == "find":
        odd.after["submit"] = [AWAY]
    with Session(odd, tmp_path) as session:
        job = session.job("sleep", "1")
        session.run(job)
        assert session.context(job, "finish")["status"] == 0
    away = [text for text in session.problems() if "responds again" not in text]
    assert len(away) == 1
    assert "no route to the queue" in away[0]


def test_a_queue_that_cannot_be_opened_keeps_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(Odd):
        def nodes(self) -> dict[str, float]:
            raise ExecutorError("no such queue", code="no-queue")

    monkeypatch.setenv("DB_PASSWORD", "hunter2-and-more")
    with pytest.raises(ExecutorError, match="no such queue"), Session(Closed(), tmp_path):
        pass
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"hunter2-and-more" in path.read_bytes()] == []


def test_a_full_queue_is_retried(odd: Odd, tmp_path: Path) -> None:
    odd.instead["submit"] = [ExecutorError("100 jobs are the most", code="full")] * 3
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        session.run(job)
        assert session.context(job, "finish")["status"] == 0
    assert ran(tmp_path) == 1
    assert (
        sum("accepts no more jobs for now; 1 wait here" in text for text in session.problems()) == 1
    )


def test_a_rejected_job_fails_with_the_queues_message(odd: Odd, tmp_path: Path) -> None:
    odd.instead["submit"] = [ExecutorError("no such queue", hint="see qconf -sql")]
    with Session(odd, tmp_path) as session:
        job, good = session.job("true"), session.job("true")
        session.run(job)
        session.run(good)
    assert "no such queue" in session.context(job, "exception")["note"]
    assert session.exception(job) == "submit"
    assert session.context(good, "finish")["status"] == 0


def test_the_message_of_a_rejected_job_shows_the_values_that_it_asked_for(
    odd: Odd, tmp_path: Path
) -> None:
    odd.instead["submit"] = [ExecutorError("invalid memory", hint="see the manual")]
    with Session(odd, tmp_path) as session:
        job = session.job("true", duration=60.0, options={"odd": {"mem": "12Q"}})
        session.run(job)
        note = session.context(job, "exception")["note"]
    assert note.startswith("invalid memory (it asked for duration=60s, mem=12Q)\n")


def test_a_job_that_the_queue_forgets_is_lost_and_the_run_continues(
    odd: Odd, tmp_path: Path
) -> None:
    odd.auto, odd.forgets = False, True
    with Session(odd, tmp_path) as session:
        job = session.job("true")
        session.run(job)
        assert session.exception(job) == "lost"
        session.check_ended_once()


def test_a_job_reported_as_lost_does_not_run_if_the_queue_starts_it_later(
    odd: Odd, tmp_path: Path
) -> None:
    """A retry may be running by then."""
    odd.auto = False
    with Session(odd, tmp_path) as session:
        job = counted(session, tmp_path)
        session.submit(job)
        session.wait_for(job, "priority")
        # Queues copy the script at submission.
        shutil.copy(odd.batches["0"].script, tmp_path / "kept.sh")
        odd.forgets = True
        session.wait_clean(job)
        assert session.exception(job) == "lost"
        late = subprocess.run(["bash", tmp_path / "kept.sh"], timeout=60, check=False)
        assert late.returncode == CLAIMED  # it finds the claim
    assert ran(tmp_path) == 0


def test_a_reused_queue_id_belongs_to_the_later_job(odd: Odd, tmp_path: Path) -> None:
    """The queue crashed and forgot its newest job: this one is lost and never runs."""
    odd.auto = False
    with Session(odd, tmp_path) as session:
        first = counted(session, tmp_path)
        session.submit(first)
        session.wait(lambda: "submit" in session.names(first), "submit")
        forgotten = odd.batches.pop("0")
        second = session.job("sh", "-c", "sleep 1", group="other")
        session.submit(second)
        session.wait(lambda: "submit" in session.names(second), "submit")
        odd.begin("0")
        session.wait_clean(first, second)
        assert session.queue_id(first) == session.queue_id(second) == "0"
        assert session.exception(first) == "lost"
        assert session.context(second, "finish")["status"] == 0
        assert "0" not in odd.ended
        subprocess.run(["bash", forgotten.script], check=False)
    assert ran(tmp_path) == 0


@pytest.mark.parametrize("shown", ["name", "script"])
def test_a_foreign_job_with_a_reused_queue_id_is_not_ours(
    odd: Odd, tmp_path: Path, shown: str
) -> None:
    odd.auto, odd.shows_scripts = False, shown == "script"
    with Session(odd, tmp_path) as session:
        session.submit(job := counted(session, tmp_path))
        session.wait_for(job, "priority")
        odd.batches["0"] = replace(odd.batches["0"], name="another", script="/home/me/another.sh")
        session.wait_clean(job)
        assert session.exception(job) == "lost"


def test_a_renamed_job_is_still_ours_if_the_queue_shows_its_script(
    odd: Odd, tmp_path: Path
) -> None:
    odd.shows_scripts = True
    gate = tmp_path / "gate"
    with Session(odd, tmp_path) as session:
        job = session.job("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        session.submit(job)
        session.wait_for(job, "start")
        odd.batches["0"] = replace(odd.batches["0"], name="another")
        answers = odd.answers
        wait_until(lambda: odd.answers > answers + 4)
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
    assert odd.ended[0] == "0"


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
def test_a_resumed_run_cancels_a_job_only_if_its_queue_id_was_not_reused(
    odd: Odd, tmp_path: Path, foreign: bool
) -> None:
    odd.auto = False
    with Session(odd, tmp_path) as first:
        first.submit(job := counted(first, tmp_path))
        first.wait_for(job, "priority")
    if foreign:
        odd.batches["0"] = replace(odd.batches["0"], name="another")
    second = Session(odd, tmp_path)
    second.resume(first)
    with second:
        assert second.executor.reattach({job.id: 0.0}) == {job.id: True}
        second.cancel(job)
        second.wait_clean(job)
        assert second.exception(job) == "cancel"
    assert odd.ended == ([] if foreign else ["0"])


def test_a_cancel_ends_no_foreign_job_that_got_the_id_since_the_last_query(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "poll", 1000.0)
    odd.auto = False
    with Session(odd, tmp_path) as session:
        session.submit(job := counted(session, tmp_path))
        session.wait_for(job, "priority")
        odd.batches["0"] = replace(odd.batches["0"], name="another")
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
    assert odd.ended == []


def test_a_late_cancel_of_a_copy_ends_no_foreign_job(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is over for the run, since it can no longer start, but the queue still has it."""
    odd.auto = False
    odd.instead["end"] = [CannotTake("busy")]
    with Session(odd, tmp_path) as session:
        session.submit(job := counted(session, tmp_path))
        session.wait_for(job, "priority")
        session.cancel(job)
        session.wait_clean(job)
        wait_until(lambda: not odd.instead["end"])
        odd.batches["0"] = replace(odd.batches["0"], name="another")
        answers = odd.answers
        wait_until(lambda: odd.answers > answers)
    assert odd.ended == []


def test_a_batch_that_never_arrived_is_submitted_again_after_any_number_of_resumes(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first resume voids the batch, and may be killed before it records that."""
    monkeypatch.setattr(timing, "LEAVE", 0.1)
    odd.instead["submit"] = [CannotTake("no answer") for _ in range(99)]
    with Session(odd, tmp_path) as first:
        first.submit(job := counted(first, tmp_path))
        wait_until(lambda: len(odd.instead["submit"]) < 99)
    for _ in range(2):
        resumed = Session(odd, tmp_path)
        resumed.resume(first)
        with resumed:
            assert resumed.executor.reattach({job.id: 0.0}) == {job.id: False}


def test_a_cancel_is_sent_before_the_executor_closes(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow_ask(ids: Collection[str]) -> Iterable[QueueJob]:
        asked.set()
        answer.wait(60)
        return [QueueJob(id_, "running") for id_ in ids]

    with Session(odd, tmp_path) as session:
        session.submit(job := session.job("sleep", "1000"))
        session.wait_for(job, "start")
        monkeypatch.setattr(odd, "ask", slow_ask)
        assert asked.wait(60)
        session.cancel(job)
        threading.Timer(0.3, answer.set).start()
    assert odd.ended == ["0"]


def test_an_error_of_the_plugin_in_a_thread_ends_the_run_with_its_location(
    odd: Odd, tmp_path: Path
) -> None:
    odd.auto = False
    odd.instead["ask"] = [KeyError("JB_name")]
    with Session(odd, tmp_path) as session:
        session.submit(session.job("true"))
        session.wait(
            lambda: any(isinstance(event, ExecutorLost) for event in session.events), "its loss"
        )
        (lost,) = (event for event in session.events if isinstance(event, ExecutorLost))
        assert "KeyError('JB_name')" in lost.reason
        assert "test_batch_executor.py:" in lost.reason


@pytest.mark.parametrize("task_id", ["-", "0"])
def test_a_job_whose_node_died_fails_although_the_queue_restarts_it(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_id: str
) -> None:
    monkeypatch.setattr(Odd, "task_id", task_id)
    odd.tells_codes = True
    gate = tmp_path / "gate"
    with Session(odd, tmp_path) as session:
        job = session.job(
            "sh", "-c", f"echo x >> ran; until [ -e {gate} ]; do sleep 0.05; done",
            workdir=str(tmp_path),
        )  # fmt: skip
        session.submit(job)
        session.wait_for(job, "start")
        wait_until(lambda: ran(tmp_path) and "0" in odd.processes)
        odd.processes["0"].kill()
        odd.processes["0"].wait(120)
        odd.begin("0")  # on another node
        session.wait_clean(job)
        gate.touch()
        assert session.exception(job) == "node-failure"
        assert session.context(job, "finish")["status"] != 0
        session.check_ended_once()
    assert ran(tmp_path) == 1


class Arrays(Odd):
    """A queue with arrays of two jobs."""

    most_jobs = 2
    task_place = "$PLACE"

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        ids = [f"{len(self.batches) + place}" for place in range(len(batch.jobs))]
        for id_ in ids:
            self.batches[id_] = batch
            self.begin(id_)
        return ids

    def begin(self, id_: str) -> None:
        script = self.batches[id_].script
        environment = {**os.environ, "PLACE": str(int(id_) + 1)}
        self.processes[id_] = subprocess.Popen(
            ["bash", script], start_new_session=True, env=environment
        )


def test_an_ended_job_of_an_array_that_the_queue_starts_again_runs_once(tmp_path: Path) -> None:
    """PBS's qrerun of an array also starts its ended jobs again."""
    arrays, gate = Arrays(), tmp_path / "gate"
    with Session(arrays, tmp_path) as session:
        ended = counted(session, tmp_path)
        other = session.job("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        session.submit(ended, other)
        session.wait_clean(ended)
        assert len({id(batch) for batch in arrays.batches.values()}) == 1
        arrays.begin("0")
        assert arrays.processes["0"].wait(120) == CLAIMED
        gate.touch()
        session.wait_clean(other)
        reports = Path(arrays.batches["0"].script).parents[1] / "reports"
        wait_until(lambda: not reports.exists() or not list(reports.iterdir()))
    assert ran(tmp_path) == 1


@pytest.mark.parametrize("first", ["0", "1"])
def test_a_job_that_arrived_twice_ends_with_the_copy_that_runs(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Either copy may start first. The queue reports exit codes of both."""
    monkeypatch.setattr(Odd, "task_id", f"$(cat {tmp_path}/id)")
    odd.tells_codes = True
    gate = tmp_path / "gate"
    with Session(odd, tmp_path) as session:
        job = session.job("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done; exit 3")
        submit_unseen(odd, session, job)
        wait_until(lambda: len(odd.batches) == 2)
        (tmp_path / "id").write_text(first)
        odd.begin(first)
        session.wait_for(job, "start")
        second = "1" if first == "0" else "0"
        (tmp_path / "id").write_text(second)
        odd.begin(second)
        odd.processes[second].wait(120)
        seen = odd.answers
        wait_until(lambda: odd.answers > seen + 5)  # enough to conclude that a job is over
        assert "finish" not in session.names(job)
        gate.touch()
        session.wait_clean(job)
        assert session.context(job, "finish")["status"] == 3 << 8
        session.check_ended_once()


@pytest.mark.parametrize("off", [0.0, 3600.0, -3600.0])
@pytest.mark.parametrize("heard", ["each", "at its end", "before the queue has said a word"])
def test_a_node_clock_that_is_an_hour_off_changes_neither_order_nor_durations(
    off: float, heard: str
) -> None:
    out: list[JobEvent] = []
    life = JobLife("a.0", {}, out)
    now = life.handed_at = 1_000_000.0
    if heard != "before the queue has said a word":
        life.arrived(now)
    if heard == "each":
        life.started(now + 1 + off, "n1", now + 1)
    life.ended(Report("end", now + 31 + off, seconds=30, host="n1"), now + 31.5, "")
    times = [event.timestamp for event in out]
    assert times == sorted(times)
    assert times[-1] <= now + 31.5 + 1e-3
    at = {event.name: event.timestamp for event in out}
    assert at["finish"] - at["start"] == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize(
    ("status", "started", "cause"),
    [(3 << 8, True, "exit"), (137 << 8, True, "signal"), (9, True, "signal"), (None, True, "unknown"),
     (3 << 8, False, None)],
)  # fmt: skip
def test_a_job_that_had_started_was_not_refused(
    status: int | None, started: bool, cause: str | None
) -> None:
    """Its wrapper was killed, or could not report: only the queue says that it failed."""
    out: list[JobEvent] = []
    life = JobLife("a.0", {}, out)
    life.arrived(1.0)
    if started:
        life.started(2.0, "n1", 2.0)
    life.finished(QueueJob("7", "over", status=status, exception="exec", note="failed"), 9.0, "")
    fault = next(event for event in out if event.name == "exception")
    assert fault.context["type"] == "exec"
    assert fault.context.get("cause") == cause


def test_the_place_in_a_script_may_be_an_argument(tmp_path: Path) -> None:
    """The jobs have the same command, which the script defines before it selects the job."""
    jobs = [Job(id=f"t.{n}", group="t", index=n, command=("sh", "-c", "echo $1")) for n in (0, 1)]
    orders = [
        (job, Place(str(tmp_path), str(tmp_path / f"{job.id}.out"), str(tmp_path / "err")))
        for job in jobs
    ]
    (tmp_path / "reports").mkdir()
    (tmp_path / "variables").mkdir()
    for job in jobs:
        (tmp_path / "variables" / f"{job.id}@k").touch()
    words = {"folder": str(tmp_path), "place": "$1", "queue_id": "$2", "grace": 1.0}
    script = tmp_path / "script"
    script.write_bytes(script_of("k", orders, tag="run", **words))  # type: ignore[arg-type]
    subprocess.run(["bash", script, "2", "id-2"], check=True)
    assert (tmp_path / "t.1.out").exists()
    assert (tmp_path / "reports" / "t.1@k").read_text().split()[2] == "id-2"
    assert not (tmp_path / "t.0.out").exists()


def test_a_job_of_another_run_must_not_write_to_an_output_file_in_use(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run's controller was killed, and its job continues in the queue."""
    monkeypatch.chdir(tmp_path)
    gate, log = tmp_path / "gate", tmp_path / "work" / "log"
    script = f"echo first; until [ -e {gate} ]; do sleep 0.05; done; echo last"
    with Session(odd, tmp_path / "a") as first:
        job = first.job("sh", "-c", script, workdir="work", stdout="log", stderr="log")
        first.submit(job)
        first.wait_for(job, "start")
        wait_until(lambda: log.exists() and log.read_text() == "first\n")
    with Session(Odd(), tmp_path / "b") as second:
        late = second.job("echo", "second", workdir="work", stdout="log", stderr="log")
        second.run(late)
        assert second.exception(late) == "output"
        assert f"jobs of run {first.tag}" in second.context(late, "exception")["note"]
        assert log.read_text() == "first\n"
        again = Session(odd, tmp_path / "a")
        again.resume(first)
        with again:
            assert again.executor.reattach({job.id: 0.0}) == {job.id: True}
            gate.touch()
            again.wait_clean(job)
        assert log.read_text() == "first\nlast\n"
        free = second.job("echo", "second", workdir="work", stdout="log")
        second.run(free)
        assert second.context(free, "finish")["status"] == 0
    assert log.read_text() == "second\n"
    assert os.listdir(log.parent) == ["log"]


def test_the_output_files_of_a_run_whose_folder_was_removed_are_free(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd.auto = False
    with Session(odd, tmp_path / "a") as first:
        first.submit(held := first.job("true", stdout="log"))
        first.wait_for(held, "priority")
    shutil.rmtree(tmp_path / "a")
    with Session(Odd(), tmp_path / "b") as second:
        second.run(job := second.job("echo", "second", stdout="log"))
        assert second.context(job, "finish")["status"] == 0
    assert (tmp_path / "log").read_text() == "second\n"
