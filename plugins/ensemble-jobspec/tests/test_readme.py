"""Tests of the README: its first commands work, and its files are valid."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import ensemble_jobspec
import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main


def readme() -> str:
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(metadata("ensemble-jobspec").json["description"])  # of the wheel


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


def test_imported_packages_are_declared_as_requirements() -> None:
    # The core's requirements are available to every plugin.
    needed = " ".join([*(requires("ensemble-jobspec") or ()), *(requires("ensemble-core") or ())])
    imported = set()
    for file in Path(ensemble_jobspec.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"ensemble_jobspec"}
    assert "ensemble_core" in others
    assert [name for name in others if name.replace("_", "-") not in needed] == []


@pytest.mark.checkout
def test_each_fault_of_upstream_names_a_test_that_exists() -> None:
    faults = Path(__file__).parents[1] / "docs" / "upstream-faults.md"
    named = set(re.findall(r"`(test_\w+)`", faults.read_text("utf-8")))
    tests = "".join(file.read_text("utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


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
