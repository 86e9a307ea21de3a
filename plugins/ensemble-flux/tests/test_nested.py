"""Tests of an ensemble in a Flux allocation: the example ``flux-batch.sh``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCRIPT = EXAMPLES / "flux-batch.sh"
FAILS = """
jobs:
  - {name: where, command: flux getattr instance-level}
  - {name: bad, command: "sh -c 'echo no license >&2; exit 3'"}
rules:
  - {trigger: start, action: {name: submit, label: where}}
  - {trigger: job-success, name: where, action: {name: submit, label: bad}}
  - {trigger: job-fail, name: bad, action: {name: terminate, exit_code: 7}}
"""
LONG = """
jobs: [{name: long, command: sleep 600}]
rules: [{trigger: start, action: {name: submit, label: long}}]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a user's folder, with ``ensemble`` on the PATH as after activation."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "hello-world.yaml").write_text((EXAMPLES / "hello-world.yaml").read_text())
    (folder / "fails.yaml").write_text(FAILS)
    (folder / "long.yaml").write_text(LONG)
    return folder


def jobs(instance: Any) -> dict[str, str]:
    """Return ids and names of all jobs of the instance, including finished ones."""
    listed = instance.flux("jobs", "-A", "-a", "-c0", "-no", "{id.f58plain} {name}")
    names = {}
    for line in listed.splitlines():
        job, name = line.split()
        names[job] = name
    return names


def batch(instance: Any, here: Path, *words: str) -> tuple[str, str, int]:
    """Submit the script and wait for it; return the job's id, output and exit code."""
    submitted = subprocess.run(
        ["flux", "batch", *words], cwd=here, capture_output=True, text=True, timeout=150
    )
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    instance.flux("job", "wait-event", "--timeout=150", job, "clean")
    answer = instance.flux("jobs", "-no", "{id.f58plain} {returncode}", job)
    name, code = answer.split()
    return name, (here / "ensemble.out").read_text(), int(code)


def test_a_batch_job_runs_the_ensemble_in_a_nested_instance(instance: Any, here: Path) -> None:
    before = jobs(instance)
    job, output, code = batch(instance, here, str(SCRIPT))
    assert code == 0, output
    chosen = output.splitlines()[0]
    assert chosen.startswith("executor flux (FLUX_URI=local://")
    assert instance.uri not in chosen
    assert re.search(r"^ echo +5 +0 +0 +5 ", output, re.M)
    assert " exit code 0: nothing more can happen" in output
    after = jobs(instance)
    assert after.keys() - before.keys() == {job}
    assert after[job] == "ensemble"


def test_the_jobs_run_in_the_inner_instance_and_its_job_ends_like_the_run(
    instance: Any, here: Path
) -> None:
    before = jobs(instance)
    job, output, code = batch(instance, here, str(SCRIPT), "fails.yaml")
    assert code == 7, output
    assert " exit code 7: terminated by rule " in output
    # The report of a failed job includes its last line.
    assert re.search(r"failed bad\.0: exit code 3: no license", output)
    (kept,) = re.findall(r"output of jobs: (.*)", output)
    assert Path(kept, "where.0.out").read_text() == "1\n"
    assert jobs(instance).keys() - before.keys() == {job}


def test_before_its_time_limit_the_run_stops_and_says_how_to_resume(
    instance: Any, here: Path
) -> None:
    for seconds in (12, 60):  # on a slow machine, the signal may precede the run's start
        limits = (f"--time-limit={seconds}s", "--signal=SIGTERM@8s")
        _, output, code = batch(instance, here, *limits, str(SCRIPT), "long.yaml")
        if "to resume this run" in output:
            break
    # Flux signals the whole job, and the broker forwards SIGHUP to the script: either comes first.
    ended = {143: "143: this process got SIGTERM", 129: "129: the terminal was closed (SIGHUP)"}
    assert code in ended, output
    assert "to resume this run: ensemble resume" in output
    assert f" exit code {ended[code]}" in output


@pytest.mark.usefixtures("instance")
def test_a_job_of_an_ensemble_may_be_an_ensemble_with_a_nested_instance(here: Path) -> None:
    (here / "outer.yaml").write_text(
        """
jobs:
  - name: inner
    command: flux start ensemble run --json hello-world.yaml
    nodes: 2
    stdout: inner.out
rules:
  - {trigger: start, action: {name: submit, label: inner}}
"""
    )
    done = subprocess.run(
        ["ensemble", "run", "outer.yaml"], cwd=here, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (here / "inner.out").read_text().splitlines()]
    assert {group["name"]: group["success"] for group in lines[-1]["groups"]} == {
        "sleep": 5,
        "echo": 5,
    }


def test_the_script_begins_with_a_summary_and_is_in_the_table_of_examples() -> None:
    opening = re.match(r"#!/bin/sh\n(?:#.*\n)+\n", SCRIPT.read_text())
    assert opening is not None, "it opens with a comment, then an empty line"
    assert "Expect " in opening[0]
    assert "exit code 0" in opening[0]
    assert "flux alloc -n2 ensemble run hello-world.yaml" in opening[0]
    table = (EXAMPLES / "README.md").read_text()
    (row,) = [line for line in table.splitlines() if line.startswith("| [flux-batch.sh]")]
    assert "`flux batch flux-batch.sh`" in row
    assert os.access(SCRIPT, os.X_OK)
