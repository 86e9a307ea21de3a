"""From what is heard of a job, late, twice, in any order, to one right event stream."""

from __future__ import annotations

import itertools
import random
import signal
from typing import Any

import pytest
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.parse import Row
from ensemble_slurm.reports import Report

from ensemble_core import JobEvent

ORDER = (
    "submit", "validate", "depend", "priority", "alloc", "start", "exception", "finish", "release",
    "free", "clean",
)  # fmt: skip


class Heard:
    """A merge with one job, ``sim.0``, which Slurm calls 7."""

    def __init__(self) -> None:
        self.states = JobStates("cancelled by run r", patience=60.0)
        self.states.expect("sim.0", {"stdout": "/out"})
        self.now = 1000.0
        self.events: list[JobEvent] = []

    def do(self, what: str, *words: Any, **more: Any) -> Heard:
        getattr(self.states, what)(*words, **more)
        self.events += self.states.take()
        return self

    def accept(self) -> Heard:
        return self.do("accepted", "sim.0", "7", self.now)

    def start(self, life: int = 0, queue_id: str = "7") -> Heard:
        self.now += 1
        return self.do("report", Report("sim.0", queue_id, life, "start", self.now), self.now)

    def end(self, status: int = 0, why: str = "", life: int = 0, queue_id: str = "7") -> Heard:
        self.now += 1
        report = Report("sim.0", queue_id, life, "end", self.now, status, why, seconds=0.5)
        return self.do("report", report, self.now)

    def row(self, state: str, *, nodes: str = "n1", **more: Any) -> Heard:
        self.now += 1
        return self.do("seen", Row("7", None, state, nodes=nodes, **more), self.now)

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
        assert not self.states.jobs


def test_a_quick_job_reports_before_sbatch_has_answered() -> None:
    heard = Heard().start().end().accept()
    heard.check()
    assert heard.context("submit") == {"queue_id": "7"}
    assert heard.context("finish") == {"status": 0}


def test_an_end_that_overtakes_its_start_brings_the_start_along() -> None:
    heard = Heard().accept().end(status=3 << 8).start()
    heard.check()
    times = {event.name: event.timestamp for event in heard.events}
    assert times["finish"] - times["start"] == pytest.approx(0.5, abs=1e-4)
    assert heard.context("start")["stdout"] == "/out"


def test_everything_twice_is_told_once() -> None:
    heard = Heard().accept().accept().start().start().row("RUNNING").end().end().row("COMPLETED")
    heard.check()


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("CANCELLED", "cancel"), ("TIMEOUT", "timeout"), ("DEADLINE", "timeout"),
        ("NODE_FAIL", "node-failure"), ("BOOT_FAIL", "node-failure"),
        ("OUT_OF_MEMORY", "out-of-memory"), ("PREEMPTED", "preempted"),
    ],
)  # fmt: skip
def test_why_slurm_ended_a_job_is_what_slurm_says(state: str, kind: str) -> None:
    heard = Heard().accept().start().end(status=signal.SIGTERM, why="stopped")
    assert "finish" not in heard.names
    assert heard.states.doubtful()
    heard.row("COMPLETING")
    assert "finish" not in heard.names
    heard.row(state, status=15)
    heard.check()
    assert heard.context("exception")["type"] == kind
    assert heard.context("finish")["status"] == signal.SIGTERM


def test_a_job_that_was_killed_from_within_has_no_exception() -> None:
    heard = Heard().accept().start().end(status=signal.SIGKILL).row("FAILED", status=137 << 8)
    heard.check()
    assert "exception" not in heard.names
    assert heard.context("finish")["status"] == signal.SIGKILL


def test_a_shell_that_was_killed_leaves_it_to_slurm_to_say_so() -> None:
    heard = Heard().accept().start().row("FAILED", reason="JobLaunchFailure", status=9)
    heard.check()
    assert heard.context("exception")["type"] == "exec"
    assert heard.context("finish")["status"] == signal.SIGKILL


def test_a_job_that_nobody_heard_of_is_told_by_slurm_with_slurms_times() -> None:
    heard = Heard().accept()
    heard.now += 100
    heard.row("COMPLETED", status=0, started=1010.0, ended=1050.0)
    heard.check()
    times = {event.name: event.timestamp for event in heard.events}
    assert (times["start"], times["finish"]) == pytest.approx((1010.0, 1050.0), abs=1e-3)


def test_a_job_that_never_ran_has_no_start() -> None:
    for state, kind in (("CANCELLED", "cancel"), ("FAILED", "exec")):
        heard = Heard().accept().row(state, nodes="", reason="BadConstraints", started=1001.0)
        heard.check()
        assert "start" not in heard.names
        assert "finish" not in heard.names
        assert heard.context("exception")["type"] == kind


def test_our_own_cancel_is_called_ours_once_nothing_is_left_of_the_job() -> None:
    heard = Heard().accept().start()
    assert heard.states.cancelling("sim.0") == "7"
    heard.end(status=signal.SIGTERM, why="stopped").row("COMPLETING")
    assert "clean" not in heard.names
    heard.row("CANCELLED", status=15)
    heard.check()
    assert heard.context("exception")["note"] == "cancelled by run r"


def test_a_cancel_that_came_too_late_does_not_make_a_success_a_failure() -> None:
    heard = Heard().accept().start()
    heard.states.cancelling("sim.0")
    heard.end(status=0)
    heard.check()
    assert "exception" not in heard.names


def test_an_end_is_told_although_slurm_never_says_why() -> None:
    heard = Heard().accept().start().end(status=15, why="stopped").row("COMPLETING")
    heard.now += 601
    heard.row("COMPLETING")
    heard.check()


def test_an_end_is_not_told_while_slurm_is_at_its_epilog_nor_by_a_clock_that_is_behind() -> None:
    heard = Heard().accept().start()
    report = Report("sim.0", "7", 0, "end", heard.now - 500, 15, "stopped", seconds=0.5)
    heard.do("report", report, heard.now, late=True)
    heard.row("RUNNING")
    heard.now += 120
    heard.row("COMPLETING")
    assert "clean" not in heard.names
    heard.row("PENDING", restarts=1).row("RUNNING", restarts=1).end(0, life=1)
    assert heard.names.count("clean") == 1
    assert heard.context("finish")["status"] == 0


def test_a_requeued_job_ends_once_and_reports_of_its_old_life_do_not_count() -> None:
    heard = Heard().accept().start().end(status=15, why="stopped").row("PENDING", restarts=1)
    assert "finish" not in heard.names
    assert not heard.states.doubtful()
    heard.end(status=0, life=0)
    assert "finish" not in heard.names
    heard.start(life=1).end(status=0, life=1)
    heard.check()
    assert heard.context("memo")["restarts"] == 1
    assert heard.context("finish")["status"] == 0


def test_a_new_life_is_known_from_its_own_report_too() -> None:
    heard = Heard().accept().start().start(life=1).end(status=0, life=0).end(status=2 << 8, life=1)
    heard.check()
    assert heard.context("finish")["status"] == 2 << 8


def test_a_report_of_another_submission_is_no_news_of_the_job() -> None:
    heard = Heard().accept().start(queue_id="8").end(status=1, queue_id="8")
    assert "start" not in heard.names
    assert heard.states.doubles == {"8"}


def test_a_job_that_could_not_be_started_says_why() -> None:
    heard = Heard().accept()
    report = Report("sim.0", "7", 0, "fail", 1001.0, why="output", note="the output file cannot …")
    heard.do("report", report, 1002.0)
    heard.check()
    assert "start" not in heard.names
    assert heard.context("exception")["type"] == "output"


def test_its_own_time_limit_is_a_timeout_at_once() -> None:
    heard = Heard().accept().start().end(status=15, why="timeout")
    heard.check()
    assert heard.context("exception")["type"] == "timeout"


def test_a_job_that_slurm_forgot_is_lost_after_some_looks_and_not_before() -> None:
    heard = Heard().accept().start()
    for _ in range(2):
        heard.do("missing", "sim.0", heard.now)
    assert "clean" not in heard.names
    heard.row("RUNNING")
    for _ in range(3):
        heard.do("missing", "sim.0", heard.now)
    assert heard.context("exception")["type"] == "lost"
    heard.check()


def test_an_id_that_slurm_gives_away_again_is_the_later_jobs() -> None:
    """A slurmctld that was killed before it saved its state has forgotten the first."""
    heard = Heard().accept().start()
    heard.states.expect("sim.1", {})
    heard.do("accepted", "sim.1", "7", heard.now)
    for _ in range(3):
        heard.do("missing", "sim.0", heard.now)
    heard.row("COMPLETED", status=0)
    ends = [
        (event.job, event.name)
        for event in heard.events
        if event.name in ("exception", "finish", "clean")
    ]
    assert ends == [
        ("sim.0", "exception"), ("sim.0", "finish"), ("sim.0", "clean"),
        ("sim.1", "finish"), ("sim.1", "clean"),
    ]  # fmt: skip


def test_a_federations_revoked_sibling_is_not_the_end() -> None:
    heard = Heard().accept().row("REVOKED", nodes="")
    assert "clean" not in heard.names
    heard.start().end().check()


def test_late_words_of_a_job_that_is_over_are_nothing() -> None:
    heard = Heard().accept().start().end()
    before = list(heard.names)
    heard.row("CANCELLED").start(life=1).do("missing", "sim.0", heard.now)
    assert heard.names == before


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_order_each_step_is_told_once(seed: int) -> None:
    """The sources speak in any order, and each may repeat itself or be silent; Slurm has the last
    word."""
    chance = random.Random(seed)
    heard = Heard()
    words = ["accept", "start", "end", "end", "RUNNING", "COMPLETING", "PENDING", "start", "cancel"]
    chance.shuffle(words)
    for word in words[: chance.randint(1, len(words))]:
        if word == "cancel":
            heard.states.cancelling("sim.0")
        elif word.isupper():
            heard.row(word, nodes="" if word == "PENDING" else "n1")
        elif word == "end":
            heard.end(status=chance.choice([0, 256, 9, 15]), why=chance.choice(["", "stopped"]))
        else:
            getattr(heard, word)()
    heard.accept().row(chance.choice(["COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"]), status=0)
    heard.check()
