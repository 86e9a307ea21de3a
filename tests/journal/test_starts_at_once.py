"""Tests of two controllers that start at the same moment with one tag and one state folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from ensemble_core.journal.lock import Lock, taken_error
from ensemble_core.journal.reader import JournalError
from ensemble_core.journal.run_store import new_folder

FILE = """
jobs: [{name: a, command: "sh -c 'echo $ENSEMBLE_JOB_ID >> ran; sleep 0.3'", count: 4}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


@pytest.mark.parametrize("flags", [(), ("--or-resume",)], ids=["", "or-resume"])
def test_of_many_starts_at_once_one_runs_and_the_others_say_why_they_do_not(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "s.yaml").write_text(FILE)
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "s.yaml", "--executor", "local"]
    command += ["--slots", "2", "--tag", "one", "--state", "state", "-q", *flags]
    started = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(5)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    codes = [process.returncode for process in started]
    assert sorted((tmp_path / "ran").read_text().split()) == [f"a.{index}" for index in range(4)]
    assert codes.count(2) == (len(codes) - codes.count(0)), errors
    assert 0 in codes
    for code, error in zip(codes, errors, strict=True):
        if code == 0:
            continue
        assert "run one" in error
        assert any(
            words in error
            for words in ("already exists", "just been started", "is controlled by process")
        ), error
        assert "Traceback" not in error
    if not flags:
        assert Counter(codes)[0] == 1


def test_a_start_whose_folder_was_made_again_does_not_share_it(tmp_path: Path) -> None:
    """Another start has removed the folder while this one waited for its lock."""
    folder = new_folder(tmp_path, "one")
    early, late = Lock(folder), Lock(folder)
    early.acquire()

    def replaced(seconds: float, descriptor: int) -> None:
        early.release()
        early.path.unlink()
        early.acquire()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ensemble_core.journal.lock.lock_within", replaced)
        patch.setattr("ensemble_core.journal.lock._NAME_TIMEOUT", 0)
        patch.setattr(early, "acquire", lambda: Lock(folder).path.write_text("{}"))
        with pytest.raises(JournalError, match="run one has just been started by") as raised:
            late.acquire()
    assert raised.value.code == "tag-taken"


@pytest.mark.parametrize("created", [False, True], ids=["held", "just-created"])
def test_the_error_names_a_controller_that_writes_its_name_after_it_has_taken_the_lock(
    tmp_path: Path, created: bool
) -> None:
    folder = new_folder(tmp_path, "one")
    first = Lock(folder)
    first.acquire()
    named = first.path.read_text()
    first.path.write_text("")
    writer = threading.Timer(1.5, first.path.write_text, [named])
    writer.start()
    if created:
        error = taken_error(folder)
    else:
        with pytest.raises(JournalError) as raised:
            Lock(folder).acquire()
        error = raised.value
    writer.join()
    assert f"by process {os.getpid()} on" in str(error)
    assert error.code == ("tag-taken" if created else "locked")


@pytest.mark.parametrize(
    ("variables", "program"),
    [
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, "step 12.0 of Slurm"),
        ({"FLUX_JOB_ID": "f3Ab"}, "Flux job f3Ab"),
    ],
    ids=["slurm", "flux"],
)
@pytest.mark.parametrize("hidden", [False, True], ids=["", "hidden"])
def test_two_tasks_of_one_parallel_program_are_told_so(
    tmp_path: Path, variables: dict[str, str], program: str, hidden: bool
) -> None:
    """As ``srun -n 2 --mpi=none flux start ensemble run`` does, which hides Slurm's variables."""
    hold = (
        "import sys, pathlib; from ensemble_core.journal.lock import Lock; "
        "Lock(pathlib.Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    rank = "SLURM_PROCID" if "SLURM_JOB_ID" in variables else "FLUX_TASK_RANK"

    def started(task: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", hold, str(tmp_path)]
        if hidden:
            names = [f"--unset={name}" for name in (*variables, rank)]
            command = ["sh", "-c", '"$@"; exit $?', "sh", "env", *names, *command]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "FLUX_"))}
        environment = {**clean, **variables, rank: str(task)}
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    first = started(0)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    assert json.loads((tmp_path / "lock").read_text())["task"] == [program, "0"]
    _, error = started(1).communicate(timeout=120)
    assert f"{program} runs the command once per task: this is task 1" in error
    assert "start one controller" in error
    first.communicate(timeout=120)
