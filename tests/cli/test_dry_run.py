"""Tests of ``ensemble run --dry-run``: it shows the jobs without submitting them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core import Job, Rendered, executor_record, shell_line
from ensemble_core.cli.commands.run import run

STUDY = """
jobs:
  - name: sim
    command: [sim, "--size", "{n}", "two words"]
    parameters: {n: [1, 2]}
    environment: {OMP_NUM_THREADS: "2"}
    workdir: runs/{index}
    stdout: out.txt
    stderr: out.txt
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    return file


def test_dry_run_shows_the_first_job_and_submits_nothing(study: Path) -> None:
    words = ["--dry-run", "--executor", "local", "--state", "state", str(study)]
    done = CliRunner().invoke(run, words, standalone_mode=False)
    assert done.return_value == 0, done.output
    assert "the run would first submit 2 jobs (2 of sim)" in done.output
    line = "cd runs/0 && env OMP_NUM_THREADS=2 sim --size 1 'two words' >>out.txt 2>&1"
    assert f"sim.0 (text/x-shellscript):\n  {line}\n" in done.output
    assert [path.name for path in study.parent.iterdir()] == ["study.yaml"]


def test_json_has_a_line_for_each_job(study: Path) -> None:
    words = ["--dry-run", "--json", "--executor", "local", "--tag", "t", str(study)]
    done = CliRunner().invoke(run, words, standalone_mode=False)
    told, every = [json.loads(line) for line in done.output.splitlines()]
    assert every == {
        "type": "every-group-once", "jobs": 2, "core_hours": 0, "without_limit": ["sim"], "asked": [],
    }  # fmt: skip
    assert told["job"] == "sim.0"
    assert told["media_type"] == "text/x-shellscript"


def test_total_jobs_and_core_hours_cover_each_group_once(study: Path) -> None:
    more = """  - {name: long, command: x, count: 3, tasks: 4, cores_per_task: 2, duration: 90m}
  - {name: short, command: y, duration: 30m}
"""
    study.write_text(STUDY.replace("rules:", more + "rules:"))
    words = ["--dry-run", "--executor", "local", str(study)]
    done = CliRunner().invoke(run, words, standalone_mode=False)
    said = "if every group ran once: 6 jobs, at most 36.5 core-hours by their time limits"
    assert f"{said}; without a time limit ('duration'): sim" in done.output


def test_debug_shows_every_job_of_the_start(study: Path) -> None:
    words = ["--dry-run", "--debug", "--executor", "local", str(study)]
    done = CliRunner().invoke(run, words, standalone_mode=False)
    assert "sim --size 1" in done.output
    assert "sim --size 2" in done.output


def test_rendering_depends_on_the_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(id="a.0", group="a", index=0, command=("echo", "$HOME"), stderr="err")
    render = executor_record("local").render
    assert render is not None
    first = render(job, {})
    monkeypatch.setenv("SECRET", "s3cret")
    assert render(job, {}) == first == Rendered(shell_line(job))
    assert first.text == "echo '$HOME' 2>>err"


def test_functions_are_listed_but_not_called(study: Path) -> None:
    study.write_text(
        'jobs: [{name: sim, command: "echo {x}", parameters: {x: {function: next_x}}}]\n'
        "rules: [{trigger: start, action: [{name: submit, label: sim}, {name: custom, label: f}]}]\n"
        "custom: |\n  def next_x(**kwargs): raise KeyError\n  def f(**kwargs): raise KeyError\n"
    )
    words = ["--dry-run", "--executor", "local", str(study)]
    done = CliRunner().invoke(run, words, standalone_mode=False)
    assert done.return_value == 0, done.output
    assert "the run would first submit 0 jobs" in done.output
    assert "not called in a dry run, so jobs may be missing here: next_x, f\n" in done.output
