"""Tests of events from reports that arrive late, twice or out of order."""

from __future__ import annotations

import contextlib
import itertools
import random
import resource
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_batch import Batch, BatchExecutor, Place, QueueJob, Records, Sent, network_reports
from ensemble_batch.batch_submission import Submission, _PendingBatch
from ensemble_batch.job_events import JobLife, Report
from ensemble_batch.network_reports import NetworkRun, ReportFolder
from ensemble_batch.queries_and_lost_jobs import Queries

from ensemble_core import Event, Job, JobEvent, Run

ORDER = (
    "submit", "validate", "depend", "priority", "alloc", "start", "exception", "finish", "release",
    "free", "clean",
)  # fmt: skip


class Quiet(BatchExecutor):
    """A queue that must not be polled."""

    name = "quiet"
    claims: ClassVar[bool] = False
    explains: ClassVar[bool] = True
    patience = 60.0

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        raise NotImplementedError

    find_batch = end_jobs = submit_batch  # type: ignore[assignment]  # not used here


class Heard:
    """A run with one job, ``sim.0``, whose id in the queue is 7."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.looks = 0.0
        self.events: list[JobEvent] = []
        run = Run("r", folder, lambda: self.now)
        spool = ReportFolder(str(folder / "spool"))
        places = (str(folder), str(folder))
        self.run = NetworkRun(Quiet(), run, self._emit, spool, Records(None), places)
        self.queries = Queries(self.run)
        self.submission = Submission(self.run, self.queries)
        self.life = self.expect("sim.0")

    def _emit(self, events: Sequence[Event]) -> None:
        self.events += [event for event in events if isinstance(event, JobEvent)]

    def expect(self, job: str) -> JobLife:
        life = self.run.lives[job] = JobLife(job, {"stdout": "/out"}, self.run.events)
        life.handed_at = self.now
        return life

    def do(self, what: Callable[[], object]) -> Heard:
        what()
        self.run.publish()
        return self

    def accept(self, job: str = "sim.0", queue_id: str = "7") -> Heard:
        made = Job(id=job, group="sim", index=int(job[4:]), command=("true",))
        pending = _PendingBatch(Sent("k", {job: {}}), [(made, Place("/", "/o", "/e"))])
        return self.do(lambda: self.submission._accept(pending, [queue_id]))

    def hear(self, report: Report) -> Heard:
        return self.do(lambda: self.run.reported(report))

    def start(self, life: int = 0, queue_id: str = "7") -> Heard:
        self.now += 1
        return self.hear(Report("start", self.now, job="sim.0", queue_id=queue_id, life=life))

    def end(self, status: int = 0, why: str = "", life: int = 0, queue_id: str = "7") -> Heard:
        self.now += 1
        return self.hear(
            Report("end", self.now, status, why, seconds=0.5, job="sim.0", queue_id=queue_id,
                   life=life)
        )  # fmt: skip

    def row(self, state: Any, **more: Any) -> Heard:
        self.now += 1
        return self.do(lambda: self.queries.handle_reports([QueueJob("7", state, **more)]))

    def missing(self) -> Heard:
        self.looks = max(self.looks, self.life.counts_at) + 10
        return self.do(lambda: self.queries._see(self.life, None, self.looks, listed=False))

    def denied(self) -> Heard:
        """The queue lists no such job, and when asked about it, knows no such job."""
        self.looks = max(self.looks, self.life.counts_at) + 10
        row = QueueJob("7", "unknown")
        self.do(lambda: self.queries._see(self.life, row, self.looks, listed=False))
        if cancels := [id_ for id_, at in self.run.cancels.items() if at == 0.0]:
            for id_ in cancels:  # the queue accepts them
                del self.run.cancels[id_]
            return self.denied()
        return self

    def cancel(self) -> Heard:
        return self.do(lambda: self.run.cancel(self.life))

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def context(self, name: str) -> Any:
        (found,) = [event.context for event in self.events if event.name == name]
        return found

    def check(self) -> None:
        assert self.names.count("clean") == 1
        assert self.names[-1] == "clean"
        lives: list[list[str]] = [[]]
        for name in self.names:
            lives[-1].append(name)
            if name == "requeue":
                lives.append([])
        for life in lives:
            places = [ORDER.index(name) for name in life if name != "requeue"]
            assert places == sorted(set(places)), self.names
        times = [event.timestamp for event in self.events]
        assert all(a < b for a, b in itertools.pairwise(times))
        assert not self.run.lives


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    return Heard(tmp_path)


def test_a_thousand_reports_at_once_count_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All wrappers connect before the first one sends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"at most {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    monkeypatch.setattr(Quiet, "listen", ("127.0.0.1", 0))
    monkeypatch.setattr("ensemble_batch.network_reports._SECONDS", 600.0)
    heard = Heard(tmp_path)
    listener = heard.run.listener
    assert listener is not None
    thread = threading.Thread(target=listener.listen)
    thread.start()
    jobs = [f"sim.{number}" for number in range(1000)]
    for job in jobs:
        heard.expect(job)
    try:
        for report in ("start 1000.5 n1", "end 0 - 1000.5 1000.7 n1"):
            with contextlib.ExitStack() as stack:
                connections = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), 60))
                    for _ in jobs
                ]
                for number, job in enumerate(jobs):
                    line = f"ensemble1 {heard.run.spool.token} {job} {number} 0 {report}\n"
                    connections[number].sendall(line.encode())
                assert {each.recv(10) for each in connections} == {b"ok\n"}
    finally:
        listener.close()
        thread.join(120)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name in ("submit", "start", "finish", "clean"):
        assert sorted(e.job for e in heard.events if e.name == name) == sorted(jobs)


def test_a_quick_job_reports_before_its_submission_is_answered(heard: Heard) -> None:
    heard.start().end().accept().check()
    assert heard.context("submit") == {"queue_id": "7"}
    assert heard.context("finish") == {"status": 0}
    assert not heard.run.cancels


def test_an_end_that_overtakes_its_start_implies_the_start(heard: Heard) -> None:
    heard.accept().end(status=3 << 8).start().check()
    times = {event.name: event.timestamp for event in heard.events}
    assert times["finish"] - times["start"] == pytest.approx(0.5, abs=1e-4)
    assert heard.context("start")["stdout"] == "/out"


def test_repeated_reports_cause_one_event_each(heard: Heard) -> None:
    heard.accept().accept().start().start().row("running").end().end().row("over", status=0)
    heard.check()


@pytest.mark.parametrize("kind", ["cancel", "timeout", "node-failure", "out-of-memory"])
def test_the_queues_reason_for_an_end_is_the_jobs(heard: Heard, kind: str) -> None:
    heard.accept().start().end(status=signal.SIGTERM, why="stopped")
    assert "finish" not in heard.names
    assert heard.life.reported
    heard.row("ending")
    assert "finish" not in heard.names
    heard.row("over", status=9, exception=kind).check()
    assert heard.context("exception")["type"] == kind
    assert heard.context("finish")["status"] == signal.SIGTERM


def test_a_job_killed_from_within_has_no_exception(heard: Heard) -> None:
    heard.accept().start().end(status=signal.SIGKILL)
    heard.row("over", status=137 << 8, exception="exec", cause="signal").check()
    assert "exception" not in heard.names
    assert heard.context("finish")["status"] == signal.SIGKILL


def test_the_end_of_a_killed_shell_waits_for_the_queues_reason(heard: Heard) -> None:
    heard.accept().start().row("over", status=9, exception="exec", cause="signal").check()
    assert heard.context("exception")["type"] == "exec"
    assert heard.context("exception")["cause"] == "signal"
    assert heard.context("finish")["status"] == signal.SIGKILL


def test_a_job_without_reports_ends_with_the_queues_times(heard: Heard) -> None:
    heard.accept()
    heard.now += 100
    heard.row("over", status=0, began=1010.0, ended=1050.0, host="n1").check()
    times = {event.name: event.timestamp for event in heard.events}
    assert (times["start"], times["finish"]) == pytest.approx((1010.0, 1050.0), abs=1e-3)


@pytest.mark.parametrize("kind", ["cancel", "exec"])
def test_a_job_that_never_ran_has_no_start(heard: Heard, kind: str) -> None:
    heard.accept().row("over", status=1, exception=kind).check()
    assert "start" not in heard.names
    assert "finish" not in heard.names
    assert heard.context("exception")["type"] == kind


def test_a_job_that_we_cancelled_is_cancelled_once_its_last_process_has_ended(heard: Heard) -> None:
    heard.accept().start().cancel()
    assert heard.run.cancels == {"7": 0.0}
    heard.end(status=signal.SIGTERM, why="stopped").row("ending")
    assert "clean" not in heard.names
    heard.row("over", status=15, exception="cancel", note="cancelled, not by this run").check()
    assert heard.context("exception")["note"] == "cancelled by run r"
    assert heard.run.cancels == {}


def test_a_late_cancel_does_not_turn_success_into_failure(heard: Heard) -> None:
    heard.accept().start().cancel().end(status=0).check()
    assert "exception" not in heard.names


def test_a_job_ends_although_the_queue_never_gives_a_reason(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="stopped").row("ending")
    heard.now += 601
    heard.row("ending").check()


def test_a_job_does_not_end_while_the_queue_cleans_up_even_if_a_clock_is_behind(
    heard: Heard,
) -> None:
    heard.accept().start()
    heard.hear(
        Report("end", heard.now - 500, 15, "stopped", seconds=0.5, job="sim.0", queue_id="7")
    )
    heard.row("running")
    heard.now += 120
    heard.row("ending")
    assert "clean" not in heard.names
    heard.row("waiting", restarts=1).row("running", restarts=1).end(0, life=1)
    assert heard.names.count("clean") == 1
    assert heard.context("finish")["status"] == 0


def test_a_restarted_job_ends_once_and_ignores_reports_of_its_old_life(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="stopped").row("waiting", restarts=1)
    assert "finish" not in heard.names
    assert not heard.life.reported
    heard.end(status=0, life=0)
    assert "finish" not in heard.names
    heard.start(life=1).end(status=0, life=1).check()
    assert heard.context("requeue")["restarts"] == 1
    assert heard.names.count("start") == heard.names.count("alloc") == 2
    assert heard.context("finish")["status"] == 0


def test_a_restarted_job_that_the_queue_could_not_start_is_over(heard: Heard) -> None:
    """Slurm restarts a job on the node where it has just ended, and the node refuses. The queue
    then reports the end of the job itself, not only of its first life.
    """
    heard.accept().start().end(status=15, why="stopped").row("ending", restarts=1)
    assert heard.names.count("requeue") == 1
    assert "clean" not in heard.names
    heard.row("waiting", restarts=1)
    assert "clean" not in heard.names
    heard.row("over", restarts=1, status=1 << 8, exception="exec", note="Slurm: FAILED").check()
    assert heard.context("exception")["note"] == "Slurm: FAILED"
    assert "finish" not in heard.names  # what had run was taken back


def test_a_new_life_is_also_known_from_its_own_report(heard: Heard) -> None:
    heard.accept().start().start(life=1).end(status=0, life=0).end(status=2 << 8, life=1).check()
    assert heard.context("finish")["status"] == 2 << 8


def test_a_report_of_another_submission_is_ignored_and_ends_that_one(
    heard: Heard,
) -> None:
    heard.accept().start(queue_id="8").end(status=1, queue_id="8")
    assert "start" not in heard.names
    assert heard.run.cancels == {"8": 0.0}


def test_a_job_that_could_not_be_started_has_the_reason(heard: Heard) -> None:
    heard.accept()
    report = Report("fail", 1001.0, why="output", note="the output file cannot …", job="sim.0",
                    queue_id="7")  # fmt: skip
    heard.hear(report).check()
    assert "start" not in heard.names
    assert heard.context("exception")["type"] == "output"


def test_its_own_time_limit_ends_a_job_at_once_as_timeout(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="timeout").check()
    assert heard.context("exception")["type"] == "timeout"


def test_a_job_that_the_queue_has_deleted_is_cancelled(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="deleted")
    assert "finish" not in heard.names  # the queue may have had another reason
    heard.missing().missing().missing().check()
    assert heard.context("exception")["type"] == "cancel"
    assert "not by this run" in heard.context("exception")["note"]


def test_a_job_that_the_queue_forgot_is_lost_after_several_answers(heard: Heard) -> None:
    heard.accept().start().missing().missing()
    assert "clean" not in heard.names
    heard.row("running").missing().missing().missing().missing()
    assert "clean" not in heard.names  # absence is no proof
    heard.denied()
    assert heard.context("exception")["type"] == "lost"
    heard.check()


def test_a_job_that_reported_its_end_is_not_lost_when_the_queue_forgets_it(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="stopped").missing().missing().missing().check()
    assert "exception" not in heard.names
    assert heard.context("finish")["status"] == 15


def test_a_reused_queue_id_belongs_to_the_later_job(heard: Heard) -> None:
    """The queue was killed before it saved its state, and has forgotten the first job."""
    heard.accept().start()
    heard.now += 1
    heard.expect("sim.1")
    heard.accept("sim.1").denied().denied().denied().row("over", status=0)
    ends = [
        (event.job, event.name)
        for event in heard.events
        if event.name in ("exception", "finish", "clean")
    ]
    assert ends == [
        ("sim.0", "exception"), ("sim.0", "finish"), ("sim.0", "clean"),
        ("sim.1", "finish"), ("sim.1", "clean"),
    ]  # fmt: skip


def test_late_reports_of_a_job_that_is_over_are_ignored(heard: Heard) -> None:
    heard.accept().start().end()
    before = list(heard.names)
    heard.row("over", status=15, exception="cancel").start(life=1)
    assert heard.names == before


@pytest.mark.parametrize("seed", range(60))
def test_each_step_is_reported_once_in_any_order_of_reports(heard: Heard, seed: int) -> None:
    """Reports come in any order, repeatedly or not at all. The queue reports last."""
    chance = random.Random(seed)
    words = ["accept", "start", "end", "end", "running", "ending", "waiting", "start", "cancel"]
    chance.shuffle(words)
    for word in words[: chance.randint(1, len(words))]:
        if word in ("running", "ending", "waiting"):
            heard.row(word)
        elif word == "end":
            heard.end(status=chance.choice([0, 256, 9, 15]), why=chance.choice(["", "stopped"]))
        else:
            getattr(heard, word)()
    kind = chance.choice([None, "exec", "cancel", "node-failure"])
    heard.accept().row("over", status=0 if kind is None else 15, exception=kind, host="n1")
    heard.check()


def test_a_report_stays_for_the_next_controller_until_it_is_recorded(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full. If the controller is killed now, only the report shows the end."""
    monkeypatch.setattr(network_reports, "_WHILE", -1.0)
    spool = heard.accept().run.spool
    heard.run.sought = True
    line = f"ensemble1 {spool.token} sim.0 7 0 end 0 - 1000.0 1001.0 n1\n"
    (Path(spool.folder) / "reports" / "sim.0.7").write_text(line)
    full = [OSError(28, "No space left on device")] * 2

    def tell(events: Sequence[JobEvent]) -> None:
        if full:
            raise full.pop()

    monkeypatch.setattr(heard.run.records, "tell", tell)
    for _ in range(3):
        heard.do(heard.run.read)
    assert spool.unread_jobs() == {"sim.0"}
    full.clear()
    heard.run.outlet.write(lambda: None)
    heard.do(heard.run.read)
    assert spool.unread_jobs() == set()
    assert [event.name for event in heard.events].count("finish") == 1


def _asks_again(heard: Heard, queue_id: str = "7") -> bool:
    heard.run.sought = True
    token = heard.run.spool.token
    return heard.run._record_report(f"ensemble1 {token} sim.0 {queue_id} 1 again".encode())


def test_a_restarted_job_may_run_only_if_it_has_never_begun(heard: Heard) -> None:
    """A node that cannot start a job makes the queue restart it."""
    heard.accept()
    assert not _asks_again(heard, "8")
    assert _asks_again(heard)
    heard.row("running", host="n1")  # as the queue believes
    assert _asks_again(heard)
    heard.row("waiting", restarts=1)
    assert _asks_again(heard)
    heard.start(life=1)
    assert not _asks_again(heard)
    heard.end(life=1).row("over", status=0).check()
    assert not _asks_again(heard)
    assert heard.names.count("requeue") == 1
    assert heard.context("finish")["status"] == 0


@pytest.mark.parametrize("late", [True, False])
def test_a_restarted_job_that_has_begun_runs_nothing(heard: Heard, late: bool) -> None:
    heard.accept()
    if not late:
        heard.start()
    heard.row("waiting", restarts=1)
    if late:
        heard.start()
    assert not _asks_again(heard)
    report = Report("fail", heard.now, why="requeued", note="nothing was run", job="sim.0",
                    queue_id="7", life=1)  # fmt: skip
    heard.hear(report)
    assert heard.context("exception")["type"] == "preempted"


@pytest.mark.parametrize("ask", ["cancel", "report"])
def test_a_restarted_job_runs_nothing_if_it_is_cancelled_or_a_start_was_written(
    heard: Heard, ask: str
) -> None:
    heard.accept()
    if ask == "cancel":
        heard.cancel()
    else:
        folder, token = Path(heard.run.spool.folder), heard.run.spool.token
        line = f"ensemble1 {token} sim.0 7 0 start {heard.now} n1\n"
        (folder / "reports" / "sim.0.7").write_text(line)
    assert not _asks_again(heard)


def test_a_restarted_job_that_no_controller_allowed_to_run_was_not_started_by_its_node(
    heard: Heard,
) -> None:
    heard.accept()
    report = Report("fail", heard.now, why="requeued", note="nothing was run", job="sim.0",
                    queue_id="7", life=1)  # fmt: skip
    heard.hear(report)
    assert heard.context("exception")["type"] == "node-failure"
    heard.check()
