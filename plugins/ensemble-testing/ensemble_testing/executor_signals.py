"""Contract of signals: those that the run sends, and the one before a job's time limit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.errors import ExecutorError
from ensemble_core.model.jobs import SIGNALS, Job
from ensemble_testing.executor_settings import ExecutorKnobs
from ensemble_testing.session import Session, wait_until


class SignalsContract(ExecutorKnobs):
    """Tests of the method ``signal`` and of the field ``warn`` of a job."""

    def _recorder(self, session: Session, folder: Path, **fields: Any) -> Job:
        """Return a job that writes each signal to the file ``got``, until there is a file
        ``end``.
        """
        traps = "; ".join(f'trap "echo {name} >>got" {name}' for name in SIGNALS)
        loop = "touch ready; until [ -e end ]; do sleep 0.1; done 2>/dev/null"
        script = f"cd {shlex.quote(str(folder))}; {traps}; {loop}"
        return session.job("bash", "-c", script, **fields)

    def _end(self, session: Session, job: Job, folder: Path) -> list[str]:
        """Let the job end, check that it succeeded, and return the signals that it got."""
        (folder / "end").touch()
        session.wait_clean(job)
        self.check_order(session, job)
        assert not self.fatal(session, job), self.fatal(session, job)
        assert session.context(job, "finish")["status"] == 0
        return (folder / "got").read_text().split()

    def test_a_running_job_gets_the_signals_that_the_run_sends(
        self, session: Session, tmp_path: Path
    ) -> None:
        """Each of them once, and none of them ends the job. Jobs that are over, unknown or held
        get none.
        """
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        job = self._recorder(session, tmp_path)
        over, held = session.job(*self.succeeding), session.job(*self.succeeding, urgency=0)
        if "signal" not in session.executor.capabilities:
            with pytest.raises(ExecutorError):
                session.executor.signal(["nobody.7"], "USR1")
            return
        session.run(over)
        session.submit(job, held)
        session.wait_for(job, "start")
        wait_until((tmp_path / "ready").exists)
        for name in SIGNALS:
            session.executor.signal([over.id, "nobody.7", held.id, job.id], name)
            wait_until(lambda name=name: name in self._got(tmp_path))  # type: ignore[misc]
        assert sorted(self._end(session, job, tmp_path)) == sorted(SIGNALS)
        session.cancel(held)
        session.wait_clean(held)
        assert "start" not in session.names(held)

    def test_a_later_controller_can_send_signals(self, tmp_path: Path) -> None:
        made = self.make_executor().capabilities
        if not (self.same_machine and {"signal", "reattach", "detach"} <= made):
            pytest.skip("the executor sends no signals, or its jobs do not outlive it")
        with self.new_session(tmp_path) as first:
            job = self._recorder(first, tmp_path)
            first.submit(job)
            first.wait_for(job, "start")
            wait_until((tmp_path / "ready").exists)
        with self.new_session(tmp_path, tidy=True).resume(first) as later:
            later.take_over([job.id])
            later.executor.signal([job.id], "USR1")
            wait_until(lambda: self._got(tmp_path))
            assert self._end(later, job, tmp_path) == ["USR1"]

    def test_a_job_is_warned_before_its_time_limit(self, session: Session, tmp_path: Path) -> None:
        """Or it is rejected, with a note that says why."""
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        warn = {"signal": "USR2", "before": 3597.0}
        job = self._recorder(session, tmp_path, duration=3600.0, warn=warn)
        session.submit(job)
        session.wait(
            lambda: {"start", "clean"} & {*session.names(job)} != set(), f"start of {job.id}"
        )
        if "start" not in session.names(job):
            session.wait_clean(job)
            assert self.fatal(session, job), "the job is neither warned nor rejected"
            return
        wait_until(lambda: self._got(tmp_path))
        assert self._end(session, job, tmp_path) == ["USR2"]

    @staticmethod
    def _got(folder: Path) -> list[str]:
        path = folder / "got"
        return path.read_text().split() if path.exists() else []
