"""From what is heard of a job that reports over the network, late, twice, in any order, to one right
event stream."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_batch import Batch, BatchExecutor, Place, QueueJob, Records, Sent
from ensemble_batch.inquiry import Inquiry
from ensemble_batch.job_table import JobLife
from ensemble_batch.report_run import ReportRun
from ensemble_batch.report_spool import ReportSpool
from ensemble_batch.reports import Report
from ensemble_batch.submission import Submission, _Going

from ensemble_core import Event, Job, JobEvent, Run

ORDER = (
    "submit", "validate", "depend", "priority", "alloc", "start", "exception", "finish", "release",
    "free", "clean",
)  # fmt: skip


class Quiet(BatchExecutor):
    """A queue that nobody asks."""

    name = "quiet"
    claims: ClassVar[bool] = False
    explains: ClassVar[bool] = True
    patience = 60.0

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        raise NotImplementedError

    find_batch = end_jobs = submit_batch  # type: ignore[assignment]  # not asked for here


class Heard:
    """A run with one job, ``sim.0``, which its queue calls 7."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.looks = 0.0
        self.events: list[JobEvent] = []
        run = Run("r", folder, lambda: self.now)
        spool = ReportSpool(str(folder / "spool"))
        places = (str(folder), str(folder))
        self.run = ReportRun(Quiet(), run, self._emit, spool, Records(None), places)
        self.inquiry = Inquiry(self.run)
        self.submission = Submission(self.run, self.inquiry)
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
        going = _Going(Sent("k", {job: {}}), [(made, Place("/", "/o", "/e"))])
        return self.do(lambda: self.submission._accept(going, [queue_id]))

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
        return self.do(lambda: self.inquiry.told([QueueJob("7", state, **more)]))

    def missing(self) -> Heard:
        self.looks = max(self.looks, self.life.counts_at) + 10
        return self.do(lambda: self.inquiry._see(self.life, None, self.looks))

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
        places = [ORDER.index(name) for name in self.names if name != "memo"]
        assert places == sorted(set(places)), self.names
        times = [event.timestamp for event in self.events]
        assert all(a < b for a, b in itertools.pairwise(times))
        assert not self.run.lives


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    return Heard(tmp_path)


def test_a_quick_job_reports_before_its_submit_is_answered(heard: Heard) -> None:
    heard.start().end().accept().check()
    assert heard.context("submit") == {"queue_id": "7"}
    assert heard.context("finish") == {"status": 0}
    assert not heard.run.cancels


def test_an_end_that_overtakes_its_start_brings_the_start_along(heard: Heard) -> None:
    heard.accept().end(status=3 << 8).start().check()
    times = {event.name: event.timestamp for event in heard.events}
    assert times["finish"] - times["start"] == pytest.approx(0.5, abs=1e-4)
    assert heard.context("start")["stdout"] == "/out"


def test_everything_twice_is_told_once(heard: Heard) -> None:
    heard.accept().accept().start().start().row("running").end().end().row("over", status=0)
    heard.check()


@pytest.mark.parametrize("kind", ["cancel", "timeout", "node-failure", "out-of-memory"])
def test_why_the_queue_ended_a_job_is_what_the_queue_says(heard: Heard, kind: str) -> None:
    heard.accept().start().end(status=signal.SIGTERM, why="stopped")
    assert "finish" not in heard.names
    assert heard.life.reported
    heard.row("ending")
    assert "finish" not in heard.names
    heard.row("over", status=9, exception=kind).check()
    assert heard.context("exception")["type"] == kind
    assert heard.context("finish")["status"] == signal.SIGTERM


def test_a_job_that_was_killed_from_within_has_no_exception(heard: Heard) -> None:
    heard.accept().start().end(status=signal.SIGKILL)
    heard.row("over", status=137 << 8, exception="exec", cause="signal").check()
    assert "exception" not in heard.names
    assert heard.context("finish")["status"] == signal.SIGKILL


def test_a_shell_that_was_killed_leaves_it_to_the_queue_to_say_so(heard: Heard) -> None:
    heard.accept().start().row("over", status=9, exception="exec", cause="signal").check()
    assert heard.context("exception")["type"] == "exec"
    assert heard.context("exception")["cause"] == "signal"
    assert heard.context("finish")["status"] == signal.SIGKILL


def test_a_job_that_nobody_heard_of_is_told_by_the_queue_with_its_times(heard: Heard) -> None:
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


def test_our_own_cancel_is_called_ours_once_nothing_is_left_of_the_job(heard: Heard) -> None:
    heard.accept().start().cancel()
    assert heard.run.cancels == {"7": 0.0}
    heard.end(status=signal.SIGTERM, why="stopped").row("ending")
    assert "clean" not in heard.names
    heard.row("over", status=15, exception="cancel", note="cancelled, not by this run").check()
    assert heard.context("exception")["note"] == "cancelled by run r"
    assert heard.run.cancels == {}


def test_a_cancel_that_came_too_late_does_not_make_a_success_a_failure(heard: Heard) -> None:
    heard.accept().start().cancel().end(status=0).check()
    assert "exception" not in heard.names


def test_an_end_is_told_although_the_queue_never_says_why(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="stopped").row("ending")
    heard.now += 601
    heard.row("ending").check()


def test_an_end_is_not_told_while_the_queue_cleans_up_nor_by_a_clock_that_is_behind(
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


def test_a_restarted_job_ends_once_and_reports_of_its_old_life_do_not_count(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="stopped").row("waiting", restarts=1)
    assert "finish" not in heard.names
    assert not heard.life.reported
    heard.end(status=0, life=0)
    assert "finish" not in heard.names
    heard.start(life=1).end(status=0, life=1).check()
    assert heard.context("memo")["restarts"] == 1
    assert heard.context("finish")["status"] == 0


def test_a_restarted_job_whose_new_life_the_queue_could_not_start_is_over(heard: Heard) -> None:
    """Slurm starts one on the node that it has just ended it on, which refuses it: what the queue
    then calls over is the job, not its first life."""
    heard.accept().start().end(status=15, why="stopped").row("ending", restarts=1)
    assert heard.names.count("memo") == 1
    assert "clean" not in heard.names
    heard.row("waiting", restarts=1)
    assert "clean" not in heard.names
    heard.row("over", restarts=1, status=1 << 8, exception="exec", note="Slurm: FAILED").check()
    assert heard.context("exception")["note"] == "Slurm: FAILED"
    assert heard.context("finish")["status"] == 1 << 8


def test_a_new_life_is_known_from_its_own_report_too(heard: Heard) -> None:
    heard.accept().start().start(life=1).end(status=0, life=0).end(status=2 << 8, life=1).check()
    assert heard.context("finish")["status"] == 2 << 8


def test_a_report_of_another_submission_is_no_news_of_the_job_and_ends_that_one(
    heard: Heard,
) -> None:
    heard.accept().start(queue_id="8").end(status=1, queue_id="8")
    assert "start" not in heard.names
    assert heard.run.cancels == {"8": 0.0}


def test_a_job_that_could_not_be_started_says_why(heard: Heard) -> None:
    heard.accept()
    report = Report("fail", 1001.0, why="output", note="the output file cannot …", job="sim.0",
                    queue_id="7")  # fmt: skip
    heard.hear(report).check()
    assert "start" not in heard.names
    assert heard.context("exception")["type"] == "output"


def test_its_own_time_limit_is_a_timeout_at_once(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="timeout").check()
    assert heard.context("exception")["type"] == "timeout"


def test_a_job_that_the_queue_forgot_is_lost_after_some_looks_and_not_before(heard: Heard) -> None:
    heard.accept().start().missing().missing()
    assert "clean" not in heard.names
    heard.row("running").missing().missing().missing()
    assert heard.context("exception")["type"] == "lost"
    heard.check()


def test_a_job_that_reported_its_end_is_not_lost_when_the_queue_forgets_it(heard: Heard) -> None:
    heard.accept().start().end(status=15, why="stopped").missing().missing().missing().check()
    assert "exception" not in heard.names
    assert heard.context("finish")["status"] == 15


def test_an_id_that_the_queue_gives_away_again_is_the_later_jobs(heard: Heard) -> None:
    """A queue that was killed before it saved its state has forgotten the first."""
    heard.accept().start()
    heard.now += 1
    heard.expect("sim.1")
    heard.accept("sim.1").missing().missing().missing().row("over", status=0)
    ends = [
        (event.job, event.name)
        for event in heard.events
        if event.name in ("exception", "finish", "clean")
    ]
    assert ends == [
        ("sim.0", "exception"), ("sim.0", "finish"), ("sim.0", "clean"),
        ("sim.1", "finish"), ("sim.1", "clean"),
    ]  # fmt: skip


def test_late_words_of_a_job_that_is_over_are_nothing(heard: Heard) -> None:
    heard.accept().start().end()
    before = list(heard.names)
    heard.row("over", status=15, exception="cancel").start(life=1)
    assert heard.names == before


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_order_each_step_is_told_once(heard: Heard, seed: int) -> None:
    """The sources speak in any order, and each may repeat itself or be silent; the queue has the
    last word."""
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
