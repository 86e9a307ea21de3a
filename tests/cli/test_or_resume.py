"""Tests of ``ensemble run --tag TAG --or-resume``.

If the same command is repeated, for example in a restarted pod, it resumes the run and submits no
job twice.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until
from killed_runs import CRASH, JOBS, YAML, empty_folder, kill, submitted

from ensemble_core.cli.main import main
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME

#: A queue that is unreachable while the file 'away' exists, and lost while the file 'lost' exists.
FRAIL = """
from dataclasses import replace
from pathlib import Path

import disk_queue
from ensemble_core import ExecutorError, ExecutorLost, hookimpl


class Frail(disk_queue.DiskQueue):
    def open(self, run, emit):
        if Path("away").exists():
            raise ExecutorError("the network is down")
        super().open(run, emit)
        if Path("lost").exists():
            emit([ExecutorLost(run.clock(), "disk", "the network is down")])


@hookimpl
def ensemble_executors():
    return [replace(each, build=lambda o: Frail(**o)) for each in disk_queue.ensemble_executors()]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_folder(tmp_path_factory.getbasetemp(), monkeypatch)


def words(folder: Path, *more: str) -> list[str]:
    """Return the arguments of the repeated command."""
    queue = ["--plugin", str(CRASH / "disk_queue.py"), "--executor", "disk", "-o"]
    return ["run", "e.yaml", *queue, f"folder={folder}", "--state", "state", *more]


PLAIN = ("--tag", "study", "--or-resume")


def run(folder: Path, *more: str) -> Result:
    result = CliRunner().invoke(main, words(folder, *(more or PLAIN)))
    assert result.exit_code != 70, result.output
    return result


def test_unknown_tag_starts_a_new_run(folder: Path) -> None:
    assert run(folder).exit_code == 0
    assert submitted(folder) == JOBS
    assert [each.name for each in Path("state/runs").iterdir()] == ["study"]


@pytest.mark.parametrize(
    ("kind", "number"),
    [("before INSERT", 1), ("before INSERT", 4), ("before the first event", 1), ("told", 2)],
)
def test_killed_run_is_resumed_and_submits_nothing_twice(
    folder: Path, kind: str, number: int
) -> None:
    kill(folder, kind, number, words(folder, *PLAIN))
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert submitted(folder) == JOBS
    assert [each.name for each in Path("state/runs").iterdir()] == ["study"]


def test_ended_run_returns_its_exit_code(folder: Path) -> None:
    Path("e.yaml").write_text(
        "jobs: [{name: a, command: x}]\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: a}}\n"
        "  - {trigger: job-success, action: {name: terminate, exit_code: 7}}\n"
    )
    assert run(folder).exit_code == 7
    again = run(folder)
    assert again.exit_code == 7
    assert "run study has already ended with exit code 7" in again.output
    assert "has changed" not in again.output
    assert submitted(folder) == {"a.0": 1}
    Path("e.yaml").write_text(Path("e.yaml").read_text() + "# more to do\n")
    changed = run(folder)
    assert changed.exit_code == 7
    assert "e.yaml has changed since run study read it" in changed.output
    assert "'ensemble resume study --accept-changes' reopens it" in changed.output
    assert submitted(folder) == {"a.0": 1}


def test_run_with_another_controller_is_not_resumed(folder: Path) -> None:
    kill(folder, "told", 2, words(folder, *PLAIN))
    lock = Lock(Path("state/runs/study"))
    lock.acquire()
    try:
        result = run(folder)
    finally:
        lock.release()
    assert (result.exit_code, "is controlled by" in result.output) == (2, True)
    assert "'ensemble stop study' stops it" in result.output
    assert "ensemble cancel" not in result.output


def test_folder_with_other_files_is_not_removed(folder: Path) -> None:
    thesis = Path("state/runs/study/output/thesis.tex")
    thesis.parent.mkdir(parents=True)
    thesis.write_text("42 pages")
    result = run(folder)
    assert result.exit_code == 2
    assert "Ensemble did not write" in result.output
    assert "thesis.tex" in result.output
    assert thesis.read_text() == "42 pages"
    thesis.unlink()
    assert run(folder).exit_code == 0
    assert submitted(folder) == JOBS


def test_tag_is_unique(folder: Path) -> None:
    assert run(folder, "--tag", "study").exit_code == 0
    result = run(folder, "--tag", "study")
    assert result.exit_code == 2
    assert "run study already exists" in result.output
    assert "--or-resume" in result.output
    assert submitted(folder) == JOBS


def test_run_of_another_file_is_not_resumed(folder: Path) -> None:
    assert run(folder).exit_code == 0
    os.rename("e.yaml", "other.yaml")
    arguments = [each.replace("e.yaml", "other.yaml") for each in words(folder, *PLAIN)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "run study was started from" in result.output
    assert submitted(folder) == JOBS


def test_run_of_a_changed_file_is_not_resumed(folder: Path) -> None:
    kill(folder, "told", 2, words(folder, *PLAIN))
    before = submitted(folder)
    Path("e.yaml").write_text(YAML.replace("0.1", "0.2"))
    result = run(folder)
    assert result.exit_code == 2
    assert "has changed since run study read it" in result.output
    assert submitted(folder) == before


@pytest.mark.parametrize(
    "more",
    [
        ("--or-resume",),
        ("--or-resume", "--tag", "x", "--no-journal"),
        ("--tag", "../x"),
        ("--tag", ""),
        ("--tag", ".x"),
        ("--tag", "last"),
    ],
)
def test_invalid_tag_is_rejected(folder: Path, more: tuple[str, ...]) -> None:
    assert run(folder, *more).exit_code == 2
    assert not Path("queue.jsonl").exists()
    assert not Path("state").exists()


@pytest.mark.parametrize("empty", [False, True])
def test_lost_journal_of_a_started_run_is_not_removed(folder: Path, empty: bool) -> None:
    """The run must not be restarted, because its jobs may still be alive."""
    kill(folder, "told", 2, words(folder, *PLAIN))
    for each in Path("state/runs/study").glob(f"{NAME}*"):
        each.unlink()
    if empty:
        Path("state/runs/study", NAME).touch()
    before = submitted(folder)
    result = run(folder)
    assert result.exit_code == 2
    assert submitted(folder) == before
    assert "the journal of run study is lost" in result.output
    shown = CliRunner().invoke(main, ["runs", "--json", "--state", "state"])
    assert json.loads(shown.output)["state"] == "unreadable"


@pytest.mark.parametrize(
    "made",
    [
        "the folder",
        "an empty file",
        "an unwritten file",
        "a half-written file",
        "a file without tables",
    ],
)
def test_run_killed_during_the_creation_of_its_journal_restarts(folder: Path, made: str) -> None:
    """A part of the journal exists, but it has no event."""
    place = Path("state/runs/study")
    place.mkdir(parents=True)
    if made == "an empty file":
        (place / NAME).touch()
    elif made in ("an unwritten file", "a half-written file"):
        # SQLite creates its rollback journal before it writes the first page.
        database = sqlite3.connect("other.db")
        database.executescript("PRAGMA cache_size=1; BEGIN; CREATE TABLE t (x);")
        database.executemany("INSERT INTO t VALUES (zeroblob(4000))", [()] * 100)
        if made == "a half-written file":
            shutil.copy("other.db", place / NAME)
        else:
            (place / NAME).touch()
        shutil.copy("other.db-journal", place / f"{NAME}-journal")
        database.close()
    elif made == "a file without tables":
        database = sqlite3.connect(place / NAME)
        database.execute("PRAGMA journal_mode=WAL")
        database.close()
        shown = CliRunner().invoke(main, ["runs", "--json", "--state", "state"])
        assert json.loads(shown.output)["state"] == "new"
    assert run(folder).exit_code == 0
    assert submitted(folder) == JOBS


@pytest.mark.parametrize("trouble", ["away", "lost"])
def test_jobs_are_cancelled_once_the_queue_is_reachable_again(folder: Path, trouble: str) -> None:
    Path("frail.py").write_text(FRAIL)
    Path("e.yaml").write_text(YAML.replace("0.1", "100"))
    frail = ["--plugin", "frail.py", "--executor", "disk", "-o", f"folder={folder}"]
    run = ["run", "e.yaml", *frail, "--state", "state", *PLAIN]
    stop = ["stop", "study", "--cancel-jobs", "--state", "state"]
    assert CliRunner().invoke(main, [*run, "--wall", "1s", "--set", "on_stop=keep"]).exit_code == 5
    Path(trouble).touch()
    for _ in range(2):
        result = CliRunner().invoke(main, stop)
        assert result.exit_code == 75, result.output
        assert "the network is down" in result.output
    Path(trouble).unlink()
    result = CliRunner().invoke(main, stop)
    assert result.exit_code == 0, result.output
    assert submitted(folder) == {name: count for name, count in JOBS.items() if "work" in name}


def ends(folder: Path, rule: str, *more: str) -> tuple[int, str]:
    """Run a study with this rule. Return its exit code and the content of the exit file."""
    Path("e.yaml").write_text(f"jobs: [{{name: work, command: x}}]\nrules: [{rule}]\n")
    code = run(folder, *PLAIN, "--exit-file", "exit", *more).exit_code
    return code, Path("exit").read_text()


@pytest.mark.parametrize("code", [0, 1, 75, 143])
def test_exit_file_has_the_code_of_an_ended_run(folder: Path, code: int) -> None:
    """A rule's exit code 143 must not look like a stop by SIGTERM."""
    rule = f"{{trigger: start, action: {{name: terminate, exit_code: {code}}}}}"
    assert ends(folder, rule) == (code, f"{code}\n")
    Path("exit").write_text("what an earlier one left")
    assert ends(folder, rule) == (code, f"{code}\n"), "it was over already"


WAITS = "{trigger: interval, seconds: 1000, action: {name: log, message: x}}"


def test_exit_file_has_the_code_of_a_stopped_run(folder: Path) -> None:
    assert ends(folder, WAITS, "--wall", "0.2s") == (5, "5\n")
    lock = Lock(Path("state/runs/study"))
    lock.acquire()
    assert ends(folder, WAITS) == (2, ""), "another has it"
    lock.release()


def test_exit_file_has_usage_errors_but_no_transient_ones(
    folder: Path,
) -> None:
    assert ends(folder, "{trigger: begin, action: {name: submit, label: work}}") == (2, "2\n")
    Path("frail.py").write_text(FRAIL)
    Path("away").touch()
    frail = ["--plugin", "frail.py", "--executor", "disk", "-o", f"folder={folder}"]
    away = ["run", "e.yaml", *frail, "--state", "state", *PLAIN, "--exit-file", "exit"]
    Path("e.yaml").write_text(YAML)
    assert CliRunner().invoke(main, away).exit_code == 1
    assert Path("exit").read_text() == ""
    assert run(folder, "--tag", "study", "--exit-file", "exit").exit_code == 2, "no --or-resume"


#: A queue whose ``open`` blocks until the file 'go' exists.
SLOW = """
import time
from dataclasses import replace
from pathlib import Path

import disk_queue
from ensemble_core import hookimpl


class Slow(disk_queue.DiskQueue):
    def open(self, run, emit):
        Path("opening").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        super().open(run, emit)


@hookimpl
def ensemble_executors():
    return [replace(each, build=lambda o: Slow(**o)) for each in disk_queue.ensemble_executors()]
"""


@pytest.mark.parametrize("how", ["by a signal", "by a command"])
def test_run_is_stopped_while_its_resume_waits_for_the_queue(folder: Path, how: str) -> None:
    """Regression: after an earlier stop the run counted as stopped, so it lost the signal and never
    ended.
    """
    Path("slow.py").write_text(SLOW)
    rule = f"rules: [{WAITS}]\n"
    Path("e.yaml").write_text(f"jobs: [{{name: work, command: x}}]\n{rule}")
    slow = ["--plugin", "slow.py", "--executor", "disk", "-o", f"folder={folder}"]
    begin = ["run", "e.yaml", *slow, "--state", "state", *PLAIN, "--exit-file", "exit"]
    Path("go").touch()
    assert CliRunner().invoke(main, [*begin, "--wall", "0.2s"]).exit_code == 5
    for left in ("go", "opening"):
        Path(left).unlink()
    command = [sys.executable, "-m", "ensemble_core.cli", *begin]
    environment = {**os.environ, "PYTHONPATH": str(CRASH)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        try:
            wait_until(Path("opening").exists)
            if how == "by a signal":
                running.terminate()
            else:
                asked = ["stop", "study", "--no-wait", "--state", "state"]
                assert CliRunner().invoke(main, asked).exit_code == 0
            assert any(line.startswith(b"stopping") for line in running.stderr)
            Path("go").touch()
            assert running.wait(60) == (143 if how == "by a signal" else 5)
            said = Path("exit").read_text()
            assert said == ("" if how == "by a signal" else "5\n"), (
                "a signal's is not its last word"
            )
        finally:
            running.kill()
