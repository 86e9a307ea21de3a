"""Errors of ``ensemble results``: one clear message each, and no partial files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

STUDY = """
jobs:
  - {name: sim, command: "echo E={T} {label}", parameters: {T: [1, 2], label: [a, 7]},
     observe: {key-value: {fields: [E]}}, result: {E: last.E}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""
RESULTS = "results: {all: {of: sim, columns: {label: label, E: E}}}\n"
IDLE = """
jobs: [{name: sim, command: 'true'}]
rules: [{trigger: start, action: {name: log, message: nothing}}]
results: {all: {of: sim, by: [], columns: {n: n}}}
"""


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def run(tmp_path: Path, text: str) -> Result:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    return invoke("run", file, "--executor", "local", "--state", tmp_path / "state")


def test_column_that_no_observer_yields_is_rejected_with_its_place(tmp_path: Path) -> None:
    result = run(
        tmp_path, STUDY + "results:\n  each: {of: sim, by: [T], columns: {m: mean.energi}}\n"
    )
    assert result.exit_code == 2
    assert "study.yaml:8:" in result.stderr
    assert "energi" in result.stderr
    assert not (tmp_path / "state").exists()


def test_run_without_tables_has_job_rows(tmp_path: Path) -> None:
    assert run(tmp_path, STUDY).exit_code == 0
    state = ("--state", tmp_path / "state")
    result = invoke("results", "last", "all", *state)
    assert result.exit_code == 2
    assert "the file has no 'results:'" in result.stderr
    assert invoke("results", "last", *state).exit_code == 0


@pytest.mark.parametrize("form", ["--csv", "--json", "--markdown", None])
def test_run_without_jobs_has_an_empty_table(tmp_path: Path, form: str | None) -> None:
    text = IDLE.replace("by: [], columns: {n: n}", "columns: {index: index}")
    assert run(tmp_path, text).exit_code == 0
    options = ("--state", tmp_path / "state", *([form] if form else []))
    for table in ([], ["all"]):
        result = invoke("results", "last", *table, *options)
        assert result.exit_code == 0, result.stderr
    assert invoke("results", "last", "all", *options).stdout.strip()


@pytest.mark.checkout
def test_mixed_column_is_text_in_parquet_with_a_warning(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(tmp_path, STUDY + RESULTS).exit_code == 0
    for table in ([], ["all"]):
        file = tmp_path / "out.parquet"
        result = invoke("results", "last", *table, "-o", file, "--state", tmp_path / "state")
        assert result.exit_code == 0
        assert "column label has both numbers and text: written as text" in result.stderr
        assert parquet.read_table(file).column("label").to_pylist() == ["a", "7", "a", "7"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_failed_write_is_reported_and_keeps_the_old_file(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    assert run(tmp_path, STUDY).exit_code == 0
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file" / f"out.{ending}", tmp_path / "none" / f"out.{ending}"):
        result = invoke("results", "last", "-o", place, "--state", tmp_path / "state")
        assert result.exit_code == 2
        assert "cannot write" in result.stderr
        assert "hint" in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.usefixtures("permissions_hold")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_unwritable_folder_is_reported(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    assert run(tmp_path, STUDY).exit_code == 0
    folder = tmp_path / "shut"
    folder.mkdir(mode=0o500)
    result = invoke(
        "results", "last", "-o", folder / f"out.{ending}", "--state", tmp_path / "state"
    )
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", ["results", "jobs", "metrics"])
def test_damaged_journal_is_reported_by_every_command(tmp_path: Path, command: str) -> None:
    assert run(tmp_path, STUDY).exit_code == 0
    (journal,) = (tmp_path / "state").glob("runs/*/journal.db")
    data = bytearray(journal.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    journal.write_bytes(data)
    result = invoke(command, "last", "--state", tmp_path / "state")
    assert result.exit_code == 2
    assert "the journal is damaged" in result.stderr
