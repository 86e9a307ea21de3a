"""Contract of a job's fields: an executor honours each field or rejects the job."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.model.jobs import Job
from ensemble_testing.executor_settings import ExecutorKnobs
from ensemble_testing.session import Session


class JobFieldsContract(ExecutorKnobs):
    """Tests of the fields of :class:`Job`."""

    def succeeded(self, session: Session, job: Job) -> bool:
        """Return whether a finished job succeeded; otherwise it must have been rejected."""
        finish = [event.context for event in session.of(job) if event.name == "finish"]
        if finish and finish[0].get("status") == 0 and not self.fatal(session, job):
            return True
        assert self.fatal(session, job), f"neither done nor rejected: {session.names(job)}"
        assert "start" not in session.names(job), "a rejected job does not run"
        return False

    def test_each_task_of_a_job_runs(self, session: Session, tmp_path: Path) -> None:
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        job = session.job("echo", "here", tasks=2, workdir=str(tmp_path), stdout="tasks.txt")
        session.run(job)
        if self.succeeded(session, job):
            assert (tmp_path / "tasks.txt").read_text() == "here\n" * 2

    @pytest.mark.parametrize("what", ["cores_per_task", "gpus_per_task"])
    def test_impossible_request_never_runs(self, session: Session, what: str) -> None:
        """A job is rejected or waits: it must not run without the resources that it requests."""
        fields: dict[str, Any] = {what: self.impossible}
        job = session.job(*self.succeeding, **fields)
        session.submit(job)
        session.run(session.job(*self.succeeding))
        self._never_starts(session, job)

    def test_job_with_urgency_0_is_held(self, session: Session) -> None:
        job = session.job(*self.succeeding, urgency=0)
        session.submit(job)
        session.run(session.job(*self.succeeding))
        self._never_starts(session, job)

    def test_a_job_never_runs_on_a_node_that_it_avoids(self, session: Session) -> None:
        """It runs on another node, waits for one, or is rejected."""
        if "avoid" not in session.executor.capabilities:
            pytest.skip("the executor has not the capability 'avoid'")
        first = session.job(*self.succeeding)
        session.run(first)
        host = session.context(first, "start").get("host") or platform.node()
        job = session.job(*self.succeeding, avoid=tuple(host.split(",")))
        session.submit(job)
        session.run(session.job(*self.succeeding))
        if "clean" not in session.names(job):
            session.cancel(job)
            session.wait_clean(job)
        self.check_order(session, job)
        if "start" in session.names(job):
            assert session.context(job, "start")["host"] != host
        else:
            assert self.fatal(session, job)

    def _never_starts(self, session: Session, job: Job) -> None:
        if "clean" not in session.names(job):
            session.cancel(job)
            session.wait_clean(job)
        self.check_order(session, job)
        assert self.fatal(session, job)
        assert "start" not in session.names(job), session.names(job)

    @pytest.mark.parametrize("same", [False, True])
    def test_output_and_errors_go_to_their_files(
        self, session: Session, tmp_path: Path, same: bool
    ) -> None:
        """Output and errors go to two files, or to the same file."""
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        out, err = "made/out.txt", "made/out.txt" if same else "made too/err.txt"
        job = session.job(
            "sh", "-c", "echo out; echo err >&2", workdir=str(tmp_path), stdout=out, stderr=err
        )
        session.run(job)
        if self.succeeded(session, job):
            assert "out" in (tmp_path / out).read_text().split()
            assert "err" in (tmp_path / err).read_text().split()

    def test_another_attempt_is_a_separate_job(self, session: Session) -> None:
        first = session.job(*self.failing)
        second = replace(first, id=f"{first.id}-1", attempt=1, command=self.succeeding)
        session.run(first)
        session.run(second)
        for job in (first, second):
            self.check_order(session, job)
        assert session.context(first, "finish")["status"] != 0
        assert session.context(second, "finish")["status"] == 0

    def test_jobs_resubmitted_after_a_stop_are_separate_jobs(self, session: Session) -> None:
        """Resubmitted jobs have their own names in the queue, but may share one array."""
        first = [session.job(*self.failing) for _ in range(3)]
        again = [
            replace(job, id=f"{job.id}~1", requeued=1, command=self.succeeding) for job in first
        ]
        session.run(*first)
        session.run(*again)
        for job, status in (*((job, False) for job in first), *((job, True) for job in again)):
            self.check_order(session, job)
            assert (session.context(job, "finish")["status"] == 0) is status
