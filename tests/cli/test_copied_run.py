"""Copied and moved state folders: one run has one folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main
from ensemble_core.journal.reader import NAME, Journal

FILE = """
jobs: [{name: a, command: sleep 1000}]
rules: [{trigger: start, action: {name: submit, label: a}}]
on_stop: cancel
"""
RUN = ("run", "s.yaml", "--executor", "local", "--tag", "one", "--state", "a", "--wall", "1s")


def ensemble(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, words)
    return result.exit_code, result.output


def identity(folder: Path) -> str:
    with Journal(folder / NAME) as journal:
        return str(journal.about["id"])


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(FILE)
    code, output = ensemble(*RUN)
    assert code == 5, output
    return tmp_path / "a" / "runs" / "one"


def test_a_copy_is_not_resumed_while_its_original_exists(stopped: Path) -> None:
    shutil.copytree("a", "b")
    for command in ("resume", "cancel"):
        code, output = ensemble(command, "one", "--state", "b")
        assert code == 2, output
        assert f"is a copy of the run {stopped}" in output
        assert "ensemble resume" in output
    code, output = ensemble("status", "one", "--state", "b", "--json")
    assert (code, json.loads(output)["state"]) == (0, "stopped")


def test_a_moved_run_is_resumed_and_keeps_its_identity(stopped: Path) -> None:
    before = identity(stopped)
    shutil.move("a", "b")
    moved = stopped.parents[2] / "b" / "runs" / "one"
    code, output = ensemble("resume", "one", "--state", "b", "--wall", "1s")
    assert code == 5, output
    assert identity(moved) == before
    shutil.copytree("b", "c")
    code, output = ensemble("resume", "one", "--state", "c")
    assert (code, f"is a copy of the run {moved}" in output) == (2, True), output


def test_a_removed_run_with_the_same_tag_has_another_identity(stopped: Path) -> None:
    before = identity(stopped)
    shutil.rmtree("a")
    assert ensemble(*RUN)[0] == 5
    assert identity(stopped) != before


def test_a_run_whose_output_folder_has_files_of_a_run_with_its_tag_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(
        "jobs: [{name: a, command: echo}]\n"
        "rules: [{trigger: start, action: {name: submit, label: a}}]\n"
    )
    words = ("run", "s.yaml", "--executor", "local", "--tag", "one", "--output", "out", "--state")
    first, second = ensemble(*words, "a"), ensemble(*words, "b")
    said = f"{tmp_path / 'out' / 'one'} has files of another run with the tag one"
    assert (first[0], said in first[1]) == (0, False), first[1]
    assert (second[0], said in second[1]) == (0, True), second[1]
