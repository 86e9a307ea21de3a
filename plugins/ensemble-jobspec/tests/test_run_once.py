"""Tests of commands that run once on the controller's machine, and of watched jobs' output."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from ensemble_jobspec.actions import run_once
from ensemble_jobspec.output_follower import Follower
from ensemble_testing import wait_until


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "call.0"


def run(
    record: Path, script: str = "echo once >>notes", *, again: bool = False, duration: float = 30.0
) -> int | None:
    return run_once(
        ["sh", "-c", script], record, again=again, keep=True, cwd=str(record.parent),
        environment=dict(os.environ), duration=duration,
    )  # fmt: skip


def test_background_processes_of_a_command_are_not_waited_for(record: Path) -> None:
    behind = "(until test -e go; do sleep 0.05; done) & echo once >>notes; exit 3"
    assert run(record, behind) == 3
    try:
        assert run(record, behind, again=True) == 3
    finally:
        Path("go").touch()
    assert Path("notes").read_text() == "once\n"


def test_a_process_that_reuses_the_shells_id_is_not_killed(record: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        record.write_text(f"{bystander.pid}\n")
        with record.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(TimeoutError):
                run(record, again=True, duration=0.0)
        with pytest.raises(subprocess.TimeoutExpired):
            bystander.wait(0.1)
    finally:
        bystander.kill()
        bystander.wait()


def test_a_shell_that_takes_too_long_is_killed_by_a_later_controller(record: Path) -> None:
    script = "echo once >>notes; until test -e go; do sleep 0.05; done"
    first = subprocess.Popen(
        ["sh", "-c", 'echo $$ >"$0"; "$@"; :', str(record), "sh", "-c", script],
        start_new_session=True,
    )
    wait_until(lambda: Path("notes").exists())
    with record.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            run(record, again=True, duration=0.0)
    assert first.wait() == -9


def test_without_locks_in_the_file_system_the_record_decides(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert run(record) == 0
    assert run(record, again=True) == 0
    assert Path("notes").read_text() == "once\n"
    record.with_name("call.0.code").unlink()  # as if its shell was killed
    assert run(record, again=True) is None
    assert Path("notes").read_text() == "once\n"


@pytest.mark.parametrize("late", [True, False])
def test_an_output_removed_before_it_is_read_does_not_end_the_follower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], late: bool
) -> None:
    (tmp_path / "a.0.out").symlink_to("gone")
    (tmp_path / "a.1.out").write_text("said\n")
    said = []

    def told() -> bool:
        said.append(capsys.readouterr().out)
        return "said" in "".join(said)

    with Follower(tmp_path, ["a"], late=late):
        if not late:
            wait_until(told)
    assert told()
    assert "".join(said) == "== a.1.out\nsaid\n"
