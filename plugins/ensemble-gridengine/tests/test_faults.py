"""Tests of a real Grid Engine whose commands fail, hang, print garbage or forget jobs."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from ensemble_batch import timing
from ensemble_gridengine.executor import GridEngineExecutor
from ensemble_testing import FaultSuite, Session, wait_until

from ensemble_core import Executor

if TYPE_CHECKING:
    from conftest import Cluster

#: A script whose processes each use 90 MB.
HUNGRY = """
for i in 1 2 3; do python3 -c 'import time; x = b"x" * 90_000_000; time.sleep(100)' & done
wait
"""


@pytest.mark.timeout(300)
class TestGridEngine(FaultSuite):
    names_cancels = ("running",)  # it keeps no record of a job that never ran
    commands: ClassVar = {
        "connect": "qconf",
        "submit": "qsub",
        "ask": "qstat -xml",
        "cancel": "qdel",
    }
    away = "error: commlib error: got select error (Connection refused)"
    nothing = "<job_info><queue_info/><job_info/></job_info>"
    partial = """perl -0pe 's{<job_list.*?</job_list>}{}s'"""
    restart_codes = (99, 100)
    acts: ClassVar = {"suspend": "qmod -sj {id}", "unsuspend": "qmod -usj {id}"}

    @pytest.fixture
    def queue(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def make_executor(self, period: float = 1.0) -> Executor:
        return GridEngineExecutor(poll=period)

    @pytest.mark.parametrize("limit", ["max_u_jobs", "max_jobs"])
    def test_jobs_beyond_the_cells_limit_wait_and_run_later(
        self, limit: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timing, "FULL", 1.0)
        self.cluster.wait_idle()
        with self.cluster.limited(**{limit: "2"}):
            # Different time limits: each job is a batch.
            gate = self.folder / "gate"
            jobs = [self.gated(session, gate, duration=600.0 + number) for number in range(4)]
            session.submit(*jobs)
            session.wait(lambda: bool(session.problems()), "a warning")
            gate.touch()
            session.wait_clean(*jobs)
        self.check(session, *jobs)
        assert "are allowed per" in session.problems()[0]

    def test_arrays_have_no_more_tasks_than_the_cell_allows(self, tmp_path: Path) -> None:
        with self.cluster.limited(max_aj_tasks="2"):
            with Session(self.make_executor(), tmp_path, self.timeout, tidy=True) as session:
                jobs = [self.counted(session) for _ in range(5)]
                session.run(*jobs)
            self.check(session, *jobs, told=(0,))
            assert (self.folder / "qsub.calls").read_text().count("\n") == 3

    def test_a_job_that_grid_engine_restarts_fails_and_runs_once(self, session: Session) -> None:
        stopped = self.folder / "stopped"
        # The stopped wrapper cannot report.
        begin = (
            f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; wrapper=$(ps -o ppid= $PPID); "
            f"echo $wrapper $$ > {stopped}; kill -STOP $wrapper; exec sleep 600"
        )
        job = session.job("sh", "-c", begin)
        session.submit(job)
        session.wait_for(job, "start")
        wait_until(lambda: stopped.exists() and stopped.read_text().endswith("\n"))
        self.cluster.run("qmod", "-f", "-rj", session.context(job, "submit")["queue_id"])
        # Grid Engine may take a minute to end the first run, and waits for that.
        for process in stopped.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        session.wait_clean(job)
        assert session.exception(job) == "node-failure"
        # If its second start was seen as a requeue, it waited at its end, so it has no finish.
        finished = [event.context["status"] for event in session.of(job) if event.name == "finish"]
        assert 0 not in finished
        assert self.ran_in.read_text().split() == [job.id]

    def test_a_job_that_starts_after_its_folders_were_removed_leaves_the_queue(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch may reach the queue after its run has ended and was removed."""
        folder = tmp_path / "study"
        folder.mkdir()
        monkeypatch.chdir(folder)
        with Session(self.make_executor(), folder, self.timeout) as session:
            jobs = [session.job("true", urgency=0) for _ in range(2)]
            session.submit(*jobs)
            session.wait_for(jobs[1], "priority")
            array = session.queue_id(jobs[1]).partition(".")[0]
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(folder)
        self.cluster.run("qrls", array)
        self.cluster.wait_idle()

    @pytest.mark.parametrize("which", ["whole array", "only array", "some tasks"])
    def test_waiting_jobs_that_others_delete_are_not_lost(
        self, session: Session, which: str
    ) -> None:
        """A retry must not submit again what the user has deleted with ``qdel``."""
        jobs = [session.job("true", urgency=0) for _ in range(3)]
        session.submit(*jobs)
        session.wait_for(jobs[-1], "priority")
        ids = [session.context(job, "submit")["queue_id"] for job in jobs]
        words = ("-terse", "-h", "-b", "y", "-o", "/dev/null", "-e", "/dev/null", "sleep", "1000")
        # Of somebody else; without it, no listed job shows that qmaster has kept its records.
        later = "" if which == "only array" else self.cluster.run("qsub", *words).strip()
        array = ids[0].partition(".")[0]
        self.cluster.run("qdel", array, *(("-t", "2-3") if which == "some tasks" else ()))
        deleted = jobs[1:] if which == "some tasks" else jobs
        session.wait_clean(*deleted)
        assert {session.exception(job) for job in deleted} == {"cancel"}
        assert {session.cause(job) for job in deleted} == {"cancelled"}
        if deleted != jobs:
            session.cancel(jobs[0])
        session.wait_clean(*jobs)
        if later:
            self.cluster.run("qdel", later)

    def test_tasks_that_others_delete_while_the_rest_of_the_array_runs_are_not_lost(
        self, session: Session
    ) -> None:
        jobs = [session.job("sleep", "2") for _ in range(12)]  # four more than the cell has slots
        session.submit(*jobs)
        session.wait_for(jobs[7], "start")
        waiting = [job for job in jobs if "start" not in session.names(job)][:4]
        ids = [session.context(job, "submit")["queue_id"] for job in waiting]
        self.cluster.run("qdel", *ids)
        session.wait_clean(*jobs)
        assert {session.exception(job) for job in waiting} == {"cancel"}

    def test_an_id_that_a_crashed_qmaster_gives_again_belongs_to_the_later_job(
        self, session: Session
    ) -> None:
        held = session.job("true", urgency=0)
        session.submit(held)
        session.wait_for(held, "priority")
        used = session.context(held, "submit")["queue_id"]
        with self.cluster.crashed():
            self.cluster.forget(int(used))
        later = self.counted(session)
        session.submit(later)
        session.wait_for(later, "priority")
        assert session.context(later, "submit")["queue_id"] == used
        session.wait_clean(held, later)
        assert session.exception(held) == "lost"
        assert session.context(later, "finish")["status"] == 0
        assert self.ran_in.read_text().split() == [later.id]

    @pytest.mark.parametrize(
        ("limit", "script", "cause"),
        [
            ({"h_rt": 4}, "sleep 100", "timeout"),
            ({"h_cpu": 2}, "while :; do :; done", "timeout"),
            # Each process is within its own limit; Grid Engine adds them up.
            (
                {"h_vmem": "200M"},
                HUNGRY,
                "memory",
            ),
        ],
    )
    def test_a_job_that_exceeds_a_limit_of_grid_engine_has_its_cause(
        self, session: Session, limit: dict[str, object], script: str, cause: str
    ) -> None:
        """Its wrapper gets the same notice as that of a deleted job."""
        options = {"gridengine": {"resources": limit}}
        session.run(job := session.job("sh", "-c", script, options=options))
        assert session.cause(job) == cause
        (name,) = limit
        assert name in session.context(job, "exception")["note"]

    def test_a_running_job_that_is_rescheduled_fails_and_runs_once(self, session: Session) -> None:
        job = self.gated(session, self.folder / "gate")
        session.submit(job)
        session.wait_for(job, "start")
        wait_until(self.ran_in.exists)
        self.cluster.run("qmod", "-f", "-rj", session.queue_id(job))
        session.wait_clean(job)
        assert session.cause(job) == "node-failure"
        assert self.ran_in.read_text().split() == [job.id]

    def test_tasks_of_a_suspended_job_stand_still_and_continue(self, session: Session) -> None:
        """Grid Engine sends SIGUSR1 as a notice, and then stops only the wrapper."""
        self.cluster.run("qconf", "-mattr", "queue", "notify", "00:00:02", "all.q")
        try:
            gate, pid = self.folder / "gate", self.folder / "pid"
            script = f"echo $$ > {pid}; until [ -e {gate} ]; do sleep 0.1; done; exit 3"
            job = session.job("sh", "-c", script, duration=600.0)
            session.submit(job)
            session.wait_for(job, "start")
            wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
            status = Path(f"/proc/{pid.read_text().strip()}/status")
            for times in (1, 2):
                self.act("suspend", session, job)
                wait_until(lambda: "(stopped)" in status.read_text())
                session.wait(
                    lambda times=times: session.names(job).count("suspend") == times, "suspend"
                )
                self.act("unsuspend", session, job)
                wait_until(lambda: "(stopped)" not in status.read_text())
                session.wait(
                    lambda times=times: session.names(job).count("unsuspend") == times, "unsuspend"
                )
            gate.touch()
            session.wait_clean(job)
            assert session.context(job, "finish")["status"] == 3 << 8
            assert "exception" not in session.names(job)
        finally:
            self.cluster.run("qconf", "-mattr", "queue", "notify", "00:00:60", "all.q")

    def test_a_renamed_job_is_still_ours(self, session: Session) -> None:
        gate = self.folder / "gate"
        jobs = [self.gated(session, gate) for _ in range(2)]
        session.submit(*jobs)
        session.wait_for(jobs[1], "start")
        number = session.queue_id(jobs[1]).partition(".")[0]
        self.cluster.run("qalter", "-N", "another", number)
        asked = self.asked()
        wait_until(lambda: self.asked() > asked + 4)
        session.cancel(jobs[1])
        session.wait_clean(jobs[1])
        assert session.exception(jobs[1]) == "cancel"
        gate.touch()
        session.wait_clean(jobs[0])
        assert session.context(jobs[0], "finish")["status"] == 0

    def test_a_foreign_job_with_the_id_of_a_forgotten_one_is_not_ours(
        self, session: Session
    ) -> None:
        held = session.job("true", urgency=0)
        session.submit(held)
        session.wait_for(held, "priority")
        used = session.context(held, "submit")["queue_id"]
        with self.cluster.crashed():
            self.cluster.forget(int(used))
        words = ("-terse", "-h", "-b", "y", "-o", "/dev/null", "-e", "/dev/null", "sleep", "1000")
        assert self.cluster.run("qsub", *words).strip() == used
        session.wait_clean(held)
        assert session.exception(held) == "lost"
        assert used in [line.split()[0] for line in self.cluster.jobs()]
        self.cluster.run("qdel", used)

    @pytest.mark.parametrize("array", [False, True], ids=["job", "array"])
    def test_no_foreign_job_that_got_the_id_since_the_last_query_is_cancelled(
        self, session: Session, monkeypatch: pytest.MonkeyPatch, array: bool
    ) -> None:
        held = session.job("true", urgency=0)
        session.submit(held)
        session.wait_for(held, "priority")
        used = session.context(held, "submit")["queue_id"]
        monkeypatch.setattr(session.executor, "poll", 1000.0)  # no further query
        asked = self.asked()
        wait_until(lambda: self.asked() > asked)
        with self.cluster.crashed():
            self.cluster.forget(int(used))
        words = ["-terse", "-h", "-b", "y", "-o", "/dev/null", "-e", "/dev/null"]
        words += ["-t", "1-2"] if array else []
        assert self.cluster.run("qsub", *words, "sleep", "1000").strip().partition(".")[0] == used
        session.cancel(held)
        session.wait_clean(held)
        assert session.exception(held) == "cancel"
        wait_until(lambda: not session.executor._polled.cancels)
        assert used in [line.split()[0] for line in self.cluster.jobs()]
        self.cluster.run("qdel", used)
