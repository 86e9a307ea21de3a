"""Pilots of a run whose journal is lost: they are counted, and ended without it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_pilot.ledger import PilotLedger
from ensemble_pilot.leftover_jobs import leftover
from ensemble_testing.session import alive, wait_until

from ensemble_core import ExecutorError
from ensemble_core.cli.main import main
from ensemble_core.journal.reader import NAME
from ensemble_core.local.leftover_jobs import supervisor_pid

FILE = """
jobs: [{name: a, command: "sh -c 'echo $$ > pid.$ENSEMBLE_INDEX; exec sleep 1000'", count: 3}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


class Left:
    """A run with two pilots of one core and a job in each."""

    def __init__(self, folder: Path) -> None:
        (folder / "e.yaml").write_text(FILE)
        self.state = folder / "state"
        words = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--executor", "pilot"]
        words += ["-o", 'options={"slots": 2, "pool": "none"}', "-o", "cores=1", "-o", "most=2"]
        words += ["-o", "grace=0.3", "--state", str(self.state)]
        quiet = subprocess.DEVNULL
        self.controller = subprocess.Popen(words, cwd=folder, stdout=quiet, stderr=quiet)
        pids = [folder / f"pid.{number}" for number in range(2)]
        wait_until(lambda: all(path.exists() and path.read_text().strip() for path in pids))
        (self.run,) = (self.state / "runs").iterdir()
        wait_until(lambda: (self.run / "performed").exists())
        self.jobs = [int(path.read_text()) for path in pids]
        self.nodes = [self.run / "executor" / f"pilot-{number}" / "node-0" for number in (1, 2)]

    def kill(self) -> None:
        self.controller.kill()
        self.controller.wait()

    def ensemble(self, *words: str) -> Result:
        result = CliRunner().invoke(main, [*words, "--state", str(self.state)])
        assert "Traceback" not in result.output
        return result

    def lose(self) -> None:
        (self.run / NAME).write_bytes(b"")
        for ending in ("-wal", "-shm"):
            (self.run / f"{NAME}{ending}").unlink(missing_ok=True)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    monkeypatch.chdir(tmp_path)
    found = Left(tmp_path)
    found.kill()
    yield found
    for pid in (*map(supervisor_pid, found.nodes), *found.jobs):
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_pilots_of_a_run_without_a_journal_are_reported_and_can_be_ended(left: Left) -> None:
    tag = left.run.name
    left.lose()
    resumed = left.ensemble("resume", tag)
    assert resumed.exit_code == 2
    assert "2 jobs may be alive" in resumed.output, resumed.output
    cleaned = left.ensemble("clean", "--all", "--yes")
    assert "may still be running" in cleaned.output
    assert all(map(alive, left.jobs))
    cancelled = left.ensemble("cancel", tag)
    assert cancelled.exit_code == 0, cancelled.output
    assert "without its journal" in cancelled.output
    assert not any(map(alive, left.jobs))
    assert not any(map(supervisor_pid, left.nodes))
    assert not (left.run.parents[2] / "pid.2").exists(), "one that waited ran"
    # The queue may need a moment to end the pilots. Until then, 'clean' leaves the files.
    wait_until(lambda: left.ensemble("clean", "--all", "--yes") and not left.run.exists())


def test_pilots_of_which_nothing_is_known_are_named_with_their_jobs_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_pilot.leftover_jobs._ENDING", 0.3)
    ledger = PilotLedger(tmp_path / "pilots.log", "0" * 16)
    for number in (1, 2, 3):
        ledger.add(["n", number, 1.0], ["s", number, f"47{number}"], ["b", number, 2.0])
        folder = tmp_path / f"pilot-{number}" / "node-0"
        folder.mkdir(parents=True)
        (folder.parent / "pilot.json").write_text(json.dumps({"nodes": 1, "grace": 0.0}))
        if number < 3:  # the third one waits in the queue
            (folder / "local.log").write_text('["v",2,"s",1.0,"0"]\n')
    ledger.add(["o", 2, 3.0, "scancel"])
    ledger.close()
    assert leftover(tmp_path, end=False) == 2
    with pytest.raises(ExecutorError, match=r"pilots 1 \(job 471\) have ended"):
        leftover(tmp_path, end=True)
    assert (tmp_path / "pilot-1" / "fence").exists()
    assert (tmp_path / "pilot-3" / "fence").exists(), "it ends at once when the queue starts it"


def test_pilots_of_a_run_whose_folder_is_deleted_end_at_sigterm(tmp_path: Path) -> None:
    """Their jobs end with them, even if a controller is still connected."""
    found = Left(tmp_path)
    tasks = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"ensemble_pilot.node\0" + os.fsencode(found.run) in path.read_bytes():
                tasks.append(int(path.parent.name))
    assert len(tasks) == 2
    try:
        shutil.rmtree(found.run)
        for task in tasks:
            os.kill(task, signal.SIGTERM)
        wait_until(lambda: not any(map(alive, [*tasks, *found.jobs])))
    finally:
        found.kill()
        for pid in filter(alive, [*tasks, *found.jobs]):
            os.kill(pid, signal.SIGKILL)
