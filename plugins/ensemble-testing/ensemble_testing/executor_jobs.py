"""Contract of an executor's jobs: their fields, environment, secrets and signals."""

from __future__ import annotations

import contextlib
import platform
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.errors import ExecutorError
from ensemble_core.model.jobs import SIGNALS, Job
from ensemble_testing.executor_settings import ExecutorKnobs
from ensemble_testing.session import Session, wait_until


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


class JobEnvironmentContract(ExecutorKnobs):
    """Tests of the environment and the folder of jobs."""

    def test_environment_and_folder_are_as_requested(
        self, session: Session, tmp_path: Path
    ) -> None:
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        folder = tmp_path / "made" / "when missing"
        job = session.job(
            "sh",
            "-c",
            'printf "%s %s" "$GREETING" "$(pwd)"',
            workdir=str(folder),
            stdout="out/text.txt",
            environment={"GREETING": "hello"},
        )
        session.run(job)
        assert session.context(job, "finish")["status"] == 0
        assert (folder / "out" / "text.txt").read_text() == f"hello {folder}"

    def test_jobs_do_not_inherit_the_service_token(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Jobs start from ``ensemble_core.job_environment()``."""
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        monkeypatch.setenv("ENSEMBLE_TOKEN", "secret")
        script = 'echo "token: ${ENSEMBLE_TOKEN-none}"'
        with self.new_session(tmp_path) as session:
            job = session.job("sh", "-c", script, workdir=str(tmp_path), stdout="told.txt")
            session.run(job)
        assert (tmp_path / "told.txt").read_text() == "token: none\n"

    def test_jobs_inherit_the_environment_of_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A secret can be passed this way, so it need not be in the ensemble file
        (``environment_from``).
        """
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        monkeypatch.setenv("DB_PASSWORD", "s3cret")
        with self.new_session(tmp_path) as session:
            script = 'echo "password: $DB_PASSWORD"'
            job = session.job("sh", "-c", script, workdir=str(tmp_path), stdout="told.txt")
            session.run(job)
        assert (tmp_path / "told.txt").read_text() == "password: s3cret\n"

    def test_inherited_secret_is_in_no_file_after_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the queue passes on no variables, they may be in a private file until the last job has
        started.
        """
        secret = "hunter2-and-more"
        monkeypatch.setenv("DB_PASSWORD", secret)
        with self.new_session(tmp_path) as session:
            session.run(session.job(*self.succeeding, environment={"GREETING": "hello"}))
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path for path in files if secret.encode() in path.read_bytes()] == []

    def test_inherited_secret_is_in_no_file_after_jobs_left_waiting_have_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Jobs that wait when the controller closes start without it, with their variables."""
        if "detach" not in self.make_executor().capabilities or not self.same_machine:
            pytest.skip("its jobs end with it, or are on another machine")
        if self.plugin is not None and self.plugin.secrets:
            pytest.skip("its jobs do not inherit the environment")
        secret = "hunter2-and-more"
        monkeypatch.setenv("DB_PASSWORD", secret)
        may_end, told = tmp_path / "may end", tmp_path / "told"
        wait = (
            f'echo "$DB_PASSWORD" >> {shlex.quote(str(told))}; '
            f"while [ ! -e {shlex.quote(str(may_end))} ]; do sleep 0.1; done"
        )
        with self.new_session(tmp_path) as session:
            slots = self.slots or int(session.executor.resources().get("cores.up", self.many))
            jobs = [session.job("sh", "-c", wait) for _ in range(min(self.many, slots + 2))]
            session.submit(*jobs)
            session.wait_for(jobs[0], "start")
        may_end.touch()
        lines = f"{secret}\n" * len(jobs)
        wait_until(lambda: told.exists() and len(told.read_text()) >= len(lines), self.timeout)
        assert told.read_text() == lines
        told.unlink()
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        found = []
        for path in files:
            # Empty output files disappear when jobs end.
            with contextlib.suppress(FileNotFoundError):
                found += [path] if secret.encode() in path.read_bytes() else []
        assert found == []


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
