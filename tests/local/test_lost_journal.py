"""Runs whose journal is lost or damaged: live jobs are reported and can be ended."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing.session import alive, wait_until

from ensemble_core.cli.main import main
from ensemble_core.journal.reader import NAME
from ensemble_core.local.leftover_jobs import supervisor_pid

FILE = """
jobs: [{name: a, command: "sh -c 'echo $$ > pid.$ENSEMBLE_INDEX; exec sleep 1000'", count: 3}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""
#: Its jobs need some of their grace to save their work.
SLOW = """
jobs:
  - name: a
    command: sh save.sh
    count: 3
    grace: 60s
rules: [{trigger: start, action: {name: submit, label: a}}]
"""
SAVE = """trap 'sleep 1; touch saved.$ENSEMBLE_INDEX; exit 1' TERM
echo $$ > pid.$ENSEMBLE_INDEX
while :; do sleep 0.05; done
"""


class Left:
    """A run with two running jobs and a waiting one, whose controller was killed."""

    def __init__(self, folder: Path, text: str = FILE) -> None:
        (folder / "e.yaml").write_text(text)
        (folder / "save.sh").write_text(SAVE)
        self.state = folder / "state"
        command = [
            sys.executable,
            "-m",
            "ensemble_core.cli",
            "run",
            "e.yaml",
            "--executor",
            "local",
        ]
        controller = subprocess.Popen(
            [*command, "--slots", "2", "--state", str(self.state)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pids = [folder / f"pid.{number}" for number in range(2)]
        wait_until(lambda: all(path.exists() and path.read_text().strip() for path in pids))
        (self.run,) = (self.state / "runs").iterdir()
        wait_until(lambda: (self.run / "performed").exists())
        controller.kill()
        controller.wait()
        self.jobs = [int(path.read_text()) for path in pids]

    def ensemble(self, *args: str) -> Result:
        result = CliRunner().invoke(main, [*args, "--state", str(self.state)])
        assert "Traceback" not in result.output
        return result

    def lose(self, how: Callable[[Path], object]) -> None:
        how(self.run / NAME)
        for ending in ("-wal", "-shm"):
            (self.run / f"{NAME}{ending}").unlink(missing_ok=True)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 50_000)


@pytest.fixture
def left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Left]:
    monkeypatch.chdir(tmp_path)
    found = Left(tmp_path, getattr(request, "param", FILE))
    yield found
    for pid in (supervisor_pid(found.run / "executor"), *found.jobs):
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", [remove, empty, overwrite])
def test_jobs_of_a_run_without_a_journal_are_reported_and_can_be_ended(
    how: Callable[[Path], object], left: Left
) -> None:
    tag = left.run.name
    left.lose(how)

    resumed = left.ensemble("resume", tag)
    assert resumed.exit_code == 2
    assert "killed before its first event" not in resumed.output
    assert "lost" in resumed.output or "damaged" in resumed.output

    cleaned = left.ensemble("clean", "--all", "--yes")
    assert "may still be running" in cleaned.output
    assert f"ensemble cancel {tag}" in cleaned.output
    assert left.run.exists()
    assert all(map(alive, left.jobs))

    cancelled = left.ensemble("cancel", tag)
    assert cancelled.exit_code == 0, cancelled.output
    assert "without its journal" in cancelled.output
    assert not any(map(alive, left.jobs))
    assert supervisor_pid(left.run / "executor") == 0
    assert not left.run.parent.parent.parent.joinpath("pid.2").exists(), "one that waited ran"

    left.ensemble("clean", "--all", "--yes")
    assert not left.run.exists()


def test_without_a_supervisor_leftover_jobs_are_found_in_the_ledger(left: Left) -> None:
    tag = left.run.name
    supervisor = supervisor_pid(left.run / "executor")
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(supervisor))
    left.lose(empty)
    assert "2 jobs may still be running" in left.ensemble("clean", "--all", "--yes").output
    assert left.ensemble("cancel", tag).exit_code == 0
    assert not any(map(alive, left.jobs))
    left.ensemble("clean", "--all", "--yes")
    assert not left.run.exists()


@pytest.mark.parametrize("left", [SLOW], indirect=True)
@pytest.mark.parametrize("supervised", [True, False])
def test_leftover_jobs_have_their_grace(left: Left, supervised: bool) -> None:
    if not supervised:
        supervisor = supervisor_pid(left.run / "executor")
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not alive(supervisor))
    left.lose(empty)
    cancelled = left.ensemble("cancel", left.run.name)
    assert cancelled.exit_code == 0, cancelled.output
    folder = left.state.parent
    assert [(folder / f"saved.{each}").exists() for each in range(3)] == [True, True, False]
    assert not any(map(alive, left.jobs))
