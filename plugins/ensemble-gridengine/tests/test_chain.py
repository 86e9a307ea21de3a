"""One study in a chain of Grid Engine allocations: the example ``chain/gridengine.sh``, submitted as
a user does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ensemble_core.testing import wait_until

if TYPE_CHECKING:
    from conftest import Cluster

CHAIN = Path(__file__).resolve().parents[3] / "examples" / "chain"
#: Jobs that end one after the other, when they may.
GATED = """#!/bin/sh
echo "{\\"energy\\": $1}"
until [ -e "$GATES/$1" ]; do sleep 0.1; done
echo "{\\"energy\\": $(($1 * 10))}"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a user submits from, with ``ensemble`` on the PATH as after activating."""
    folder = tmp_path / "chain"
    shutil.copytree(CHAIN, folder)
    (folder / "step.sh").write_text(GATED)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GATES", str(folder))
    return folder


def submit(wall: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["qsub", "-terse", "-v", f"WALL={wall},PATH={path},GATES", "gridengine.sh"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_over(cluster: Cluster, job: str) -> None:
    wait_until(lambda: job not in {line.split()[0] for line in cluster.jobs()}, 200)


@pytest.mark.timeout(900)
def test_three_allocations_are_one_study_with_one_table(cluster: Cluster, here: Path) -> None:
    jobs = [submit("3s"), submit("3s"), submit("9m")]
    for number, job in enumerate(jobs):
        opened = range(1, 9) if number == 2 else range(4 * number + 1, 4 * number + 3)
        for gate in opened:
            (here / str(gate)).touch()
        wait_over(cluster, job)
    said = [(here / f"chain-{job}.out").read_text() for job in jobs]
    codes = [re.findall(r"exit code (\d+)", text)[-1:] for text in said]
    assert codes == [["5"], ["5"], ["0"]], said
    assert "run chain goes on after event" in said[1]
    words = [sys.executable, "-m", "ensemble_core.cli", "results", "chain", "ladder", "--json"]
    table = subprocess.run([*words, "--state", "state"], capture_output=True, text=True, check=True)
    assert [(row["T"], row["E"], row["mean"]) for row in json.loads(table.stdout)] == [
        (T, 10 * T, 5.5 * T) for T in range(1, 9)
    ]


@pytest.mark.timeout(900)
def test_an_allocation_that_is_cancelled_stops_its_run_and_the_next_goes_on(
    cluster: Cluster, here: Path
) -> None:
    first, second = submit("9m"), submit("9m")
    output = here / "state" / "runs" / "chain"
    wait_until(lambda: any(output.rglob("step.1.out")), 200)
    cluster.run("qdel", first)
    for gate in range(1, 9):
        (here / str(gate)).touch()
    for job in (first, second):
        wait_over(cluster, job)
    said = [(here / f"chain-{job}.out").read_text() for job in (first, second)]
    assert "ended by SIGTERM" in said[0], said
    assert "run chain goes on after event" in said[1]
    assert re.findall(r"exit code (\d+)", said[1])[-1:] == ["0"], said
