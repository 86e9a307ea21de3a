"""Tests of ``ensemble run --report FILE``, which writes a report at the end of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main

STUDY = """
jobs: [{name: a, command: "%s"}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1)])
def test_a_run_writes_its_report_at_its_end_and_keeps_its_exit_code(
    tmp_path: Path, command: str, code: int
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY % command)
    page = tmp_path / "page.html"
    words = ["run", str(tmp_path / "study.yaml"), "--executor", "local", "--tag", "one"]
    found = CliRunner().invoke(main, [*words, "--state", str(tmp_path), "--report", str(page)])
    assert found.exit_code == code, found.output
    assert '"tag":"one"' in page.read_text()


def test_a_report_that_cannot_be_written_does_not_change_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY % "true")
    words = ["run", str(tmp_path / "study.yaml"), "--executor", "local"]
    words += ["--state", str(tmp_path), "--report", str(tmp_path / "none" / "page.html")]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0
    assert "cannot write the report" in found.output


@pytest.mark.parametrize("other", ["--no-journal", "--dry-run"])
def test_a_run_without_a_journal_has_no_report(tmp_path: Path, other: str) -> None:
    (tmp_path / "study.yaml").write_text(STUDY % "true")
    words = ["run", str(tmp_path / "study.yaml"), "--report", "page.html", other]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2
    assert "--report cannot be combined with" in found.output
