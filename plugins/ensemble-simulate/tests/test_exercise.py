"""Tests of the shipped exercise: the simulation finds its four planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main

STUDY = Path(__file__).parents[1] / "examples" / "exercise.yaml"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    arguments = ["--nodes", "2", "--cores-per-node", "8", "--runs", "40"]
    result = CliRunner().invoke(main, ["simulate", str(STUDY), *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def _line(told: str, begin: str) -> str:
    return next(line for line in told.splitlines() if line.strip().startswith(begin))


def test_the_rule_that_can_never_fire_is_reported(told: str) -> None:
    assert "alarm" in _line(told, "never fired:")


def test_the_loop_is_reported(told: str) -> None:
    assert _line(told, "rules in an endless loop:").endswith(": next-check")


def test_the_threshold_within_the_noise_is_reported(told: str) -> None:
    line = _line(told, "drifting cancels")
    share = int(line.partition("a run, ")[2].partition("%")[0])
    assert 15 <= share <= 30
    assert "100% of them would have succeeded" in line


def test_the_budget_that_ends_before_the_last_stage_is_reported(told: str) -> None:
    assert "a limit ended 40 of 40 runs" in told
    assert "limits.core_hours is 45" in told
    assert "finish" in _line(told, "never fired:")


def test_without_the_faults_nothing_is_reported(tmp_path: Path) -> None:
    """The reports come from the faults: the corrected study has none."""
    text = STUDY.read_text()
    for wrong, right in (
        ("value >= 200", "value >= 1"),
        ("> 2.3", "> 6"),
        ("core_hours: 45", "core_hours: 200"),
        ("trigger: job-finish, name: check, repetitions: unlimited", "trigger: job-finish, name: check, repetitions: 5"),
    ):  # fmt: skip
        assert wrong in text
        text = text.replace(wrong, right)
    (tmp_path / "study.yaml").write_text(text)
    arguments = ["--nodes", "2", "--cores-per-node", "8", "--runs", "20"]
    result = CliRunner().invoke(main, ["simulate", str(tmp_path / "study.yaml"), *arguments])
    assert result.exit_code == 0, result.output
    for said in ("endless loop", "a limit ended", "drifting cancels"):
        assert said not in result.stdout
    never = [line for line in result.stdout.splitlines() if "never fired" in line]
    assert never in ([], ["  never fired: drifting"])
