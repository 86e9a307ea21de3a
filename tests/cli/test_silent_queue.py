"""Stop of a run whose queue never reports the end of cancelled jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until

from ensemble_core.cli.main import main

PLUGIN = """
from pathlib import Path

from ensemble_core import Executor, ExecutorPlugin, JobEvent, hookimpl


def note(name, jobs):
    with open(name, "a") as file:
        file.writelines(f"{job}\\n" for job in jobs)


class Forgetful(Executor):
    capabilities = frozenset({"submit", "cancel", "reattach", "detach"})

    def open(self, run, emit):
        self.run, self.emit = run, emit

    def tell(self, job, *names):
        for name in names:
            context = {"status": 0} if name == "finish" else {}
            self.emit([JobEvent(self.run.clock(), job, name, context)])

    def submit(self, jobs):
        note("submitted", [job.id for job in jobs])
        for job in jobs:
            self.tell(job.id, "submit", "alloc", "start")
            if Path("end").exists():
                self.tell(job.id, "finish", "clean")

    def cancel(self, jobs):
        note("cancelled", jobs)

    def reattach(self, jobs):
        note("asked", jobs)
        known = not Path("forgotten").exists()
        for job in jobs if known else ():
            self.tell(job, "finish", "clean")
        return {job: known for job in jobs}

    def close(self):
        pass


@hookimpl
def ensemble_executors():
    return [
        ExecutorPlugin(
            name="forgetful", summary="-", build=lambda options: Forgetful(),
            capabilities=Forgetful.capabilities,
        )
    ]
"""
STUDY = """
jobs: [{name: sim, command: x, count: 2}]
rules: [{trigger: start, action: {name: submit, label: sim}}]
limits: {stop: 0.5}
on_stop: cancel
"""
WORDS = ["--plugin", "forgetful.py", "--executor", "forgetful"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    Path("e.yaml").write_text(STUDY)
    Path("forgetful.py").write_text(PLUGIN)
    return tmp_path


def lines(name: str) -> list[str]:
    return Path(name).read_text().splitlines() if Path(name).exists() else []


def ensemble(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def state() -> str:
    return str(json.loads(ensemble("runs", "--json").output)["state"])


def stop_a_run(*more: str) -> subprocess.CompletedProcess[str]:
    """Stop the run with one SIGTERM."""
    words = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", *WORDS, *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(lines("submitted")) == 2)
        process.terminate()
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def test_stop_leaves_unreported_jobs_and_names_them() -> None:
    done = stop_a_run("--tag", "study")
    assert done.returncode == 143
    assert lines("cancelled") == ["sim.0", "sim.1"]
    assert "executor forgetful has reported nothing about 2 cancelled jobs for 0.5 s" in done.stderr
    assert "sim.0, sim.1 may still be in its queue" in done.stderr
    assert "'ensemble resume study' asks the queue for them" in done.stderr
    assert state() == "stopped"


def test_resume_reattaches_to_jobs_left_by_a_stop() -> None:
    stop_a_run("--tag", "study")
    ensemble("resume", "study")
    assert lines("asked") == ["sim.0", "sim.1"]
    assert lines("submitted") == ["sim.0", "sim.1"]
    assert state() == "ended"
    ensemble("replay", "study")


def test_resume_submits_cancelled_jobs_that_the_queue_lost() -> None:
    stop_a_run("--tag", "study")
    Path("forgotten").touch()
    Path("end").touch()
    ensemble("resume", "study")
    assert lines("submitted") == ["sim.0", "sim.1", "sim.0~1", "sim.1~1"]
    assert state() == "ended"


def test_run_without_a_journal_does_not_wait_for_a_silent_queue() -> None:
    done = stop_a_run("--no-journal")
    assert done.returncode == 143
    assert "check the queue yourself" in done.stderr


def test_rule_that_ends_the_run_does_not_wait_for_a_silent_queue() -> None:
    ending = "  - {trigger: job-start, action: {name: terminate, exit_code: 3}}\n"
    submitting = "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
    Path("e.yaml").write_text(
        STUDY.replace(
            "rules: [{trigger: start, action: {name: submit, label: sim}}]\n", submitting + ending
        )
    )
    words = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", *WORDS, "--tag", "study"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 3
    assert "has reported nothing about 2 cancelled jobs" in done.stderr
    assert state() == "interrupted"
    ensemble("resume", "study", code=3)
    assert lines("submitted") == ["sim.0", "sim.1"]
    assert state() == "ended"


@pytest.mark.parametrize("stop", ["0", "soon"])
def test_invalid_stop_limit_is_an_error_with_its_place(stop: str) -> None:
    Path("e.yaml").write_text(STUDY.replace("stop: 0.5", f"stop: {stop}"))
    assert "e.yaml:4:16" in ensemble("validate", "e.yaml", code=2).output
