"""Tests of runs that reach their limits: exit code 4, and a resume with larger limits."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.run_state import read_info
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import Started
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.watcher import Outcome

FILE = """
limits: {jobs: 2}
jobs: [{name: a, command: "true", count: 4}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def ensemble(*args: str) -> Result:
    result = CliRunner().invoke(main, [*args])
    assert "Traceback" not in result.output
    return result


def test_resume_with_a_larger_limit_submits_held_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    file = tmp_path / "e.yaml"
    file.write_text(FILE)
    first = ensemble("run", "e.yaml", "--executor", "local", "--tag", "t")
    assert first.exit_code == 4
    assert "limits.jobs is 2, 2 used; they need 2 more: set limits.jobs to 4" in first.output
    assert "ensemble resume t" in first.output
    listed = json.loads(ensemble("runs", "--json").output)
    assert (listed["state"], listed["exit_code"]) == ("limited", 4)
    assert "limits hold the remaining jobs" in ensemble("status", "t").output
    again = ensemble("resume", "t")
    assert again.exit_code == 4, "nothing has changed"
    file.write_text(FILE.replace("jobs: 2", "jobs: 4"))
    more = ensemble("resume", "t", "--accept-changes")
    assert more.exit_code == 0, more.output
    assert ensemble("replay", "t").exit_code == 0


@pytest.mark.parametrize(
    ("limit", "raised"),
    [
        ("jobs: 2", "--set limits.jobs=4"),
        ("core_hours: 0.00001", "--set limits.core_hours=0.01"),  # one job uses 0.00003
        ("jobs: 2, core_hours: 0.00001", "--set limits.jobs=4 --set limits.core_hours=0.01"),
    ],
)
def test_resume_command_shown_after_a_limit_raises_it(
    limit: str, raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    file = FILE.replace("jobs: 2", limit).replace('"true"', "sleep 0.1")
    (tmp_path / "e.yaml").write_text(file)
    result = ensemble("run", "e.yaml", "--executor", "local", "--tag", "lim1")
    assert result.exit_code == 4
    command = f"ensemble resume lim1 {raised}"
    for shown in (result.output, ensemble("status", "lim1").output):
        (line,) = (part for part in shown.splitlines() if "to resume this run" in part)
        assert line.endswith(f": {command}")
    again = ensemble(*shlex.split(command)[1:])
    assert again.exit_code == 0, again.output


def test_limit_set_by_a_resume_applies_to_later_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays the same. A misspelled limit is rejected without effect."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    (tmp_path / "e.yaml").write_text(FILE)
    assert ensemble("run", "e.yaml", "--executor", "local", "--tag", "t").exit_code == 4
    wrong = ensemble("resume", "t", "--set", "limits.job=3")
    assert wrong.exit_code == 2
    assert "did you mean 'jobs'" in wrong.output
    assert ensemble("resume", "t", "--set", "limits.jobs=3").exit_code == 4
    assert ensemble("resume", "t").exit_code == 4, "the larger limit holds, and is used up"
    assert ensemble("resume", "t", "--set", "limits.jobs=4").exit_code == 0
    assert len(json.loads(ensemble("jobs", "t", "--json").output)) == 4
    over = ensemble("resume", "t", "--set", "limits.jobs=5")
    assert over.exit_code == 2, "it has ended, and that gives it nothing to do"
    assert "has ended" in over.output
    assert ensemble("replay", "t").exit_code == 0


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"over": True, "natural": True, "exit_code": 0}, "ended"),
        ({"over": False, "stopped": True, "natural": False, "exit_code": 5}, "stopped"),
        ({"over": False, "natural": True, "exit_code": 4}, "limited"),
        ({"over": False, "natural": True, "exit_code": 1}, "stopped"),  # faulty generators
        ({"over": False, "natural": False, "exit_code": 1}, "interrupted"),  # the queue was lost
        ({"over": False, "reason": "the controller failed"}, "interrupted"),
    ],
)
def test_state_of_a_run_is_the_same_in_lists_and_in_python(
    outcome: dict[str, object], state: str, tmp_path: Path
) -> None:
    with closing(JournalWriter(tmp_path / NAME)) as writer:
        writer.begin(1.0, {})
        writer.append(Started(1.0, {}), ())
        writer.end(2.0, outcome)
    assert read_info(tmp_path).state == state
    if "natural" in outcome:
        report = Engine(load_text(FILE, discover(), file="e.yaml")).report()
        words = {"reason": "", "seconds": 1.0, "report": report, "tag": "t"}
        assert Outcome(**words, **outcome).state == state
