"""Tests of the README: its first commands work, and its files are valid."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main


def readme() -> str:
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(metadata("ensemble-jobspec").json["description"])  # as it was built into a wheel


def test_the_first_commands_run_as_printed_and_so_does_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    hello, study = re.findall(r"^```yaml\n(.*?)^```", readme(), re.M | re.S)
    (command,) = re.findall(r"^ensemble (jobspec run .*)$", readme(), re.M)[:1]
    Path("hello.yaml").write_text(hello)
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 0, result.output
    outputs = {path.name: path.read_text() for path in Path("state").rglob("*.out")}
    assert outputs["report.0.out"] == "all tests are done\n"
    assert sorted(outputs) == [
        "build.0.out",
        "report.0.out",
        "test.0.out",
        "test.1.out",
        "test.2.out",
    ]
    Path("study.yaml").write_text(study)
    result = CliRunner().invoke(main, ["run", "study.yaml", "--executor", "local"])
    assert result.exit_code == 0, result.output
    assert "publish" in result.output


def test_every_command_and_option_of_the_plugin_is_listed() -> None:
    from ensemble_jobspec.command import jobspec

    text = readme()
    assert [name for name in jobspec.commands if f"| `{name} " not in text] == []
    for option in (
        "--groups",
        "--copies",
        "--skip",
        "--site",
        "--strict",
        "--once",
        "--jobs",
    ):
        assert option in text, option
