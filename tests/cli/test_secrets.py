"""Secrets that jobs inherit from the environment are written nowhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover

FILE = """
jobs:
  - name: load
    command: sh -c 'printf %s "$DB_PASSWORD" > told'
    workdir: {folder}
    environment_from: [DB_PASSWORD]
rules: [{{trigger: start, action: {{name: submit, label: load}}}}]
"""
SECRET = "hunter2-and-more"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "e.yaml").write_text(FILE.format(folder=tmp_path / "work"))
    monkeypatch.delenv("DB_PASSWORD", raising=False)
    return tmp_path


def run(folder: Path, *more: str) -> Result:
    words = ("run", str(folder / "e.yaml"), "--executor", "local", *more)
    return CliRunner().invoke(main, [*words, "--state", str(folder / "state")])


def test_inherited_secret_is_neither_stored_nor_in_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    result = run(folder, "--json")
    assert result.exit_code == 0, result.output
    assert (folder / "work" / "told").read_text() == SECRET
    assert SECRET not in result.output
    kept = [path for path in (folder / "state").rglob("*") if path.is_file()]
    assert {"journal.db", "local.log"} <= {path.name for path in kept}
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []
    for command in ("events", "status", "replay"):
        told = CliRunner().invoke(
            main, [command, "last", "--json", "--state", str(folder / "state")]
        )
        assert told.exit_code == 0
        assert SECRET not in told.output


@pytest.mark.parametrize("wait", ["keep", "cancel"])
def test_stop_says_that_the_queue_keeps_secrets_of_waiting_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    text = (folder / "e.yaml").read_text().replace("> told'", "> told; sleep 1000'")
    (folder / "e.yaml").write_text(
        text.replace("environment_from", "count: 3\n    environment_from")
    )
    words = ("--slots", "1", "--set", f"on_stop={wait}", "--tag", "r", "--wall", "2s")
    result = run(folder, *words)
    assert "to resume this run" in result.output, result.output
    said = "until waiting jobs start, their queue keeps DB_PASSWORD for them" in result.output
    assert said is (wait == "keep")
    CliRunner().invoke(main, ["cancel", "r", "--state", str(folder / "state")])


def test_run_does_not_start_if_an_inherited_variable_is_missing(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 2
    assert "environment variables are not set: DB_PASSWORD (for load)" in result.stderr
    assert "export DB_PASSWORD=" in result.stderr
    assert not (folder / "work").exists()
    assert not (folder / "state").exists()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[DB_PASSWORD]", "[ENSEMBLE_TOKEN]", "never get the service's token"),
        ("[DB_PASSWORD]", "[DB-PASSWORD]", "DB-PASSWORD"),
        (
            "environment_from:",
            "environment: {DB_PASSWORD: x}\n    environment_from:",
            "also taken from the run's environment",
        ),
        (
            "name: submit, label: load",
            "name: submit, label: load, with: {environment_from: [HOME]}",
            "environment_from",
        ),
    ],
)
def test_invalid_environment_from_is_an_error_with_its_place(
    folder: Path, before: str, after: str, words: str
) -> None:
    text = (folder / "e.yaml").read_text()
    assert before in text
    (folder / "e.yaml").write_text(text.replace(before, after))
    result = run(folder)
    assert result.exit_code == 2
    assert "e.yaml:" in result.stderr
    assert words in result.stderr


def test_environment_from_is_rejected_if_jobs_do_not_inherit_it() -> None:
    registry = discover()
    elsewhere = replace(registry.lookup("executor", "local"), name="remote", secrets="use a Secret")
    text = FILE.format(folder="work")
    load_text(text, registry)
    with pytest.raises(EnsembleError, match="jobs do not inherit this run's environment") as found:
        load_text(text, registry, executor=elsewhere)
    assert "remove 'environment_from' and use a Secret" in str(found.value)
