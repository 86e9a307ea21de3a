"""Several tasks of one ``srun`` that run the same command: one controller, and a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cluster

FILE = """
jobs: [{name: a, command: "sh -c 'echo $ENSEMBLE_JOB_ID >> ran; sleep 1'", count: 2}]
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


@pytest.mark.parametrize("hidden", [False, True], ids=["", "variables-hidden"])
def test_a_run_in_each_task_of_a_step_is_refused_with_its_reason(
    cluster: Cluster, tmp_path: Path, hidden: bool
) -> None:
    """Flux, started by ``srun --mpi=none``, hides Slurm's variables from the program it starts."""
    (tmp_path / "s.yaml").write_text(FILE)
    run = f"{sys.executable} -m ensemble_core.cli run s.yaml --executor local --slots 1 -q"
    run += " --tag one --state state --or-resume"
    if hidden:
        run = f"env --unset=SLURM_JOB_ID --unset=SLURM_STEP_ID --unset=SLURM_PROCID {run}; exit $?"
    done = subprocess.run(
        ["srun", "-n2", "--mpi=none", "--overlap", "sh", "-c", run],
        cwd=tmp_path,
        env={**cluster.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert sorted((tmp_path / "ran").read_text().split()) == ["a.0", "a.1"], done.stderr
    assert "runs the command once per task: this is task" in done.stderr
    assert "start one controller" in done.stderr
    assert done.stderr.count("run one") >= 1
