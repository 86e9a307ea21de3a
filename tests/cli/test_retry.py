"""``ensemble retry``: failed jobs run again, in a live run and in one that has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until
from killed_runs import CRASH, submitted

import ensemble_core
from ensemble_core.cli.main import main
from ensemble_core.journal.lock import Lock

#: A job fails as long as the file 'broken' exists in its folder's parent, and counts its starts.
FILE = """
jobs:
  - name: sim
    command: "sh -c 'echo x >> starts; test {T} != 2 || test ! -e {cwd}/broken; echo E={T}{tail}'"
    parameters: {T: [1, 2, 3]}
    workdir: runs/{index}
    observe: {key-value: {fields: [E]}}
    result: {E: last.E}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
results: {each: {of: sim, by: [T], columns: {E: mean.E}}}
""".replace("; echo E={T}{tail}", " && echo E={T}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    (tmp_path / "e.yaml").write_text(FILE)
    (tmp_path / "broken").touch()
    return tmp_path


def ensemble(*args: str) -> Result:
    result = CliRunner().invoke(main, [*args])
    assert "Traceback" not in result.output
    return result


def ended() -> None:
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 1


def starts(folder: Path) -> list[int]:
    return [len((folder / "runs" / str(n) / "starts").read_text().splitlines()) for n in range(3)]


def test_only_the_failed_job_of_an_ended_run_runs_again_in_its_folder(folder: Path) -> None:
    ended()
    (folder / "broken").unlink()
    done = ensemble("retry", "r")
    assert done.exit_code == 0, done.output
    assert "requested retry" in done.output
    assert "retry sim.1 (attempt 2)" in done.output
    assert starts(folder) == [1, 2, 1]
    assert "ended, exit code 0" in ensemble("status", "r").output
    run = ensemble_core.open_run("r")
    assert [(row["T"], row["E"]) for row in run.results("each")] == [(1, 1), (2, 2), (3, 3)]
    assert [row["attempts"] for row in run.jobs()] == [1, 2, 1]
    assert ensemble("replay", "r").exit_code == 0
    again = ensemble("retry", "r", "--failed")
    assert again.exit_code == 2
    assert "no failed job to retry" in again.output


def test_job_that_fails_again_gives_exit_code_1_and_can_be_retried_again(folder: Path) -> None:
    ended()
    assert ensemble("retry", "r", "sim.1").exit_code == 1
    (folder / "broken").unlink()
    assert ensemble("retry", "r", "sim.1", "--set", "duration=1h").exit_code == 0
    assert starts(folder) == [1, 3, 1]
    assert ensemble("replay", "r").exit_code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["sim.0"], "sim.0 has succeeded"),
        (["sim.1", "sim.7"], "the run has no job 'sim.7'"),
        (["other/sim.1"], "the run has no job 'other/sim.1'"),
        (["sim.1", "--failed"], "does not go with a JOB"),
        (["sim.1", "--set", "nodse=2"], "did you mean 'nodes'?"),
        (["sim.1", "--set", "nodes"], "for example: duration=2h"),
        (["sim.1", "--set", "parameters.U=2"], "no parameter U"),
    ],
)
def test_what_cannot_be_retried_is_refused_and_the_run_stays_ended(
    folder: Path, args: list[str], said: str
) -> None:
    ended()
    done = ensemble("retry", "r", *args)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "ended, exit code 1" in ensemble("status", "r").output
    assert starts(folder) == [1, 1, 1]


def test_ended_run_that_another_controller_has_is_refused(folder: Path) -> None:
    ended()
    lock = Lock(folder / "state" / "runs" / "r")
    lock.acquire()
    command = [sys.executable, str(CRASH / "one.py"), "", "0", "retry", "r"]
    asked = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    requests = folder / "state" / "runs" / "r" / "requests"
    try:
        wait_until(lambda: asked.poll() is not None or any(requests.glob("*.json")))
    finally:
        lock.release()  # that controller exits without an answer
    _, said = asked.communicate(timeout=120)
    assert asked.returncode == 2, said
    assert "has ended, with exit code 1" in said
    assert starts(folder) == [1, 1, 1]


def test_changed_file_is_used_only_if_that_is_accepted(folder: Path) -> None:
    ended()
    (folder / "e.yaml").write_text(FILE.replace("test {T} != 2", "true {T}"))
    refused = ensemble("retry", "r")
    assert refused.exit_code == 2
    assert "--accept-changes" in refused.output
    assert ensemble("retry", "r", "--accept-changes").exit_code == 0
    assert starts(folder) == [1, 2, 1]


def test_jobs_of_a_live_run_run_again_and_from_python(folder: Path) -> None:
    waits = "  - {name: wait, command: \"sh -c 'while [ ! -e {cwd}/go ]; do sleep 0.05; done'\"}\n"
    rule = "rules:\n  - {trigger: start, action: {name: submit, label: wait}}"
    text = FILE.replace("jobs:\n", f"jobs:\n{waits}").replace("rules:", rule)
    run = ensemble_core.run(text_file(folder, text), executor="local", wait=False)
    try:
        wait_until(lambda: run.metric("count.sim.lost") == 1)
        wait_until(lambda: run.metric("count.wait.active") == 1)
        active = ensemble("retry", run.tag, "wait.0")
        assert (active.exit_code, "wait.0 is not over" in active.output) == (2, True)
        assert ensemble("retry", run.tag, "--accept-changes").exit_code == 2
        done = ensemble("retry", run.tag)
        assert done.exit_code == 0, done.output
        assert "sim.1 runs again, as a further attempt" in done.output
        wait_until(lambda: run.metric("count.sim.failed") == 2)
        wait_until(lambda: run.metric("count.sim.lost") == 1)
        (folder / "broken").unlink()
        assert run.retry("sim.1", duration="1h") == ["sim.1"]
    finally:
        (folder / "go").touch()
        run.wait(120)
    assert run.exit_code == 0
    assert starts(folder) == [1, 3, 1]
    assert ensemble("replay", run.tag).exit_code == 0


def text_file(folder: Path, text: str) -> str:
    (folder / "live.yaml").write_text(text)
    return "live.yaml"


def test_lost_jobs_are_completed(folder: Path) -> None:
    from click.shell_completion import ShellComplete

    ended()
    found = ShellComplete(main, {}, "ensemble", "_C").get_completions(["retry", "r"], "s")
    assert [each.value for each in found] == ["sim.1"]


@pytest.mark.parametrize("number", [10, 24, 60])
def test_killed_retry_is_carried_out_exactly_once(folder: Path, number: int) -> None:
    (folder / "e.yaml").write_text(
        "jobs: [{name: work, command: x, count: 3, options: {disk: {lasts: 0.1, fails: 1}}}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
    )
    state = ["--state", str(folder / "state")]
    plugin = ["--plugin", str(CRASH / "disk_queue.py"), "--executor", "disk"]
    one = [sys.executable, str(CRASH / "one.py"), ""]

    def call(kill_at: int, *words: str) -> int:
        # pytest shows what the command prints if an assertion fails.
        return subprocess.run([*one, str(kill_at), *words, *state], cwd=folder).returncode

    assert call(0, "run", "e.yaml", "--tag", "r", *plugin, "-o", f"folder={folder}") == 1
    assert call(number, "retry", "r") in (-signal.SIGKILL, 1)
    if submitted(folder).keys() <= {"work.0", "work.1", "work.2"}:
        assert call(0, "resume", "r") in (1, 2)
    else:
        call(0, "resume", "r")
    again = {f"work.{n}-1": 1 for n in range(3)}
    if not submitted(folder).keys() & again.keys():  # killed before the request was on disk
        assert call(0, "retry", "r") == 1
    assert submitted(folder) == {f"work.{n}": 1 for n in range(3)} | again
    assert call(0, "replay", "r") == 0
