"""Stop of runs by a signal, a command or a time limit, and their resume."""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until
from ensemble_testing.stops import STUDY

from ensemble_core.cli.main import main

COMMAND = [sys.executable, "-m", "ensemble_core.cli"]
#: Each job prints a row, waits for a file, and prints another row.
JOB = """#!/bin/sh
echo "started $ENSEMBLE_JOB_ID" >> started
echo "{\\"x\\": $1}"
until [ -e go ]; do sleep 0.05; done
echo "{\\"x\\": $(($1 * 3))}"
"""
#: The same, but it ignores SIGTERM.
STUBBORN = JOB.replace("#!/bin/sh", "#!/bin/sh\ntrap '' TERM")
TABLE = [{"T": 1, "x": 2.0, "n": 1}, {"T": 2, "x": 4.0, "n": 1}, {"T": 3, "x": 6.0, "n": 1}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    Path("e.yaml").write_text(STUDY)
    Path("job.sh").write_text(JOB)
    Path("job.sh").chmod(0o755)
    return tmp_path


def ensemble(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def begun(*args: str, jobs: int = 3) -> subprocess.Popen[str]:
    """Start a run and wait until all its jobs have started."""
    words = [*COMMAND, "run", "e.yaml", "--tag", "study", "--slots", "3", *args]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(starts()) >= jobs)
    return process


def starts() -> list[str]:
    return Path("started").read_text().splitlines() if Path("started").exists() else []


def state() -> str:
    return str(json.loads(ensemble("runs", "--json").output)["state"])


def table() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ensemble("results", "study", "t", "--json").output)
    return found


def check_result() -> None:
    """Check that the result equals that of an undisturbed run."""
    assert state() == "ended"
    assert table() == TABLE
    ensemble("replay", "study")


def stopped(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    out, err = process.communicate(timeout=150)
    assert process.returncode == code, err
    return out, err


@pytest.mark.parametrize(
    ("number", "told"), [(signal.SIGINT, "130: Ctrl-C"), (signal.SIGTERM, "143: SIGTERM")]
)
def test_run_stopped_by_a_signal_is_shown_as_stopped_and_resumed(
    number: signal.Signals, told: str, folder: Path
) -> None:
    process = begun()
    process.send_signal(number)
    out, err = stopped(process, 128 + number)
    assert "stopping: cancelling 3 jobs (Ctrl-C again to exit without waiting)" in err
    assert f"exit code {told}" in out
    assert "to resume this run: ensemble resume study" in out
    status = ensemble("status", "study").output
    assert "study: stopped" in status
    assert "ensemble resume study" in status
    for text in (out, status):
        assert not re.search("interrupted|ended", text)
    assert state() == "stopped"
    Path("go").touch()
    ensemble("resume", "study")
    assert sorted(starts()) == sorted(2 * [f"started work.{index}" for index in range(3)])
    check_result()


def test_job_that_finishes_during_the_stop_counts_as_finished(folder: Path) -> None:
    Path("job.sh").write_text(STUBBORN)
    process = begun()
    process.terminate()
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    Path("go").touch()
    stopped(process, 143)
    ensemble("resume", "study")
    check_result()


def test_run_left_by_a_second_signal_is_resumed(folder: Path) -> None:
    Path("job.sh").write_text(STUBBORN)
    process = begun()
    process.terminate()
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.terminate()
    while not select.select([process.stderr], [], [], 0.4)[0]:
        process.terminate()  # signals within a short time count as one
    assert "exiting without waiting" in process.stderr.readline()
    stopped(process, 143)
    assert state() == "interrupted"
    Path("go").touch()
    ensemble("resume", "study")
    check_result()


def test_stop_command_stops_a_run(folder: Path) -> None:
    process = begun()
    result = ensemble("stop", "study")
    assert "run study is stopped; 'ensemble resume study' resumes it" in result.output
    stopped(process, 5)
    assert "is stopped" in ensemble("stop", "study").output
    Path("go").touch()
    ensemble("resume", "study")
    check_result()
    assert "has ended already" in ensemble("stop", "study").output


def test_wall_limit_applies_to_each_resume(folder: Path) -> None:
    process = begun("--set", "limits.wall=1")
    out, err = stopped(process, 5)
    assert "stopping: cancelling 3 jobs (Ctrl-C to exit without waiting)" in err
    assert "\ne: stopped after " in out
    assert "time limit reached" in ensemble("status", "study").output
    ensemble("resume", "study", "--wall", "0.5s", code=5)
    assert state() == "stopped"
    Path("go").touch()
    ensemble("resume", "study", "--wall", "1h")
    check_result()


@pytest.mark.parametrize("wall", ["soon", "0"])
def test_invalid_wall_is_rejected(folder: Path, wall: str) -> None:
    assert "--wall" in ensemble("run", "e.yaml", "--wall", wall, code=2).output
    result = ensemble("run", "e.yaml", "--set", f"limits.wall={wall}", code=2)
    assert "limits.wall" in result.output
    assert not Path("state").exists()


def test_repeated_or_resume_continues_until_the_run_ends(folder: Path) -> None:
    words = ("run", "e.yaml", "--tag", "study", "--or-resume", "--wall", "1s")
    ensemble(*words, code=5)
    ensemble(*words, code=5)
    Path("go").touch()
    ensemble(*words[:-2])
    check_result()
    assert "run study has already ended with exit code 0" in ensemble(*words).output


def test_stopped_run_can_be_cancelled(folder: Path) -> None:
    process = begun()
    ensemble("stop", "study")
    stopped(process, 5)
    ensemble("cancel", "study")
    assert state() == "ended"
    assert len(starts()) == 3
    assert "has ended" in ensemble("resume", "study", code=2).output


def test_cancel_ends_a_stopping_run(folder: Path) -> None:
    Path("job.sh").write_text(STUBBORN)
    process = begun()
    ensemble("stop", "study", "--no-wait")
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    ensemble("cancel", "study")
    stopped(process, 130)
    assert state() == "ended"


def test_signal_ends_a_run_without_a_journal(folder: Path) -> None:
    process = begun("--no-journal")
    process.terminate()
    out, _ = stopped(process, 143)
    assert "resume" not in out
    assert ensemble("runs", "--json").output == ""


def test_invalid_on_stop_is_rejected(folder: Path) -> None:
    result = ensemble("validate", "e.yaml", "--set", "on_stop=kep", code=2)
    assert "keep" in result.output


def test_ended_run_is_reopened_by_a_change_that_adds_work(
    folder: Path,
) -> None:
    Path("go").touch()
    ensemble("run", "e.yaml", "--tag", "study")
    refused = ensemble("resume", "study", "--accept-changes", code=2).output
    assert "has ended, with exit code 0" in refused
    Path("e.yaml").write_text(STUDY + "# a remark\n")
    assert "has ended" in ensemble("resume", "study", "--accept-changes", code=2).output
    rule = "{id: again, trigger: metric, name: count.work.done, when: '>= 3', "
    rule += "action: {name: submit, label: last}}"
    Path("e.yaml").write_text(STUDY.replace("results:\n", f"  - {rule}\nresults:\n"))
    ensemble("resume", "study", "--accept-changes")
    assert "last" in ensemble("jobs", "study").output
    check_result()
    assert ensemble("jobs", "study").output.count("\nlast") == 2


@pytest.mark.parametrize("how", ["under way", "killed", "stopped"])
def test_cancel_jobs_cancels_left_jobs_and_a_resume_resubmits_them(folder: Path, how: str) -> None:
    process = begun("--set", "on_stop=keep")
    if how == "killed":
        process.kill()
        process.communicate()
    elif how == "stopped":
        ensemble("stop", "study")
    assert "run study is stopped" in ensemble("stop", "study", "--cancel-jobs").output
    if how != "killed":
        assert "stopping: 3 jobs left to the queue" in stopped(process, 5)[1]
    assert state() == "stopped"
    assert len(starts()) == 3
    again = ensemble("stop", "study", "--cancel-jobs").output
    assert again == "run study is stopped; 'ensemble resume study' resumes it\n"
    Path("go").touch()
    ensemble("resume", "study")
    assert sorted(starts()) == sorted(2 * [f"started work.{index}" for index in range(3)])
    check_result()
    assert "has ended already" in ensemble("stop", "study", "--cancel-jobs").output


def test_jobs_that_ended_before_the_cancel_count_without_triggering_rules(
    folder: Path,
) -> None:
    """``stop --cancel-jobs`` triggers no rules: otherwise 'last' would start."""
    Path("job.sh").write_text(f"{JOB}echo over >> over\n")
    process = begun("--set", "on_stop=keep")
    process.kill()
    process.communicate()
    Path("go").touch()
    wait_until(lambda: Path("over").exists() and len(Path("over").read_text().split()) == 3)
    ensemble("stop", "study", "--cancel-jobs")
    assert "last" not in ensemble("jobs", "study").output
    assert state() == "stopped"
    ensemble("resume", "study")
    assert len(starts()) == 3
    check_result()


def test_incomplete_cancel_ends_with_exit_code_75(folder: Path) -> None:
    Path("job.sh").write_text(STUBBORN)
    # A long grace period: the jobs must not be killed before the test has looked.
    process = begun("--set", "on_stop=keep", "--executor", "local", "-o", "grace=600")
    process.terminate()
    stopped(process, 143)
    words = [*COMMAND, "stop", "study", "--cancel-jobs"]
    one = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: state() == "running")
    other = ensemble("resume", "study", code=2)
    assert "is controlled by" in other.output
    wait_until(lambda: "stopped by" in ensemble("events", "study").output)
    one.terminate()
    assert one.stderr is not None
    assert "stopping: cancelling 3 jobs" in one.stderr.readline()
    while not select.select([one.stderr], [], [], 0.4)[0]:
        one.terminate()
    out, _ = stopped(one, 75)
    assert "run study is interrupted and may still have jobs in its queue" in out
    Path("go").touch()
    ensemble("stop", "study", "--cancel-jobs")
    assert state() == "stopped"
    ensemble("resume", "study")
    check_result()


def test_cancel_jobs_cancels_jobs_kept_by_the_end_of_a_run(folder: Path) -> None:
    end = "{trigger: job-start, name: work, action: {name: terminate, cancel: false}}"
    Path("e.yaml").write_text(STUDY.replace("results:\n", f"  - {end}\nresults:\n"))
    process = begun()
    stopped(process, 0)
    assert json.loads(ensemble("runs", "--json").output)["left"]
    ensemble("stop", "study", "--cancel-jobs")
    found = json.loads(ensemble("runs", "--json").output)
    assert (found["state"], found["exit_code"], found["left"]) == ("ended", 0, False)
    assert "cancelled" in ensemble("jobs", "study").output
    ensemble("replay", "study")


def test_cancel_jobs_without_waiting_is_rejected(folder: Path) -> None:
    assert (
        "cannot be combined with"
        in ensemble("stop", "study", "--cancel-jobs", "--no-wait", code=2).output
    )
