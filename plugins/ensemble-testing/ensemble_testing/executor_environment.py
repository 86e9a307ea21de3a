"""Contract of an executor: what jobs get of the run's environment, and secrets in it."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import pytest

from ensemble_testing.executor_settings import ExecutorKnobs
from ensemble_testing.session import Session, wait_until


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
