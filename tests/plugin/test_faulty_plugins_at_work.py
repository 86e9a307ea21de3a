"""Plugins that fail during a run: the error is reported with its location, and the exit code is
not 0."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ensemble_core.errors import raised_at
from ensemble_core.plugin.observer import Observer, Row
from ensemble_core.runtime.tail import Follower

STUDY = """
jobs:
  - name: sim
    command: "echo energy"
    stdout: out.log
    observe: {faulty: {}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: hot, trigger: observed, name: sim, action: {name: log, message: "seen"}}
"""

OBSERVER = """
from ensemble_core import Observer, ObserverPlugin, Row, hookimpl


class Faulty(Observer):
    path = None

    def feed(self, data):
        %s


@hookimpl
def ensemble_observers():
    return [ObserverPlugin(name="faulty", summary="-", build=lambda job, options: %s)]
"""

ACTION = """
from ensemble_core import ActionPlugin, hookimpl


def plan(firing, options):
    yield firing.log("before")
    given = {}
    yield firing.log(given["missing"])


@hookimpl
def ensemble_actions():
    return [ActionPlugin(name="faulty-plan", summary="-", plan=plan)]
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    def run(study: str, plugin: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "study.yaml").write_text(study)
        (tmp_path / "faulty.py").write_text(plugin)
        words = ["ensemble_core.cli", "run", "--plugin", "faulty.py", "--executor", "local"]
        return subprocess.run(
            [sys.executable, "-m", *words, "study.yaml"],
            cwd=tmp_path,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=150,
        )

    return run


@pytest.mark.parametrize(
    ("feed", "built", "told", "line"),
    [
        ("raise ValueError('of no use')", "Faulty()", "ValueError: of no use", 9),
        ("pass", "Faulty()", "its feed returned None and not a list of Row", 8),
        ("return [{'a': 1.0}]", "Faulty()", "returned {'a': 1.0}, not a Row", 8),
        ("return [Row({'a': '1'})]", "Faulty()", "a Row in which 'a' is '1', not a float", 8),
        ("return []", "1 / 0", "of job sim.0: ZeroDivisionError", 14),
    ],
)
def test_run_fails_if_a_broken_observer_kept_rules_from_firing(
    run: Callable[[str, str], subprocess.CompletedProcess[str]],
    feed: str,
    built: str,
    told: str,
    line: int,
) -> None:
    done = run(STUDY, OBSERVER % (feed, built))
    assert done.returncode == 1
    (error,) = [one for one in done.stderr.splitlines() if one.startswith("error: ")]
    assert told in error
    assert "'faulty'" in error
    assert f"faulty.py:{line})" in error
    assert "exit code 1: 1 error" in done.stdout


def test_error_in_a_plan_is_reported_with_its_line(
    run: Callable[[str, str], subprocess.CompletedProcess[str]],
) -> None:
    study = """
jobs: [{name: sim, command: "true"}]
rules:
  - {trigger: start, action: {name: faulty-plan}}
"""
    done = run(study, ACTION)
    assert done.returncode == 1
    assert "log before" in done.stdout
    assert "error: action faulty-plan raised KeyError('missing') (faulty.py:8)" in done.stderr


class Late(Observer):
    """Observer that returns one row, then something else."""

    @property
    def path(self) -> str | None:
        return None

    def feed(self, data: bytes) -> Iterable[Row]:
        yield Row({"n": 1.0})
        raise ValueError("after the first row")


def test_rows_before_an_observers_failure_are_kept(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "out.log"
    path.write_text("1\n")
    follower = Follower(
        lambda events: told.extend(event.type for event in events),
        lambda: 1000.0,
        fail=lambda message: told.append(message),
    )
    follower.watch("sim.0", "late", Late(), path)
    follower.finish("sim.0")
    follower.close()
    assert told[0] == "observed"
    assert "ValueError: after the first row (test_faulty_plugins_at_work.py:" in told[1].replace(
        "tests/plugin/", ""
    )
    assert len(told) == 2


def test_error_of_a_library_is_reported_at_the_plugins_line() -> None:
    import json

    try:
        json.loads("{")
    except ValueError as error:
        place = raised_at(error)
    assert place.rpartition("/")[2].startswith("test_faulty_plugins_at_work.py:")
    assert raised_at(ValueError("never raised")) == ""
