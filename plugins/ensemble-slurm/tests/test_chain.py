"""One study in a chain of Slurm allocations: the example ``chain/slurm.sh``, submitted as a user does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.testing import wait_until

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


def test_three_allocations_are_one_study_with_one_table(cluster: Any, here: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def submit(wall: str) -> str:
        words = ["sbatch", "--parsable", f"--export=ALL,WALL={wall},PATH={path}", "slurm.sh"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    jobs = [submit("3s"), submit("3s"), submit("9m")]
    for number, job in enumerate(jobs):
        opened = range(1, 9) if number == 2 else range(4 * number + 1, 4 * number + 3)
        for gate in opened:
            (here / str(gate)).touch()
        wait_until(lambda job=job: job not in {each[0] for each in cluster.active()}, 120)
    said = [(here / f"chain-{job}.out").read_text() for job in jobs]
    codes = [re.findall(r"exit code (\d+)", text)[-1:] for text in said]
    assert codes == [["5"], ["5"], ["0"]], said
    assert "run chain goes on after event" in said[1]
    words = [sys.executable, "-m", "ensemble_core.cli", "results", "chain", "ladder", "--json"]
    table = subprocess.run([*words, "--state", "state"], capture_output=True, text=True, check=True)
    assert [(row["T"], row["E"], row["mean"]) for row in json.loads(table.stdout)] == [
        (T, 10 * T, 5.5 * T) for T in range(1, 9)
    ]
