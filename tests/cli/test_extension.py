"""``ensemble resume --accept-changes`` runs what was added to a study, also after its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import ensemble_core
from ensemble_core.cli.main import main

FILE = """
jobs:
  - name: sim
    command: "sh -c 'echo {T} >> {cwd}/ran; test $(grep -cx {T} {cwd}/ran) -gt {fails} && echo E={T}'"
    parameters: {T: [1, 2], fails: [0]}
    retry: {times: 1}
    observe: {key-value: {fields: [E]}}
    result: {E: last.E}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
results: {t: {of: sim, columns: {T: T, E: E}, order: T}}
"""


def ensemble(*args: str) -> Result:
    result = CliRunner().invoke(main, [*args])
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted((folder / "ran").read_text().split())


def test_values_that_were_added_after_the_end_run_once_and_the_others_stay(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    (folder / "e.yaml").write_text(FILE.replace("T: [1, 2]", "T: [0.5, 1, 2, 2.5]"))
    done = ensemble("resume", "r", "--accept-changes")
    assert done.exit_code == 0, done.output
    assert "2 jobs (T=0.5, fails=0; T=2.5, fails=0): added to the earlier submit" in done.output
    assert ran(folder) == ["0.5", "1", "2", "2.5"]
    rows = ensemble_core.open_run("r").results("t")
    assert [row["E"] for row in rows] == [0.5, 1, 2, 2.5]
    assert ensemble("replay", "r").exit_code == 0
    again = ensemble("resume", "r", "--accept-changes")
    assert (again.exit_code, "has ended" in again.output) == (2, True)
    assert ran(folder) == ["0.5", "1", "2", "2.5"]


def test_failed_jobs_use_retries_that_were_added_after_the_end(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE.replace("fails: [0]", "fails: [3]"))
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 1
    assert len(ran(folder)) == 4
    (folder / "e.yaml").write_text((folder / "e.yaml").read_text().replace("times: 1", "times: 9"))
    done = ensemble("resume", "r", "--accept-changes")
    assert done.exit_code == 0, done.output
    assert ran(folder) == ["1"] * 4 + ["2"] * 4
    assert ensemble("replay", "r").exit_code == 0
