"""Tests with a real PBS whose commands fail, hang, print garbage or forget jobs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_batch import timing
from ensemble_pbs.executor import PBSExecutor
from ensemble_testing import FaultSuite, Session, wait_until

from ensemble_core import Executor

if TYPE_CHECKING:
    from conftest import Complex


@pytest.mark.timeout(300)
class TestPBS(FaultSuite):
    commands: ClassVar = {
        "connect": "qstat -B",
        "submit": "qsub",
        "ask": "qstat",
        "cancel": "qdel",
    }
    partial: ClassVar = "perl -0pe 's{Job Id: .*?\\n\\n}{}s'"
    acts: ClassVar = {"suspend": "qsig -s suspend {id}", "unsuspend": "qsig -s resume {id}"}
    away = "qstat: cannot connect to server head (errno=111)"
    nothing = "qstat: Unknown Job Id 1.head"

    @pytest.fixture
    def queue(self, pbs: Complex) -> None:
        self.pbs = pbs

    def make_executor(self, period: float = 1.0) -> Executor:
        return PBSExecutor(queue=self.pbs.queue, poll=period)

    def test_jobs_beyond_the_queues_limit_wait_and_run_later(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timing, "FULL", 1.0)
        self.pbs.wait_idle()
        with self.pbs.limited("max_queued", "[u:PBS_GENERIC=2]"):
            # Different time limits put each job into a separate batch.
            gate = self.folder / "gate"
            jobs = [self.gated(session, gate, duration=600.0 + number) for number in range(4)]
            session.submit(*jobs)
            session.wait(lambda: bool(session.problems()), "a warning")
            gate.touch()
            session.wait_clean(*jobs)
        self.check(session, *jobs)
        assert "would exceed" in session.problems()[0]

    def test_arrays_have_no_more_tasks_than_the_server_allows(self, tmp_path: Path) -> None:
        with self.pbs.limited("max_array_size", "2"):
            with Session(self.make_executor(), tmp_path, self.timeout, tidy=True) as session:
                jobs = [self.counted(session) for _ in range(5)]
                session.run(*jobs)
            self.check(session, *jobs, told=(0,))
            assert (self.folder / "qsub.calls").read_text().count("\n") == 3

    def test_a_waiting_job_that_others_delete_from_its_array_is_cancelled(
        self, session: Session
    ) -> None:
        """PBS prints the exit status of the whole array for it."""
        with self.pbs.limited("max_run", "[o:PBS_ALL=1]"):
            gate = self.folder / "gate"
            jobs = [self.gated(session, gate), self.counted(session)]
            session.submit(*jobs)
            session.wait_for(jobs[0], "start")
            self.pbs.run("qdel", session.queue_id(jobs[1]))
            gate.touch()
            session.wait_clean(*jobs)
        assert session.cause(jobs[0]) == "exit"
        assert session.exception(jobs[1]) == "cancel"
        assert self.ran_in.read_text().split() == [jobs[0].id]

    def test_a_held_array_is_reported_with_the_command_that_releases_it(
        self, session: Session
    ) -> None:
        with self.pbs.limited("max_run", "[o:PBS_ALL=0]"):
            jobs = [self.counted(session) for _ in range(2)]
            session.submit(*jobs)
            session.wait_for(jobs[0], "priority")
            array = session.queue_id(jobs[0]).replace("[1]", "[]")
            self.pbs.run("qhold", array)
            session.wait(lambda: bool(session.problems()), "a warning")
        (problem,) = session.problems()
        assert f"'qrls -h u {array}' lets it start" in problem
        self.pbs.run("qrls", "-h", "u", array)
        session.wait_clean(*jobs)
        assert [session.cause(job) for job in jobs] == ["exit"] * 2

    def test_a_renamed_job_is_still_ours(self, session: Session) -> None:
        job = self.gated(session, self.folder / "gate")
        session.submit(job)
        session.wait_for(job, "start")
        self.pbs.run("qalter", "-N", "another", session.queue_id(job))
        asked = (self.folder / "qstat.calls").read_text().count("\n")
        wait_until(lambda: (self.folder / "qstat.calls").read_text().count("\n") > asked + 9)
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"

    def test_a_job_beyond_the_queues_walltime_times_out(self, session: Session) -> None:
        with self.pbs.limited("resources_default.walltime", "3"):
            session.run(job := self.gated(session, self.folder / "gate"))
        assert session.cause(job) == "timeout"
        assert "walltime" in session.context(job, "exception")["note"]

    def test_running_jobs_of_an_array_that_is_rerun_fail_and_run_once(
        self, session: Session
    ) -> None:
        jobs = [self.gated(session, self.folder / "gate") for _ in range(2)]
        session.submit(*jobs)
        for job in jobs:
            session.wait_for(job, "start")
        wait_until(lambda: self.ran_in.exists() and self.ran_in.read_text().count("\n") == 2)
        (array,) = {session.queue_id(job).partition("[")[0] for job in jobs}
        self.pbs.run("qrerun", f"{array}[]")
        session.wait_clean(*jobs)
        self.pbs.wait_idle()
        assert [session.cause(job) for job in jobs] == ["node-failure"] * 2
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)

    def test_an_ended_job_of_an_array_that_is_rerun_runs_once(self, session: Session) -> None:
        jobs = ended, running = self.counted(session), self.gated(session, self.folder / "gate")
        session.submit(*jobs)
        session.wait_clean(ended)
        array = session.queue_id(running).partition("[")[0]
        self.pbs.run("qrerun", f"{array}[]")
        session.wait_clean(running)
        self.pbs.wait_idle()
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)

    def test_a_job_of_an_array_that_is_rerun_waits_until_it_may_start(
        self, session: Session
    ) -> None:
        """PBS forgets how often such a job was run until it starts again."""
        jobs = [self.gated(session, self.folder / "gate") for _ in range(2)]
        session.submit(*jobs)
        for job in jobs:
            session.wait_for(job, "start")
        asked = (self.folder / "qstat.calls").read_text().count("\n")
        wait_until(lambda: (self.folder / "qstat.calls").read_text().count("\n") > asked + 2)
        with self.pbs.limited("max_run", "[o:PBS_ALL=0]"):
            self.pbs.run("qrerun", session.queue_id(jobs[0]))
            session.wait_for(jobs[0], "requeue")
        (self.folder / "gate").touch()
        session.wait_clean(*jobs)
        assert [session.cause(job) for job in jobs] == ["node-failure", "exit"]
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)

    def test_a_job_that_pbs_reruns_fails_and_runs_once(self, session: Session) -> None:
        """After a node failure, PBS may rerun any array."""
        # A stopped wrapper can no longer report.
        stopped = self.folder / "stopped"
        begin = (
            f"wrapper=$(ps -o ppid= $PPID); echo $wrapper >> {stopped}; "
            f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; kill -STOP $wrapper; sleep 600"
        )
        jobs = [session.job("sh", "-c", begin) for _ in range(2)]
        session.submit(*jobs)
        wait_until(lambda: self.ran_in.exists() and self.ran_in.read_text().count("\n") == 2)
        (first,) = {session.context(job, "submit")["queue_id"].partition("[")[0] for job in jobs}
        self.pbs.rerun(first)
        self.pbs.wait_idle()
        session.wait_clean(*jobs)
        # Without a history, PBS does not report the end of the second run.
        kept = "job_history_enable = True" in self.pbs.run("qstat", "-B", "-f")
        for job in jobs:
            assert session.exception(job) == ("node-failure" if kept else "lost")
            # If its second start was seen as a requeue, it waited at its end, so it has no finish.
            assert 0 not in [e.context["status"] for e in session.of(job) if e.name == "finish"]
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        for pid in stopped.read_text().split():  # PBS does not kill them
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
