"""Tests of examples: simulated with a model of their real run, they make the same decisions.

This module has only examples whose decisions do not depend on the machine's speed. ``make soak``
compares all examples and their durations, five times each.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "same_as_simulated.py"

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("same_as_simulated", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "example", ["hello-world.yaml", "custom-action.yaml", "failure-handling.yaml"]
)
def test_a_simulated_example_makes_the_real_runs_decisions(
    script: ModuleType, tmp_path: Path, example: str
) -> None:
    assert script.compare(example, tmp_path).difference == ""


def test_every_example_that_runs_here_is_compared(script: ModuleType) -> None:
    """The script's settings name existing example files only."""
    found = script.local()
    assert {"hello-world.yaml", "chain/ensemble.yaml", "studies/asha/ensemble.yaml"} <= set(found)
    assert set(script.SPECIAL) <= set(found)
    assert all((script.EXAMPLES / name).exists() for name in script.ELSEWHERE)


def test_a_difference_is_detected_and_a_race_is_not_one(script: ModuleType) -> None:
    def told(*entries: tuple[float, str]) -> list[object]:
        return [script.Decided(at, (what,)) for at, what in entries]

    real = told((0.0, "a"), (1.0, "b"), (1.01, "c"), (2.0, "d"))
    assert script.difference(real, told((0.0, "a"), (1.0, "c"), (1.0, "b"), (2.0, "d"))) == ""
    assert "at 1.000 s" in script.difference(real, told((0.0, "a"), (1.0, "c"), (2.0, "d")))
    assert "at 1.000 s" in script.difference(
        real, told((0.0, "a"), (1.0, "d"), (1.0, "c"), (2.0, "b"))
    )
    assert "not in the run" in script.difference(real, [*real, *told((3.0, "e"))])


def test_a_failed_round_is_reported_and_does_not_replace_another_report(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, *faults = ["hello-world.yaml", "terminate.yaml", "heartbeat.yaml", "backoff.yaml"]
    raised = dict(zip(faults, (RuntimeError("died"), ValueError("cut line"), None), strict=True))

    def compared(example: str, folder: Path) -> object:
        if error := raised.get(example):
            raise error
        length = 0.0 if example in raised else 2.0  # a run that took no time
        return script.Compared("", length, length)

    monkeypatch.setattr(script, "compare", compared)
    monkeypatch.setattr("sys.argv", ["same_as_simulated.py", "--rounds", "3", *faults, good])
    assert script.main() == 1
    told = capsys.readouterr().out
    assert "RuntimeError: died" in told
    assert "ValueError: cut line" in told
    assert told.count("WRONG") == 3
    assert "hello-world.yaml: 3 of 3 decided the same, length +0.0% of 2.0 s\n" in told
    assert "3 wrong" in told


def test_an_unknown_example_is_rejected_before_anything_runs(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["same_as_simulated.py", "hello-world"])
    with pytest.raises(SystemExit) as end:
        script.main()
    assert end.value.code == 2
    assert "near: hello-world.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("status", ["kill -KILL $$", "exit 137", "exit 70"])
def test_a_run_ended_by_a_signal_is_not_compared(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str
) -> None:
    monkeypatch.setattr(script, "COMMAND", ("sh", "-c", status))
    with pytest.raises(RuntimeError, match="exit code"):
        script.compare("hello-world.yaml", tmp_path)
