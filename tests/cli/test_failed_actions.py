"""Tests of failed actions: each is one line of output and, by default, fails the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core import load
from ensemble_core.cli.main import main

#: A webhook without a server: the exception has a long traceback.
STUDY = """
jobs: [{name: sim, command: "true"}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: tell, trigger: job-done, action: {name: custom, label: tell%s}}
custom: |
  import urllib.request
  def tell(**kwargs):
      urllib.request.urlopen("http://127.0.0.1:1/dead", timeout=5)
"""
NESTED = """
from ensemble_core import Action, ActionPlugin, hookimpl


def run(context):
    raise OSError("unreachable")


def outer(firing, options):
    yield from firing.act(options["then"])


def broken(firing, options):
    raise KeyError("seed")


@hookimpl
def ensemble_actions():
    then = {"description": "-", "x-ensemble": "action"}
    schema = {"type": "object", "properties": {"then": then}}
    return [
        ActionPlugin(name="hook", summary="-", run=run),
        ActionPlugin(name="outer", summary="-", plan=outer, options=schema),
        ActionPlugin(name="returns", summary="-", run=lambda c: Action(c.options["then"]), options=schema),
        ActionPlugin(name="broken", summary="-", plan=broken),
    ]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    return tmp_path


def run(text: str, *words: str) -> Result:
    Path("study.yaml").write_text(text)
    given = ["run", "--no-progress", "--executor", "local", *words, "study.yaml"]
    return CliRunner().invoke(main, given)


def test_error_in_an_action_is_one_line_with_its_place() -> None:
    done = run(STUDY % "")
    assert done.exit_code == 1
    (line,) = [line for line in done.stderr.splitlines() if "tell" in line]
    assert line.startswith("error: tell: tell raised URLError: <urlopen error")
    assert line.endswith("(<custom of study.yaml>:3)")
    assert "Traceback" not in done.output


def test_debug_and_events_show_the_traceback_of_a_failed_action() -> None:
    assert "Traceback (most recent call last)" in run(STUDY % "", "--debug").output
    events = CliRunner().invoke(main, ["events", "last"])
    assert "Traceback (most recent call last)" in events.output


def test_tolerated_failure_of_an_action_does_not_fail_the_run() -> None:
    done = run(STUDY % ", on_error: warn")
    assert done.exit_code == 0, done.output
    assert "warning: tell: tell raised URLError" in done.stderr
    assert "error:" not in done.output
    replayed = CliRunner().invoke(main, ["replay", "last"])
    assert replayed.exit_code == 0, replayed.output


@pytest.mark.parametrize(
    ("action", "exit_code"),
    [
        ("{name: hook}", 1),
        ("{name: hook, on_error: warn}", 0),
        ("{name: hook, on_error: fail}", 1),
        ("{name: broken}", 1),
        ("{name: broken, on_error: warn}", 0),
        ("{name: outer, then: {name: hook, on_error: warn}}", 0),
        ("{name: outer, on_error: warn, then: {name: hook}}", 1),
        ("{name: outer, on_error: warn, then: {name: hook, on_error: warn}}", 0),
        ("{name: returns, then: {name: hook, on_error: warn}}", 0),
        ("{name: returns, then: {name: hook}}", 1),
    ],
)
def test_on_error_applies_to_its_action_only(action: str, exit_code: int) -> None:
    Path("nested.py").write_text(NESTED)
    text = (STUDY % "").replace("{name: custom, label: tell}", action)
    done = run(text, "--plugin", "nested.py")
    assert done.exit_code == exit_code, done.output
    assert CliRunner().invoke(main, ["replay", "last"]).exit_code == 0


def test_unknown_value_of_on_error_is_rejected_with_its_place() -> None:
    done = run(STUDY % ", on_error: ignore")
    assert done.exit_code == 2
    assert "study.yaml:5:" in done.stderr
    assert "expected one of fail, warn" in done.stderr


def test_on_error_works_in_a_mapping_from_python() -> None:
    ensemble = load(
        {
            "jobs": [{"name": "sim", "command": "true"}],
            "rules": [
                {
                    "trigger": "start",
                    "action": {"name": "log", "message": "x", "on_error": "warn"},
                }
            ],
        }
    )
    assert ensemble.rules[0].actions[0].tolerated
